//! Names of inputs and outputs: as `dtrain import` wrote them, else from the program's description of its arguments
//! and its result.

use serde::Deserialize;

use super::schema::{CallSignature, GraphModule};

/// The longest description of a result that is read; names repeat parts of it.
const LONGEST: usize = 1 << 16;

fn signature(module: &GraphModule) -> Option<&CallSignature> {
    module.module_call_graph.iter().find(|call| call.fqn.is_empty())?.signature.as_ref()
}

/// Returns the names of the inputs, whose names in the graph are `placeholders`.
pub(super) fn inputs(module: &GraphModule, placeholders: &[&str], noted: &[String]) -> Vec<String> {
    let of_forward = signature(module).and_then(|signature| signature.forward_arg_names.as_deref());
    let fitting =
        [Some(noted), of_forward].into_iter().flatten().find(|names| names.len() == placeholders.len());
    match fitting {
        Some(names) => names.to_vec(),
        None => placeholders.iter().map(|name| (*name).to_owned()).collect(),
    }
}

/// Returns the names of `count` results.
pub(super) fn outputs(module: &GraphModule, count: usize, noted: &[String]) -> Vec<String> {
    if noted.len() == count {
        return noted.to_vec();
    }
    let described =
        signature(module).filter(|signature| signature.out_spec.len() <= LONGEST).and_then(|signature| {
            // The version, and the tree of containers.
            let (_, tree): (u64, Tree) = serde_json::from_str(&signature.out_spec).ok()?;
            let mut names = Vec::new();
            tree.names("", &mut names);
            (names.len() == count).then_some(names)
        });
    described.unwrap_or_else(|| match count {
        1 => vec!["output".to_owned()],
        _ => (0..count).map(|number| format!("output_{number}")).collect(),
    })
}

/// The structure of a result: a leaf has no type.
#[derive(Debug, Deserialize)]
struct Tree {
    #[serde(rename = "type")]
    kind: Option<String>,
    context: Option<String>,
    #[serde(default)]
    children_spec: Vec<Tree>,
}

impl Tree {
    /// Appends the names of the leaves: keys of dictionaries, otherwise numbers.
    fn names(&self, prefix: &str, into: &mut Vec<String>) {
        if self.kind.is_none() {
            into.push(if prefix.is_empty() { "output".to_owned() } else { prefix.to_owned() });
            return;
        }
        let keys: Option<Vec<String>> =
            self.context.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let keys = keys.filter(|keys| keys.len() == self.children_spec.len());
        for (number, child) in self.children_spec.iter().enumerate() {
            let key = match (&keys, self.children_spec.len()) {
                (Some(keys), _) => keys[number].clone(),
                (None, 1) => String::new(),
                (None, _) => format!("output_{number}"),
            };
            let name = match (prefix, key.as_str()) {
                ("", key) => key.to_owned(),
                (prefix, "") => prefix.to_owned(),
                (prefix, key) => format!("{prefix}.{key}"),
            };
            child.names(&name, into);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(out_spec: &str) -> Vec<String> {
        let (_, tree): (u64, Tree) = serde_json::from_str(out_spec).unwrap();
        let mut names = Vec::new();
        tree.names("", &mut names);
        names
    }

    #[test]
    fn results_have_the_names_of_their_keys() {
        let leaf = r#"{"type":null,"context":null,"children_spec":[]}"#;
        assert_eq!(names(&format!("[1, {leaf}]")), ["output"]);
        let list = |kind: &str, context: &str| {
            format!(r#"[1, {{"type":"{kind}","context":{context},"children_spec":[{leaf},{leaf}]}}]"#)
        };
        assert_eq!(names(&list("builtins.tuple", r#""null""#)), ["output_0", "output_1"]);
        assert_eq!(names(&list("builtins.dict", r#""[\"out\", \"aux\"]""#)), ["out", "aux"]);
    }
}
