//! Compares the programs of the ranks of several nodes before the run starts: executable, libtorch, recipe and
//! data.

use std::fs::File;

use dtrain_common::recipe::Recipe;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::collectives::Rendezvous;
use crate::error::{Result, WorkerError};

/// The keys of paths, which may differ between nodes.
const PATHS: [(&str, &str); 3] = [("data", "root"), ("model", "file"), ("model", "weights")];

/// The program of one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Program {
    host: String,
    /// Version and hash.
    executable: String,
    /// Version and bytes.
    libtorch: String,
    recipe: Value,
    /// The data's fingerprint, from the first rank of each node.
    data: Option<String>,
}

impl Program {
    /// Returns the program of this rank. Reads the executable.
    pub(crate) fn of_rank(recipe: &Recipe, data: Option<String>) -> Result<Self> {
        let mut recipe = serde_json::to_value(recipe)?;
        for (section, key) in PATHS {
            if let Some(section) = recipe.get_mut(section).and_then(Value::as_object_mut) {
                section.remove(key);
            }
        }
        Ok(Self {
            host: dtrain_common::host::name(),
            executable: format!("{}, {}", env!("CARGO_PKG_VERSION"), hash_of_executable()),
            libtorch: format!("{}, {}", dtrain_torch_shim::libtorch_version(), size_of_libtorch()),
            recipe,
            data,
        })
    }
}

/// Returns the first digits of the executable's BLAKE3 hash.
fn hash_of_executable() -> String {
    let mut hasher = blake3::Hasher::new();
    let read = File::open("/proc/self/exe").and_then(|file| hasher.update_reader(file).map(drop));
    match read {
        Ok(()) => format!("hash {}", &hasher.finalize().to_hex()[..12]),
        Err(error) => format!("unreadable ({error})"),
    }
}

/// Returns the size of the loaded libtorch_cpu.so.
fn size_of_libtorch() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    let size =
        paths.find(|path| path.ends_with("/libtorch_cpu.so")).and_then(|path| std::fs::metadata(path).ok());
    size.map_or_else(|| "unknown size".to_owned(), |meta| format!("{} bytes", meta.len()))
}

/// Compares the programs of all ranks with rank 0's. Rank 0 calls this; the others send theirs by
/// [`Rendezvous::introduce`].
pub(crate) fn compare(rendezvous: &Rendezvous, own: &Program) -> Result<()> {
    let mut all = vec![own.clone()];
    for bytes in rendezvous.introductions()? {
        all.push(serde_json::from_slice(&bytes)?);
    }
    match differences(&all) {
        differences if differences.is_empty() => Ok(()),
        differences => Err(WorkerError::DifferentPrograms(differences.join("; "))),
    }
}

/// Describes everything in which ranks differ from rank 0.
fn differences(all: &[Program]) -> Vec<String> {
    let Some(first) = all.first() else { return Vec::new() };
    let mut found = Vec::new();
    let mut compare = |name: &str, of: &dyn Fn(&Program) -> Option<String>| {
        let wanted = of(first);
        let others =
            all.iter().enumerate().filter(|(_, one)| of(one).is_some_and(|value| Some(value) != wanted));
        let others: Vec<(usize, &Program)> = others.collect();
        let Some((_, other)) = others.first() else { return };
        let ranks: Vec<String> = others.iter().map(|(rank, one)| format!("{rank} ({})", one.host)).collect();
        let [here, there] = [first, *other].map(|one| of(one).unwrap_or_default());
        let host = &first.host;
        found.push(format!("{name}: {here} on rank 0 ({host}), {there} on rank {}", ranks.join(", ")));
    };
    compare("program", &|one| Some(one.executable.clone()));
    compare("libtorch", &|one| Some(one.libtorch.clone()));
    compare("data", &|one| {
        one.data.as_ref().map(|data| format!("fingerprint {}", &data[..data.len().min(12)]))
    });
    let mut keys: Vec<String> = Vec::new();
    all.iter().for_each(|one| differing_keys("", &first.recipe, &one.recipe, &mut keys));
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let value = |one: &Program| {
            let found = key.split('.').try_fold(&one.recipe, |value, key| value.get(key));
            Some(found.map_or_else(|| "unset".to_owned(), Value::to_string))
        };
        compare(&key, &value);
    }
    found
}

/// Adds the keys of values that differ, with sections before them.
fn differing_keys(prefix: &str, one: &Value, other: &Value, found: &mut Vec<String>) {
    if let (Value::Object(mine), Value::Object(theirs)) = (one, other) {
        for key in mine.keys().chain(theirs.keys()) {
            let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            differing_keys(
                &name,
                one.get(key).unwrap_or(&Value::Null),
                other.get(key).unwrap_or(&Value::Null),
                found,
            );
        }
    } else if one != other {
        found.push(prefix.to_owned());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn program(host: &str) -> Program {
        Program {
            host: host.into(),
            executable: "0.1.0, hash aa".into(),
            libtorch: "2.11.0, 5 bytes".into(),
            recipe: json!({"task": "lm", "optim": {"lr": 0.01}}),
            data: Some("0123456789abcdef".into()),
        }
    }

    #[test]
    fn equal_programs_have_no_differences() {
        let follower = Program { data: None, ..program("b") };
        assert_eq!(differences(&[program("a"), program("b"), follower]), [] as [&str; 0]);
    }

    #[test]
    fn differences_are_named_with_ranks_and_hosts() {
        let other = |change: &dyn Fn(&mut Program)| {
            let mut other = program("b");
            change(&mut other);
            differences(&[program("a"), other.clone(), program("a"), other])
        };
        assert_eq!(
            other(&|other| other.executable = "0.1.0, hash bb".into()),
            ["program: 0.1.0, hash aa on rank 0 (a), 0.1.0, hash bb on rank 1 (b), 3 (b)"]
        );
        assert_eq!(
            other(&|other| other.libtorch = "2.12.0, 5 bytes".into()),
            ["libtorch: 2.11.0, 5 bytes on rank 0 (a), 2.12.0, 5 bytes on rank 1 (b), 3 (b)"]
        );
        assert_eq!(
            other(&|other| other.data = Some("fedcba9876543210".into())),
            ["data: fingerprint 0123456789ab on rank 0 (a), fingerprint fedcba987654 on rank 1 (b), 3 (b)"]
        );
        assert_eq!(
            other(&|other| other.recipe["optim"] = json!({"lr": 0.02, "beta": 1})),
            [
                "optim.beta: unset on rank 0 (a), 1 on rank 1 (b), 3 (b)",
                "optim.lr: 0.01 on rank 0 (a), 0.02 on rank 1 (b), 3 (b)"
            ]
        );
    }

    #[test]
    fn this_program_has_all_facts_and_no_paths() {
        let recipe = Recipe::load("demo", &["model.weights=/some/file".to_owned()]).unwrap();
        let program = Program::of_rank(&recipe, None).unwrap();
        assert!(program.executable.contains("hash ") && program.libtorch.ends_with("bytes"), "{program:?}");
        assert!(!program.recipe.to_string().contains("/some/file"));
        let sent = serde_json::to_vec(&program).unwrap();
        assert_eq!(serde_json::from_slice::<Program>(&sent).unwrap(), program);
    }
}
