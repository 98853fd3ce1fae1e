//! `model.loss`: a word, or a table of losses.

use std::fmt;

use dtrain_common::recipe::hints::{describe, nearest, one_of};
use dtrain_common::recipe::kinds::{Kind, Range, check};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use toml::{Table, Value};

use super::SampleLoss;
use super::kinds::IMPORTED;
use super::sample_losses::ALL;

/// The kind of the key.
pub(super) const LOSS: Kind = Kind::Other(
    "a loss such as \"focal\", or a table of losses such as { cross-entropy = 1.0, dice = 0.5 }",
    &["string", "object"],
    is_loss,
);

/// The name of a loss.
const WORD: Kind = Kind::Choice(SampleLoss::NAMES, &[("module", IMPORTED)]);
const NAME: &str = "name";
const WEIGHT: &str = "weight";

/// The losses of a sample, which are added. There is at least one, and none twice.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Loss(Vec<SampleLoss>);

impl Loss {
    /// Returns the loss of this name, with its defaults.
    pub fn word(name: &str) -> Option<Self> {
        Self::term(name, Table::new()).ok().map(|term| Self(vec![term]))
    }

    /// Returns the losses that are added, in their usual order.
    pub fn terms(&self) -> &[SampleLoss] {
        &self.0
    }

    /// Returns the name of a loss alone with its defaults.
    fn as_word(&self) -> Option<&'static str> {
        let [term] = &self.0[..] else { return None };
        (Self::word(term.name()).as_ref() == Some(self)).then(|| term.name())
    }

    fn term(name: &str, mut settings: Table) -> Result<SampleLoss, String> {
        settings.insert(NAME.to_owned(), name.into());
        Value::from(settings).try_into().map_err(|error: toml::de::Error| error.message().to_owned())
    }
}

/// Cross-entropy.
impl Default for Loss {
    fn default() -> Self {
        Self(vec![SampleLoss::CrossEntropy(Default::default())])
    }
}

impl TryFrom<Value> for Loss {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        check(&LOSS, &value)?;
        let stated = match value {
            Value::String(word) => return Self::term(&word, Table::new()).map(|term| Self(vec![term])),
            Value::Table(stated) => stated,
            other => return Err(format!("expected a loss, got {}", describe(&other))),
        };
        let mut terms = Vec::new();
        // One order for all recipes, so that equal losses are equal bits.
        for name in SampleLoss::NAMES {
            let settings = match stated.get(*name) {
                None => continue,
                Some(Value::Table(settings)) => settings.clone(),
                Some(factor) => Table::from_iter([(WEIGHT.to_owned(), factor.clone())]),
            };
            terms.push(Self::term(name, settings)?);
        }
        Ok(Self(terms))
    }
}

/// A loss alone with its defaults is a word. Others are a table with all settings.
impl Serialize for Loss {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some(word) = self.as_word() {
            return serializer.serialize_str(word);
        }
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for term in &self.0 {
            term.serialize_into(&mut map)?;
        }
        map.end()
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(SampleLoss::name).collect();
        f.write_str(&names.join(" + "))
    }
}

fn is_loss(value: &Value) -> Result<bool, String> {
    match value {
        Value::String(_) => check(&WORD, value).map(|()| true),
        Value::Table(table) if table.is_empty() => {
            Err("the table has no loss; name at least one, such as { cross-entropy = 1.0, dice = 0.5 }"
                .to_owned())
        }
        Value::Table(table) => {
            table.iter().try_for_each(|(name, value)| check_term(name, value)).map(|()| true)
        }
        _ => Ok(false),
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
        _ => {
            return Err(format!(
                "`{name}`: expected its factor, or a table of its settings, got {}",
                describe(value)
            ));
        }
    };
    for (key, value) in settings {
        let Some(known) = loss.keys.iter().find(|known| known.name == key) else {
            let keys: Vec<_> = loss.keys.iter().map(|key| key.name).collect();
            return Err(format!("`{name}` takes {}, not {key}", keys.join(", ")));
        };
        check(&known.kind, value).map_err(|message| format!("`{name}.{key}`: {message}"))?;
    }
    Ok(())
}
