//! The inputs of two runs: settings, data, programs, libraries and machines.

use super::reading::Kind;
use super::run::Run;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The source of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Setting,
    Data,
    /// Model, weights, and programs of the user.
    File,
    Trainer,
    Library,
    /// The division of a step: ranks, micro-batches, threads.
    Cut,
    Machine,
}

impl Source {
    /// Returns the word of the JSON form.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Setting => "setting",
            Self::Data => "data",
            Self::File => "file",
            Self::Trainer => "trainer",
            Self::Library => "library",
            Self::Cut => "cut",
            Self::Machine => "machine",
        }
    }
}

/// An input that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) source: Source,
    pub(super) name: String,
    pub(super) values: [String; 2],
}

/// The value of a setting that a recipe lacks.
pub(super) const NOT_SET: &str = "not set";
/// Settings that change no step.
const WITHOUT_EFFECT: [&str; 8] = [
    "log.",
    "checkpoint.",
    "evaluate.",
    "test.",
    "data.workers",
    "data.cache",
    "memory.budget",
    "train.stop_early",
];
/// Those that change figures of evaluations.
const FOR_EVALUATIONS: [&str; 3] = ["evaluate.samples", "evaluate.batch", "test."];
/// Settings of data that change the model or its loss, too.
const FOR_LOSSES: [&str; 3] = ["data.classes", "data.vocabulary", "data.ignore"];
/// Settings that divide a step and leave its samples.
const CUTS: [&str; 2] = ["memory.", "reduce."];

impl Input {
    pub(super) fn has_effect(&self) -> bool {
        self.source != Source::Setting || !starts_with_any(&self.name, &WITHOUT_EFFECT)
    }

    /// Returns whether the input changes nothing but the order of additions.
    pub(super) fn only_rounds(&self) -> bool {
        match self.source {
            Source::Cut | Source::Machine | Source::Library | Source::Trainer => true,
            Source::Setting => starts_with_any(&self.name, &CUTS) || self.name.starts_with("precision."),
            Source::Data | Source::File => false,
        }
    }

    /// Returns whether the input can explain a first difference of this kind; `is_first`: at the first step of the run; `has_hashes`:
    /// whether samples were compared.
    pub(super) fn explains(&self, kind: Kind, is_first: bool, has_hashes: bool) -> bool {
        use Kind::{Content, Evaluation, Loss, Order, Plan, Rate};
        let name = self.name.as_str();
        let of_samples = !has_hashes || matches!(kind, Plan | Order | Content | Rate | Evaluation);
        match self.source {
            Source::Data => of_samples,
            // Another program may do anything.
            Source::Trainer => true,
            Source::File | Source::Library | Source::Cut | Source::Machine => kind >= Loss,
            Source::Setting if starts_with_any(name, &FOR_EVALUATIONS) => kind == Evaluation,
            Source::Setting if !self.has_effect() => false,
            Source::Setting if starts_with_any(name, &FOR_LOSSES) => of_samples || kind >= Loss,
            Source::Setting if name.starts_with("data.") => of_samples,
            // Evaluations and weights of the first step are those after its update.
            Source::Setting if name.starts_with("optim.") => {
                kind == Rate || kind >= Evaluation || kind >= Loss && !is_first
            }
            Source::Setting if starts_with_any(name, &["train.", "stage", "custom"]) => true,
            Source::Setting if name.starts_with("ema.") => kind >= Evaluation,
            Source::Setting => kind >= Loss,
        }
    }
}

fn starts_with_any(name: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the inputs that differ, each once, at the step of the first difference. `same_samples`: whether both runs are known to have
/// loaded the same samples.
pub(super) fn compare(a: &Run, b: &Run, step: u64, same_samples: bool) -> Vec<Input> {
    let mut found = Vec::new();
    let environments = [a, b].map(|run| run.environment(step));
    let hashes = environments.map(files);
    let data = environments.map(|environment| environment["data"].as_str());
    let has_same_data = data[0].is_some() && data[0] == data[1] && same_samples;
    let settings = [a, b].map(|run| flat(&run.recipe));
    for name in names(&settings) {
        let values = settings.each_ref().map(|of| of.get(name).map(String::as_str));
        if values[0] == values[1] {
            continue;
        }
        let is_path = values.iter().flatten().all(|value| value.starts_with("\"/"));
        let known = |of: &BTreeMap<String, &str>| of.keys().any(|key| name.starts_with(key.as_str()));
        let is_known = has_same_data && name.starts_with("data.") || hashes.iter().all(known);
        // Its content is compared below.
        if is_path && is_known {
            continue;
        }
        found.push(Input { source: Source::Setting, name: name.to_owned(), values: values.map(or_not_set) });
    }
    let mut add = |source, name: &str, values: [Option<String>; 2]| {
        // Inputs that one run did not record are not known.
        if let [Some(a), Some(b)] = values
            && a != b
        {
            found.push(Input { source, name: name.to_owned(), values: [a, b] });
        }
    };
    add(Source::Data, "files of the data", data.map(|hash| hash.map(short)));
    for name in names(&hashes) {
        add(
            Source::File,
            &format!("content of {name}"),
            hashes.each_ref().map(|of| of.get(name).map(|hash| short(hash))),
        );
    }
    add(Source::Trainer, "trainer", environments.map(trainer));
    for name in ["libtorch", "cuda", "driver", "nccl"] {
        add(Source::Library, name, environments.map(|of| text(&of[name])));
    }
    let ranks = [a, b].map(|run| ranks(run.environment(step)).or_else(|| text(&run.plan["nproc"])));
    let other_ranks = ranks[0] != ranks[1];
    add(Source::Cut, "ranks", ranks);
    if !other_ranks {
        // These follow from the number of ranks.
        add(Source::Cut, "threads of a rank", environments.map(|of| text(&of["threads"])));
        // Of the newest attempt alone.
        let is_newest = |run: &Run| run.environments().next_back() == Some(run.environment(step));
        let cut = |run: &Run| text(&run.plan["partition"]).filter(|_| is_newest(run));
        add(Source::Cut, "cut", [a, b].map(cut));
    }
    add(Source::Machine, "device", environments.map(|of| list(&of["devices"])));
    for (name, label) in [("cpu", "processor"), ("cores", "cores"), ("precision", "precision")] {
        add(Source::Machine, label, environments.map(|of| text(&of[name])));
    }
    add(Source::Machine, "host", environments.map(|of| list(&of["hosts"])));
    without_consequences(found)
}

/// Leaves out what follows from a setting.
fn without_consequences(mut found: Vec<Input>) -> Vec<Input> {
    let has = |prefixes: &[&str]| {
        let is_such = |input: &Input| starts_with_any(&input.name, prefixes) && input.has_effect();
        found.iter().any(|input| input.source == Source::Setting && is_such(input))
    };
    let is_other_data = has(&["data."]);
    let is_cut = has(&["memory.", "train.effective_batch", "stage"]);
    let (is_precise, is_other_device) =
        (has(&["precision."]), found.iter().any(|input| input.name == "device"));
    found.retain(|input| match (input.source, input.name.as_str()) {
        (Source::Data, _) => !is_other_data,
        (Source::Cut, "cut") => !is_cut,
        (Source::Machine, "precision") => !is_precise && !is_other_device,
        _ => true,
    });
    found
}

/// Returns what changed between the attempts of a run, as sentences.
pub(super) fn attempts(run: &Run) -> Vec<String> {
    let all: Vec<&Value> = run.environments().collect();
    let mut sentences = Vec::new();
    for pair in all.windows(2) {
        let fields = pair[1].as_object().into_iter().flatten().filter(|(key, _)| *key != "first_step");
        let words = |value: &Value| list(value).or_else(|| text(value)).unwrap_or_else(|| value.to_string());
        let of_ranks = [pair[0], pair[1]].map(ranks);
        let other_ranks = match &of_ranks {
            [Some(before), Some(now)] if before != now => Some(format!("ranks {now} (before {before})")),
            _ => None,
        };
        // Hosts and devices are those of the ranks.
        let is_other = |key: &str, value: &Value| match list(value) {
            Some(now) => Some(now) != list(&pair[0][key]),
            None => pair[0].get(key) != Some(value),
        };
        let changed = fields.filter(|(key, value)| is_other(key, value));
        let changed = changed.map(|(key, value)| match key.as_str() {
            "files" | "data" | "trainer_hash" => {
                format!("other {}", if key == "trainer_hash" { "trainer" } else { key })
            }
            _ => format!("{key} {} (before {})", words(value), words(&pair[0][key.as_str()])),
        });
        let changed: Vec<_> = other_ranks.into_iter().chain(changed).collect();
        if changed.is_empty() {
            continue;
        }
        sentences.push(format!("from step {} with {}", pair[1]["first_step"], changed.join(", ")));
    }
    sentences
}

/// Returns the settings by their whole names.
pub(crate) fn flat(table: &toml::Table) -> BTreeMap<String, String> {
    fn add(name: String, value: &toml::Value, found: &mut BTreeMap<String, String>) {
        match value {
            toml::Value::Table(table) => {
                table.iter().for_each(|(key, value)| add(format!("{name}.{key}"), value, found));
            }
            toml::Value::Array(list) if list.iter().any(toml::Value::is_table) => {
                list.iter().enumerate().for_each(|(at, value)| add(format!("{name}[{at}]"), value, found));
            }
            other => drop(found.insert(name, other.to_string())),
        }
    }
    let mut found = BTreeMap::new();
    table.iter().for_each(|(key, value)| add(key.clone(), value, &mut found));
    found
}

fn files(environment: &Value) -> BTreeMap<String, &str> {
    let files = environment["files"].as_object().into_iter().flatten();
    files.filter_map(|(name, hash)| Some((name.clone(), hash.as_str()?))).collect()
}

/// Returns the names of both.
fn names<T>(pair: &[BTreeMap<String, T>; 2]) -> BTreeSet<&str> {
    pair.iter().flat_map(BTreeMap::keys).map(String::as_str).collect()
}

fn or_not_set(value: Option<&str>) -> String {
    value.map_or_else(|| NOT_SET.to_owned(), |value| value.trim_matches('"').to_owned())
}

/// Returns the beginning of a hash, enough to tell two apart.
fn short(hash: &str) -> String {
    hash.chars().take(12 + if hash.starts_with("parts:") { 6 } else { 0 }).collect()
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Returns the number of ranks, each of which has its host in the list.
fn ranks(environment: &Value) -> Option<String> {
    Some(environment["hosts"].as_array()?.len().to_string())
}

/// Returns the different texts of a list.
fn list(value: &Value) -> Option<String> {
    let names: BTreeSet<&str> = value.as_array()?.iter().filter_map(Value::as_str).collect();
    Some(names.into_iter().collect::<Vec<_>>().join(", "))
}

fn trainer(environment: &Value) -> Option<String> {
    let [name, version] = ["trainer", "dtrain"].map(|key| environment[key].as_str());
    let hash = environment["trainer_hash"].as_str().map(|hash| format!(", hash {}", short(hash)));
    Some(format!("{} {}{}", name?, version?, hash.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(source: Source, name: &str) -> Input {
        Input { source, name: name.to_owned(), values: ["1".to_owned(), "2".to_owned()] }
    }

    #[test]
    fn inputs_explain_what_they_can_change() {
        let setting = |name, kind, is_first| input(Source::Setting, name).explains(kind, is_first, true);
        assert!(setting("optim.lr", Kind::Rate, true) && setting("optim.weight_decay", Kind::Loss, false));
        assert!(!setting("optim.weight_decay", Kind::Loss, true));
        assert!(setting("data.augment", Kind::Content, true) && !setting("data.augment", Kind::Loss, true));
        assert!(
            setting("model.batchnorm", Kind::Loss, true) && !setting("model.batchnorm", Kind::Order, true)
        );
        assert!(setting("train.seed", Kind::Order, true) && !setting("log.every_steps", Kind::Loss, false));
        assert!(
            setting("evaluate.samples", Kind::Evaluation, true)
                && !setting("evaluate.samples", Kind::Loss, true)
        );
        assert!(
            setting("optim.weight_decay", Kind::Weights, true)
                && setting("test.weights", Kind::Evaluation, false)
        );
        assert!(setting("data.classes", Kind::Loss, true));
        assert!(!input(Source::Cut, "ranks").explains(Kind::Order, true, true));
        assert!(input(Source::Trainer, "trainer").explains(Kind::Order, true, true));
        let unknown = |source| input(source, "data.augment").explains(Kind::Loss, true, false);
        assert!(unknown(Source::Setting) && unknown(Source::Data));
    }

    #[test]
    fn what_follows_from_a_setting_is_left_out() {
        let names = |found: &[(Source, &str)]| {
            let found = found.iter().map(|(source, name)| input(*source, name)).collect();
            without_consequences(found).into_iter().map(|input| input.name).collect::<Vec<_>>()
        };
        let cut = (Source::Cut, "cut");
        assert_eq!(names(&[(Source::Setting, "memory.micro_batch"), cut]), ["memory.micro_batch"]);
        assert_eq!(names(&[(Source::Setting, "optim.lr"), cut]), ["optim.lr", "cut"]);
        assert_eq!(names(&[(Source::Machine, "device"), (Source::Machine, "precision")]), ["device"]);
        let data = (Source::Data, "files of the data");
        assert_eq!(names(&[(Source::Setting, "data.root"), data]), ["data.root"]);
        assert_eq!(names(&[(Source::Setting, "data.workers"), data]), ["data.workers", "files of the data"]);
    }

    #[test]
    fn settings_have_whole_names() {
        let table: toml::Table =
            "a = 1\n[b]\nc = \"x\"\nd = [1, 2]\n[[b.e]]\nname = \"y\"\n".parse().unwrap_or_default();
        let flat: Vec<_> = flat(&table).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(flat, ["a=1", "b.c=\"x\"", "b.d=[1, 2]", "b.e[0].name=\"y\""]);
    }
}
