//! Places in a model's source, for messages, and the modules that contain an operation.

use std::collections::BTreeMap;
use std::fmt;

/// The module and the line of an operation. Shown as words that follow the operation's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Place {
    module: Option<String>,
    line: Option<String>,
}

impl Place {
    /// Reads the metadata of a node in these [`modules`].
    pub(super) fn of(modules: &[(String, String)], metadata: &BTreeMap<String, String>) -> Self {
        let module = modules.last().map(|(path, _)| path.clone()).filter(|path| !path.is_empty());
        let trace = metadata.get("stack_trace").map(String::as_str).unwrap_or_default();
        Self { module, line: line(trace) }
    }

    /// Returns the path of the module.
    pub(super) fn module(&self) -> &str {
        self.module.as_deref().unwrap_or_default()
    }
}

/// Returns the innermost line of a stack trace that is not PyTorch's own, such as `net.py:12`.
fn line(trace: &str) -> Option<String> {
    let places = trace.lines().filter_map(|line| {
        let (file, rest) = line.trim().strip_prefix("File \"")?.split_once("\", line ")?;
        let number = rest.split(',').next()?;
        Some((file, number))
    });
    let places: Vec<(&str, &str)> = places.collect();
    let own = places.iter().rev().find(|(file, _)| !file.contains("/torch/") && !file.starts_with("torch/"));
    own.or(places.last()).map(|(file, number)| format!("{file}:{number}"))
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(module) = &self.module {
            write!(f, " in `{module}`")?;
        }
        match &self.line {
            Some(line) => write!(f, " ({line})"),
            None => Ok(()),
        }
    }
}

/// Modules within more others than these count as parts of them.
const DEEPEST: usize = 64;

/// Returns path and class of the modules around an operation, outermost first. A second call of a module has `@1`
/// behind its path.
pub(super) fn modules(metadata: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let stack = metadata.get("nn_module_stack").map(String::as_str).unwrap_or_default();
    let levels = stack.split(';').filter_map(|level| {
        let (key, rest) = level.split_once(',')?;
        let (path, class) = rest.rsplit_once(',')?;
        // The key tells calls of one module apart; the path does not.
        let call = key.rsplit_once('@').map(|(_, call)| format!("@{call}")).unwrap_or_default();
        (!key.starts_with('_')).then(|| (format!("{path}{call}"), class.to_owned()))
    });
    levels.take(DEEPEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(stack: &str, trace: &str) -> BTreeMap<String, String> {
        [("nn_module_stack", stack), ("stack_trace", trace)]
            .map(|(key, text)| (key.into(), text.into()))
            .into()
    }

    fn place(metadata: &BTreeMap<String, String>) -> Place {
        Place::of(&modules(metadata), metadata)
    }

    #[test]
    fn places_are_lines_outside_pytorch() {
        let trace = "File \"/a/net.py\", line 12, in forward\n    x = self.c(x)\n  File \"/p/torch/nn/modules/conv.py\", line 5, in f\n";
        let stack = "L__self__,,net.Net;L__self__c,c,torch.nn.modules.conv.Conv2d";
        assert_eq!(place(&metadata(stack, trace)).to_string(), " in `c` (/a/net.py:12)");
        assert_eq!(place(&BTreeMap::new()).to_string(), "");
    }

    #[test]
    fn second_calls_of_a_module_differ() {
        let stack = "L__self__,,net.Net;L__self__c@1,c,net.C";
        let expected = [("", "net.Net"), ("c@1", "net.C")].map(|(path, class)| (path.into(), class.into()));
        assert_eq!(modules(&metadata(stack, "")), expected);
    }
}
