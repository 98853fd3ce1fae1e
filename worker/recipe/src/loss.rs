//! `model.loss`: a word, a table of losses, or a list of them.

use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;

use dtrain_common::recipe::hints::{describe, nearest, one_of};
use dtrain_common::recipe::kinds::{self, Kind, Named, Range, check};
use dtrain_common::recipe::table_schema;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value as Json, json};
use toml::{Table, Value};

use super::SampleLoss;
use super::kinds::IMPORTED;
use super::sample_losses::{ALL, Ordinal, Program};

/// The kind of the key.
pub(super) const LOSS: Kind = Kind::Shaped(
    "a loss such as \"focal\", or a table of losses such as { cross-entropy = 1.0, dice = 0.5 }",
    shape,
    is_loss,
);

/// The name of a loss.
const WORD: Kind = Kind::Choice(SampleLoss::NAMES, &[("module", IMPORTED)]);
const NAME: &str = "name";
const WEIGHT: &str = "weight";
/// What every loss takes, besides its own settings.
const OUTPUT: &str = "output";
const TARGET: &str = "target";
/// The loss that a file alone stands for, and the key of the file. It takes outputs and fields by its `inputs`.
const PROGRAM: &str = "program";
const FILE: &str = "file";

/// The losses of a sample, which are added. There is at least one, and none twice for the same output and target.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Loss(Vec<LossTerm>);

/// A loss of the sum, with the output and the target that it compares.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LossTerm {
    /// The loss with its settings.
    #[serde(flatten)]
    pub settings: SampleLoss,
    /// The output of the program by name; without it the main one, with the auxiliary ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The field of the data by name; without it the target of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

impl LossTerm {
    /// Reads a loss of this name. `value`: its factor, or a table of its settings.
    fn read(name: &str, value: &Value) -> Result<Self, String> {
        let mut settings = match value {
            Value::Table(settings) => settings.clone(),
            file @ Value::String(_) => Table::from_iter([(FILE.to_owned(), file.clone())]),
            factor => Table::from_iter([(WEIGHT.to_owned(), factor.clone())]),
        };
        let mut text = |key| settings.remove(key).and_then(|value| value.as_str().map(str::to_owned));
        let (output, target) = (text(OUTPUT), text(TARGET));
        settings.insert(NAME.to_owned(), name.into());
        let settings: Result<_, toml::de::Error> = Value::from(settings).try_into();
        Ok(Self { settings: settings.map_err(|error| error.message().to_owned())?, output, target })
    }

    fn is_plain(&self) -> bool {
        self.output.is_none() && self.target.is_none()
    }

    /// Returns the user's own loss.
    pub fn program(&self) -> Option<&Program> {
        if let SampleLoss::Program(program) = &self.settings { Some(program) } else { None }
    }

    /// Returns what no other loss of the sum has.
    fn place(&self) -> (&'static str, &Option<String>, &Option<String>) {
        (self.name(), &self.output, &self.target)
    }
}

impl Deref for LossTerm {
    type Target = SampleLoss;

    fn deref(&self) -> &SampleLoss {
        &self.settings
    }
}

impl From<SampleLoss> for LossTerm {
    fn from(settings: SampleLoss) -> Self {
        Self { settings, output: None, target: None }
    }
}

impl Loss {
    /// Returns the loss of this name, with its defaults.
    pub fn word(name: &str) -> Option<Self> {
        LossTerm::read(name, &Table::new().into()).ok().map(|term| Self(vec![term]))
    }

    /// Returns the losses that are added, in their usual order.
    pub fn terms(&self) -> &[LossTerm] {
        &self.0
    }

    /// Returns whether all losses are of the main output and the target of the task, and none is a program of the user.
    pub fn is_plain(&self) -> bool {
        self.0.iter().all(|term| term.is_plain() && term.program().is_none())
    }

    /// Returns whether a loss names an output or the field that it compares.
    pub(super) fn has_named(&self) -> bool {
        !self.0.iter().all(LossTerm::is_plain)
    }

    /// Returns whether all losses name the output and the field that they compare, or are programs of the user.
    pub fn is_of_named(&self) -> bool {
        let is_named = |term: &LossTerm| term.output.is_some() && term.target.is_some();
        self.0.iter().all(|term| is_named(term) || term.program().is_some())
    }

    /// Returns the user's own loss.
    pub fn program(&self) -> Option<&Program> {
        self.0.iter().find_map(LossTerm::program)
    }

    pub(super) fn file_mut(&mut self) -> Option<&mut PathBuf> {
        self.0.iter_mut().find_map(|term| match &mut term.settings {
            SampleLoss::Program(program) => program.file.as_mut(),
            _ => None,
        })
    }

    /// Returns the ordinal loss of the main output, which is alone there.
    pub fn ordinal(&self) -> Option<&Ordinal> {
        self.0.iter().filter(|term| term.output.is_none()).find_map(|term| match &term.settings {
            SampleLoss::Ordinal(ordinal) => Some(ordinal),
            _ => None,
        })
    }

    /// Returns the name of a loss alone with its defaults.
    fn as_word(&self) -> Option<&'static str> {
        let [term] = &self.0[..] else { return None };
        (Self::word(term.name()).as_ref() == Some(self)).then(|| term.name())
    }
}

/// Cross-entropy.
impl Default for Loss {
    fn default() -> Self {
        Self(vec![SampleLoss::CrossEntropy(Default::default()).into()])
    }
}

impl TryFrom<Value> for Loss {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        check(&LOSS, &value)?;
        let mut terms: Vec<LossTerm> = match &value {
            Value::String(word) => vec![LossTerm::read(word, &Table::new().into())?],
            _ => entries(&value)?
                .into_iter()
                .map(|(name, value)| LossTerm::read(&name, &value))
                .collect::<Result<_, _>>()?,
        };
        // One order for all recipes, so that equal losses are equal bits.
        terms.sort_by_key(|term| SampleLoss::NAMES.iter().position(|name| *name == term.name()));
        Ok(Self(terms))
    }
}

/// A loss alone with its defaults is a word. Others are a table with all settings; or a list, if one is there for several outputs.
impl Serialize for Loss {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some(word) = self.as_word() {
            return serializer.serialize_str(word);
        }
        if self.0.windows(2).any(|pair| pair[0].name() == pair[1].name()) {
            return self.0.serialize(serializer);
        }
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for term in &self.0 {
            term.settings.serialize_into(&mut map, (&term.output, &term.target))?;
        }
        map.end()
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |term: &LossTerm| match &term.output {
            Some(output) => format!("{} of {output}", term.name()),
            None => term.name().to_owned(),
        };
        f.write_str(&self.0.iter().map(name).collect::<Vec<_>>().join(" + "))
    }
}

/// Returns the JSON Schema of the key.
fn shape() -> Json {
    let settings = |loss: &Named| {
        let mut settings = table_schema(loss.keys);
        if loss.name != PROGRAM {
            settings["properties"][OUTPUT] = json!({"type": "string"});
            settings["properties"][TARGET] = json!({"type": "string"});
        }
        let factor = json!({"type": "number", "exclusiveMinimum": 0});
        let file = json!({"type": "string"});
        let all = if loss.name == PROGRAM { vec![factor, settings, file] } else { vec![factor, settings] };
        (loss.name.to_owned(), json!({"anyOf": all}))
    };
    let table: serde_json::Map<_, _> = ALL.iter().map(settings).collect();
    json!({"anyOf": [
        {"enum": SampleLoss::NAMES},
        {"type": "object", "properties": table, "additionalProperties": false, "minProperties": 1},
        {
            "type": "array",
            "items": {"type": "object", "properties": {NAME: {"enum": SampleLoss::NAMES}}, "required": [NAME]},
        },
    ]})
}

/// Returns the losses of a table or a list by name.
fn entries(value: &Value) -> Result<Vec<(String, Value)>, String> {
    let entry = |value: &Value| {
        let table = value.as_table().ok_or_else(|| {
            format!(
                "expected tables such as {{ name = \"focal\", output = \"aux\" }} in the list, got {}",
                describe(value)
            )
        })?;
        let mut table = table.clone();
        match table.remove(NAME) {
            Some(Value::String(name)) => Ok((name, table.into())),
            _ => Err("a table of the list has no name; set name to a loss, such as { name = \"focal\" }"
                .to_owned()),
        }
    };
    match value {
        Value::Table(table) => Ok(table.clone().into_iter().collect()),
        Value::Array(list) => list.iter().map(entry).collect(),
        other => Err(format!("expected a loss, got {}", describe(other))),
    }
}

fn is_loss(value: &Value) -> Result<bool, String> {
    let entries = match value {
        Value::String(_) => return check(&WORD, value).map(|()| true),
        Value::Table(_) | Value::Array(_) => entries(value)?,
        _ => return Ok(false),
    };
    if entries.is_empty() {
        return Err("the table has no loss; name at least one, such as { cross-entropy = 1.0, dice = 0.5 }"
            .to_owned());
    }
    entries.iter().try_for_each(|(name, value)| check_term(name, value))?;
    let terms = entries.iter().map(|(name, value)| LossTerm::read(name, value));
    let terms: Vec<_> = terms.collect::<Result<_, _>>()?;
    let twice = (1..terms.len()).find(|&at| terms[..at].iter().any(|term| term.place() == terms[at].place()));
    match twice.map(|at| terms[at].name()) {
        Some(name) => {
            Err(format!("`{name}` is there twice for the same output and target; remove one of the two"))
        }
        None => Ok(true),
    }
}

fn check_term(name: &str, value: &Value) -> Result<(), String> {
    let Some(loss) = ALL.iter().find(|loss| loss.name == name) else {
        let near = nearest(name, SampleLoss::NAMES);
        let hint = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
        return Err(format!("expected {}, got {name:?}{hint}", one_of(SampleLoss::NAMES)));
    };
    let settings = match value {
        Value::Table(settings) => settings,
        Value::Integer(_) | Value::Float(_) => {
            return check(&Kind::Number(Range::ABOVE_ZERO), value)
                .map_err(|message| format!("`{name}`: {message}"));
        }
        Value::String(file) if name == PROGRAM && !file.is_empty() => return Ok(()),
        _ => {
            let file = if name == PROGRAM { "its file, " } else { "" };
            return Err(format!(
                "`{name}`: expected {file}its factor, or a table of its settings, got {}",
                describe(value)
            ));
        }
    };
    let own = loss.keys.iter().map(|key| (key.name, &key.kind));
    let of_all = [(OUTPUT, &kinds::NAME), (TARGET, &kinds::NAME)].into_iter().filter(|_| name != PROGRAM);
    let known: Vec<_> = own.chain(of_all).collect();
    for (key, value) in settings {
        let Some((_, kind)) = known.iter().find(|(known, _)| known == key) else {
            let keys: Vec<_> = known.iter().map(|(key, _)| *key).collect();
            return Err(format!("`{name}` takes {}, not {key}", keys.join(", ")));
        };
        check(kind, value).map_err(|message| format!("`{name}.{key}`: {message}"))?;
    }
    Ok(())
}
