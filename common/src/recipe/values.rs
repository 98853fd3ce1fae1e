//! Comparison of a recipe with its keys: unknown, missing, and values of a wrong type or range.

use toml::Value;

use super::hints::{describe, nearest, one_of};
use super::keys::Section;
use super::kinds::{self, Key, Kind, Named};
use super::origin::{Problem, dotted, is_stated};
use super::{Checkpoint, Ema, Evaluate, Log, Memory, Optim, Precision, Reduce, Stage, Test, Train};

const fn key<T: Section>(name: &'static str, about: &'static str) -> Key {
    Key { name, kind: Kind::Section(T::KEYS), about }
}

/// The kinds of what a trainer decides: its tasks, and its sections.
pub struct OwnKinds {
    pub task: Kind,
    pub data: Kind,
    pub model: Kind,
    pub custom: Kind,
}

impl OwnKinds {
    /// What is known without the trainer.
    pub const UNKNOWN: Self =
        Self { task: kinds::NAME, data: Kind::Free, model: Kind::Free, custom: Kind::Free };

    /// Returns every key of a recipe, in the order in which messages list them.
    pub const fn keys(&self) -> [Key; 15] {
        [
            Key { name: "task", kind: self.task, about: "The learning task." },
            Key { name: "data", kind: self.data, about: "The samples." },
            Key { name: "model", kind: self.model, about: "The network." },
            key::<Train>("train", "Effective batch, length and seed."),
            key::<Optim>("optim", "The optimizer."),
            key::<Precision>("precision", "The types of numbers."),
            key::<Memory>("memory", "How a step is cut to fit in memory."),
            key::<Reduce>("reduce", "How gradients are summed over ranks."),
            key::<Ema>("ema", "A moving average of the weights."),
            key::<Checkpoint>("checkpoint", "When checkpoints are written, and which stay."),
            key::<Evaluate>("evaluate", "When and how the model is evaluated."),
            key::<Test>("test", "A final test after the training."),
            key::<Log>("log", "What is printed."),
            Key { name: "custom", kind: self.custom, about: "Settings of a user's trainer." },
            Key {
                name: "stage",
                kind: Kind::Sections(Stage::KEYS, 1),
                about: "Parts of the run with their own settings.",
            },
        ]
    }
}

/// Returns all unknown keys, all wrong values, and missing keys of the general sections.
pub(super) fn check(keys: &[Key], recipe: &Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    Sections { all: keys, problems: &mut problems }.section(keys, &[], recipe);
    if is_stated(recipe, "ema") && !is_stated(recipe, "ema.decay") {
        let message = "missing; state the share that the average keeps in a step, such as decay = 0.9999";
        problems.push(Problem::at("ema.decay", message));
    }
    problems
}

/// Sets the value at a path, which is there, to that of an override: a TOML value or the text itself, such as a folder
/// named 2025, whichever makes the setting that holds it one that its key takes.
pub(super) fn set(keys: &[Key], recipe: &mut Value, path: &[String], text: &str) {
    let setting = setting_of(keys, path);
    let mut fits = |value: &Value| {
        let Some((kind, length)) = setting else { return false };
        if let Some(place) = at(recipe, path) {
            *place = value.clone();
        }
        at(recipe, &path[..length]).is_some_and(|setting| kinds::check(kind, setting).is_ok())
    };
    let bare = Value::String(text.into());
    let value = match text.parse::<Value>() {
        Ok(value) if value.is_array() || value.is_table() || fits(&value) || !fits(&bare) => value,
        Ok(_) => bare,
        // TOML wants digits on both sides of the point.
        Err(_) => match text.parse().map(Value::Float) {
            Ok(number) if fits(&number) => number,
            _ => bare,
        },
    };
    if let Some(place) = at(recipe, path) {
        *place = value;
    }
}

/// Returns what the setting takes that the path names or leads into, and the length of that setting's own path; None for
/// an unknown key, a section, and the settings of a user's trainer.
fn setting_of<'a>(mut keys: &'a [Key], path: &[String]) -> Option<(&'a Kind, usize)> {
    for (place, name) in path.iter().enumerate().filter(|(_, name)| !name.starts_with('[')) {
        keys = match &keys.iter().find(|key| key.name == name)?.kind {
            Kind::Section(inner) | Kind::Sections(inner, _) => inner,
            Kind::Free => return None,
            kind => return Some((kind, place + 1)),
        };
    }
    None
}

/// Returns the value at a path with names such as `[0]` for the members of lists.
fn at<'a>(recipe: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(recipe, |value, name| match value {
        Value::Array(list) => {
            let index: usize = name.trim_matches(['[', ']']).parse().ok()?;
            list.get_mut(index)
        }
        other => other.get_mut(name),
    })
}

/// The key that decides the other keys of a section.
const NAME: &str = "name";

/// A check of every section.
struct Sections<'a> {
    /// The keys of a recipe.
    all: &'a [Key],
    problems: &'a mut Vec<Problem>,
}

impl Sections<'_> {
    fn section(&mut self, keys: &[Key], path: &[String], value: &Value) {
        for (name, value) in value.as_table().into_iter().flatten() {
            let path = [path, std::slice::from_ref(name)].concat();
            let message = match keys.iter().find(|key| key.name == name).map(|key| &key.kind) {
                None => unknown(self.all, keys, &path),
                Some(Kind::Section(inner)) if value.is_table() => {
                    self.section(inner, &path, value);
                    continue;
                }
                Some(Kind::Section(_)) => {
                    format!("expected a section [{}], got {}", dotted(&path), describe(value))
                }
                Some(Kind::Sections(inner, required)) => match value.as_array() {
                    Some(list) if list.iter().all(Value::is_table) => {
                        self.members(inner, *required, &path, list);
                        continue;
                    }
                    _ => format!("expected sections [[{}]], got {}", dotted(&path), describe(value)),
                },
                Some(Kind::Named(named)) => match value.as_array() {
                    Some(list) if list.iter().all(Value::is_table) => {
                        self.named(named, &path, list);
                        continue;
                    }
                    _ => format!(
                        "expected a list such as [{{ name = \"{}\" }}], got {}",
                        named[0].name,
                        describe(value)
                    ),
                },
                Some(kind) => match kinds::check(kind, value) {
                    Ok(()) => continue,
                    Err(message) => message,
                },
            };
            self.problems.push(Problem { path, message });
        }
    }

    /// Checks the sections of a list, each with the keys of its name.
    fn named(&mut self, named: &[Named], path: &[String], list: &[Value]) {
        let names: Vec<_> = named.iter().map(|one| one.name).collect();
        for (index, value) in list.iter().enumerate() {
            let path = [path, &[format!("[{index}]")]].concat();
            let name = value.get(NAME);
            let found = named.iter().find(|one| name.and_then(Value::as_str) == Some(one.name));
            let Some(found) = found else {
                let got =
                    name.map_or("missing; it is".to_owned(), |name| format!("{} is not", describe(name)));
                let message = format!("{got} {}", one_of(&names));
                self.problems.push(Problem { path: [&path[..], &[NAME.to_owned()]].concat(), message });
                continue;
            };
            let mut settings = value.clone();
            settings.as_table_mut().map(|table| table.remove(NAME));
            // An entry's keys are no keys of sections.
            Sections { all: &[], problems: self.problems }.section(found.keys, &path, &settings);
        }
    }

    /// Checks the sections of a list; the first `required` keys are required.
    fn members(&mut self, keys: &[Key], required: usize, path: &[String], list: &[Value]) {
        for (index, value) in list.iter().enumerate() {
            let path = [path, &[format!("[{index}]")]].concat();
            self.section(keys, &path, value);
            for key in keys[..required].iter().filter(|key| value.get(key.name).is_none()) {
                let remedy = match key.name {
                    "name" => "give it a name that no other stage has",
                    "root" => "name the folder, the table or the text of the source",
                    "match" => "name the parameters by a glob such as \"backbone.*\", or by a list of globs",
                    _ => "state the part of the stage after which it begins, such as 0.5",
                };
                self.problems.push(Problem {
                    path: [&path[..], &[key.name.to_owned()]].concat(),
                    message: format!("missing; {remedy}"),
                });
            }
        }
    }
}

/// Returns the message for an unknown key: a suggestion or its section, and the known keys.
fn unknown(all: &[Key], keys: &[Key], path: &[String]) -> String {
    let names: Vec<_> = keys.iter().map(|key| key.name).collect();
    let name = path.last().map_or("", String::as_str);
    let alias = || ALIASES.iter().find(|(key, aliases)| names.contains(key) && aliases.contains(&name));
    let near = nearest(name, &names).or_else(|| alias().map(|(key, _)| *key));
    let hint = match (near, sections_with(all, name).as_slice()) {
        (Some(near), _) => format!("; did you mean `{near}`?"),
        (None, [home]) => format!("; it belongs in {home};"),
        (None, []) => ";".to_owned(),
        (None, sections_with) => format!("; it belongs in one of {};", sections_with.join(", ")),
    };
    let place = match path {
        [] | [_] => "a recipe".to_owned(),
        [parents @ .., last, _] if last.starts_with('[') => format!("[[{}]]", dotted(parents)),
        [parents @ .., _] => format!("[{}]", dotted(parents)),
    };
    format!("unknown key{hint} {place} takes {}", names.join(", "))
}

const ALIASES: &[(&str, &[&str])] = &[
    ("effective_batch", &["batch", "batch_size", "global_batch_size"]),
    ("lr", &["learning_rate"]),
    ("optim", &["optimizer"]),
    ("workers", &["num_workers"]),
    ("clip", &["grad_clip", "clip_grad_norm", "max_grad_norm"]),
    ("classes", &["num_classes"]),
    ("image_size", &["img_size", "resolution"]),
    ("channels", &["in_channels"]),
    ("ignore", &["ignore_index"]),
    ("context", &["block_size", "seq_len"]),
    ("batchnorm", &["sync_bn", "sync_batchnorm"]),
    ("match", &["params"]),
    ("every", &["step_size"]),
    ("rise", &["pct_start"]),
    ("start_factor", &["div_factor"]),
    ("final_factor", &["final_div_factor"]),
    ("min_lr", &["eta_min"]),
    ("bucket", &["bucket_cap_mb"]),
];

/// Returns the sections that have a key of this name, as a recipe writes them.
fn sections_with(all: &[Key], name: &str) -> Vec<String> {
    fn visit(keys: &[Key], path: &str, name: &str, found: &mut Vec<String>) {
        for key in keys {
            let path = format!("{path}{}", key.name);
            let (inner, home) = match key.kind {
                Kind::Section(inner) => (inner, format!("[{path}]")),
                Kind::Sections(inner, _) => (inner, format!("[[{path}]]")),
                _ => continue,
            };
            if inner.iter().any(|key| key.name == name) {
                found.push(home);
            }
            visit(inner, &format!("{path}."), name, found);
        }
    }
    let mut found = Vec::new();
    visit(all, "", name, &mut found);
    // A key that a stage overrides belongs to the section that it overrides.
    let of_stages = |home: &String| home.starts_with("[[stage");
    if !found.iter().all(of_stages) {
        found.retain(|home| !of_stages(home));
    }
    found
}
