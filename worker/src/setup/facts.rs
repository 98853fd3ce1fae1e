//! Compares the facts of all ranks of several nodes before the run starts: executable, libtorch, recipe, the model's
//! files and data.

use std::collections::BTreeMap;
use std::path::Path;

use dtrain_common::env::WorkerEnv;
use dtrain_common::files;
use dtrain_recipe::{Amp, Recipe};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::Device;

use crate::checkpoint::{self, HeldCopy};
use crate::collectives::Rendezvous;
use crate::data::packed::Packed;
use crate::request::Request;
use crate::setup::error::{Result, WorkerError};
use crate::setup::fingerprint;
use crate::setup::host::Host;
use crate::setup::survey::Surveyed;
use crate::step::Precision;
use crate::tasks::BuildTask;

/// The keys of paths, which may differ between nodes.
const PATHS: [(&str, &str); 4] =
    [("data", "root"), ("model", "file"), ("model", "weights"), ("model", "libraries")];

/// The facts of one rank that must be the same on all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RankFacts {
    pub(crate) host: String,
    /// Version and bytes.
    libtorch: String,
    /// The precision that `precision.amp = "auto"` chooses on this rank's GPU.
    amp: Amp,
    recipe: Value,
    /// The facts about files that the ranks of a node share, by name.
    node: OfNode,
    /// What its node holds of earlier attempts, from the first rank of each node.
    #[serde(default)]
    pub(crate) copies: Vec<HeldCopy>,
}

/// What the first rank of each node tells, by name; empty for other ranks.
type OfNode = BTreeMap<String, String>;

/// Reads the node's files. `data` is the data's fingerprint. If the run is `prepared`, its launcher has
/// compared the executables.
fn of_node(recipe: &Recipe, data: &str, prepared: bool) -> OfNode {
    let hash = |path: &Path| match files::hash(path) {
        Ok(hash) => format!("hash {}", &hash[..12]),
        Err(error) => format!("unreadable ({error})"),
    };
    let mut found = OfNode::from([("data".into(), format!("fingerprint {}", &data[..data.len().min(12)]))]);
    if !prepared {
        let executable = hash(Path::new("/proc/self/exe"));
        found.insert("program".into(), format!("{}, {executable}", env!("CARGO_PKG_VERSION")));
    }
    // Rank 0 sends its trained weights, but not the frozen ones.
    for (name, file) in [("model.file", &recipe.model.file), ("model.weights", &recipe.model.weights)] {
        found.extend(file.as_ref().map(|file| (name.into(), hash(file))));
    }
    found.extend(recipe.own_programs().into_iter().map(|(key, file)| (key, hash(&file))));
    for shard in recipe.model.weights.iter().flat_map(|weights| crate::models::shards(weights)) {
        let name = shard.file_name().unwrap_or_default().display().to_string();
        found.insert(format!("model.weights {name}"), hash(&shard));
    }
    let libraries = recipe.model.libraries.iter().enumerate();
    found.extend(libraries.map(|(number, file)| (format!("model.libraries[{number}]"), hash(file))));
    found
}

impl RankFacts {
    /// Returns the facts of this rank, which trains on `device`, without copies. The first rank of a node gives the fingerprint
    /// of the node's `data`, and compares the node's files too.
    pub(crate) fn of_rank(
        recipe: &Recipe,
        device: Device,
        data: Option<&str>,
        prepared: bool,
    ) -> Result<Self> {
        let node = data.map(|data| of_node(recipe, data, prepared)).unwrap_or_default();
        let amp = Precision::new(&recipe.precision, device)?.amp();
        let mut recipe = serde_json::to_value(recipe.plain()?)?;
        for (section, key) in PATHS {
            if let Some(section) = recipe.get_mut(section).and_then(Value::as_object_mut) {
                section.remove(key);
            }
        }
        recipe.pointer_mut("/model/loss").into_iter().for_each(without_file);
        for stage in recipe.pointer_mut("/stage").and_then(Value::as_array_mut).into_iter().flatten() {
            stage.get_mut("loss").into_iter().for_each(without_file);
        }
        for list in ["/model/figures", "/data/changes"] {
            for own in recipe.pointer_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                own.as_object_mut().and_then(|own| own.remove("program"));
            }
        }
        for source in recipe.pointer_mut("/data/source").and_then(Value::as_array_mut).into_iter().flatten() {
            source.as_object_mut().and_then(|source| source.remove("root"));
        }
        Ok(Self {
            host: dtrain_common::host::name(),
            libtorch: describe_libtorch(),
            amp,
            recipe,
            node,
            copies: Vec::new(),
        })
    }
}

/// Removes the file of a user's own loss from a table or a list of losses.
fn without_file(loss: &mut Value) {
    let own = match loss {
        Value::Array(list) => {
            list.iter_mut().find(|term| term.get("name").is_some_and(|name| name == "program"))
        }
        table => table.get_mut("program"),
    };
    own.and_then(Value::as_object_mut).map(|own| own.remove("file"));
}

/// Returns the version and the size of the loaded libtorch.
pub(crate) fn describe_libtorch() -> String {
    format!("{}, {}", dtrain_torch_shim::libtorch_version(), size_of_libtorch())
}

/// Returns the size of the loaded libtorch_cpu.so.
fn size_of_libtorch() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    let size =
        paths.find(|path| path.ends_with("/libtorch_cpu.so")).and_then(|path| std::fs::metadata(path).ok());
    size.map_or_else(|| "unknown size".to_owned(), |meta| format!("{} bytes", meta.len()))
}

/// Sends rank 0 this rank's facts, for a comparison. The first rank of each node surveys its data and copies; returns the lists
/// of its survey.
pub(crate) fn introduce<T: BuildTask>(
    request: &Request,
    recipe: &Recipe,
    env: &WorkerEnv,
    host: &Host,
    rendezvous: &Rendezvous,
) -> Result<Vec<Packed<u8>>> {
    let is_first = env.local_rank == 0;
    let survey = is_first.then(|| Surveyed::of::<T>(recipe)).transpose()?;
    let data = survey.as_ref().map(|survey| fingerprint::digest(&survey.facts));
    let mut facts = RankFacts::of_rank(recipe, host.device, data.as_deref(), request.prepared)?;
    if let (Some(folder), true) = (&host.copies, is_first) {
        facts.copies = checkpoint::held_copies(folder);
    }
    rendezvous.introduce(&serde_json::to_vec(&facts)?)?;
    Ok(survey.map(|survey| survey.lists).unwrap_or_default())
}

/// Returns the facts of all other ranks in order, which send them by [`Rendezvous::introduce`]. Rank 0 calls
/// this.
pub(crate) fn of_others(rendezvous: &Rendezvous) -> Result<Vec<RankFacts>> {
    let all = rendezvous.introductions()?;
    Ok(all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<_, _>>()?)
}

/// Compares the facts of all ranks with rank 0's, which calls this.
pub(crate) fn compare(rendezvous: &Rendezvous, own: RankFacts) -> Result<()> {
    let mut all = vec![own];
    all.extend(of_others(rendezvous)?);
    match differences(&all) {
        differences if differences.is_empty() => Ok(()),
        differences => Err(WorkerError::DifferentRanks(differences.join("; "))),
    }
}

/// Describes everything in which ranks differ from rank 0.
fn differences(all: &[RankFacts]) -> Vec<String> {
    let Some(first) = all.first() else { return Vec::new() };
    let mut found = Vec::new();
    let mut compare = |name: &str, of: &dyn Fn(&RankFacts) -> Option<String>| {
        let wanted = of(first);
        let others =
            all.iter().enumerate().filter(|(_, one)| of(one).is_some_and(|value| Some(value) != wanted));
        let others: Vec<(usize, &RankFacts)> = others.collect();
        let Some((_, other)) = others.first() else { return };
        let ranks: Vec<String> = others.iter().map(|(rank, one)| format!("{rank} ({})", one.host)).collect();
        let [here, there] = [first, *other].map(|one| of(one).unwrap_or_default());
        let host = &first.host;
        found.push(format!("{name}: {here} on rank 0 ({host}), {there} on rank {}", ranks.join(", ")));
    };
    compare("libtorch", &|one| Some(one.libtorch.clone()));
    compare("precision.amp", &|one| serde_json::to_string(&one.amp).ok());
    for name in first.node.keys() {
        compare(name, &|one| one.node.get(name).cloned());
    }
    let mut keys: Vec<String> = Vec::new();
    all.iter().for_each(|one| differing_keys("", &first.recipe, &one.recipe, &mut keys));
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let value = |one: &RankFacts| {
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

    fn facts(host: &str) -> RankFacts {
        RankFacts {
            host: host.into(),
            libtorch: "2.11.0, 5 bytes".into(),
            amp: Amp::Bf16,
            recipe: json!({"task": "lm", "optim": {"lr": 0.01}}),
            node: [("data", "fingerprint 0"), ("model.weights", "hash a"), ("program", "0.1.0, hash aa")]
                .map(|(name, value)| (name.into(), value.into()))
                .into(),
            copies: Vec::new(),
        }
    }

    #[test]
    fn equal_facts_have_no_differences() {
        let follower = RankFacts { node: OfNode::new(), ..facts("b") };
        assert_eq!(differences(&[facts("a"), facts("b"), follower]), [] as [&str; 0]);
    }

    #[test]
    fn differences_are_named_with_ranks_and_hosts() {
        let other = |change: &dyn Fn(&mut RankFacts)| {
            let mut other = facts("b");
            change(&mut other);
            differences(&[facts("a"), other.clone(), facts("a"), other])
        };
        assert_eq!(
            other(&|other| drop(other.node.insert("program".into(), "0.1.0, hash bb".into()))),
            ["program: 0.1.0, hash aa on rank 0 (a), 0.1.0, hash bb on rank 1 (b), 3 (b)"]
        );
        assert_eq!(
            other(&|other| other.libtorch = "2.12.0, 5 bytes".into()),
            ["libtorch: 2.11.0, 5 bytes on rank 0 (a), 2.12.0, 5 bytes on rank 1 (b), 3 (b)"]
        );
        assert_eq!(
            other(&|other| drop(other.node.insert("model.weights".into(), "hash b".into()))),
            ["model.weights: hash a on rank 0 (a), hash b on rank 1 (b), 3 (b)"]
        );
        assert_eq!(
            other(&|other| other.amp = Amp::Fp16),
            ["precision.amp: \"bf16\" on rank 0 (a), \"fp16\" on rank 1 (b), 3 (b)"]
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
    fn this_rank_has_all_facts_and_no_paths() {
        let recipe = Recipe::load("demo", &["model.weights=/some/file".to_owned()]).unwrap();
        let node = of_node(&recipe, "0123456789abcdef", false);
        assert!(node["program"].contains("hash ") && node["data"] == "fingerprint 0123456789ab", "{node:?}");
        assert!(node["model.weights"].starts_with("unreadable ("), "{node:?}");
        assert!(!of_node(&recipe, "", true).contains_key("program"));
        let facts = RankFacts::of_rank(&recipe, Device::Cpu, Some(""), false).unwrap();
        assert!(facts.libtorch.ends_with("bytes"), "{facts:?}");
        assert!(!facts.recipe.to_string().contains("/some/file"));
        let sent = serde_json::to_vec(&facts).unwrap();
        assert_eq!(serde_json::from_slice::<RankFacts>(&sent).unwrap(), facts);
    }
}
