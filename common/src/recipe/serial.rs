//! Writing and reading a resolved recipe, without settings that have no effect.

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use toml::{Table, Value};

use super::{Recipe, RecipeError};

/// A recipe with all of its settings; `Recipe`'s own `serialize` is the derived one.
#[derive(Serialize)]
struct Whole<'a>(#[serde(with = "Recipe")] &'a Recipe);

impl Serialize for Recipe {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut table = Table::try_from(Whole(self)).map_err(ser::Error::custom)?;
        for (key, _) in self.settings_without_effect() {
            remove(&mut table, key);
        }
        table.serialize(serializer)
    }
}

fn remove(table: &mut Table, dotted: &str) {
    match dotted.split_once('.') {
        None => {
            table.remove(dotted);
        }
        Some((section, rest)) => {
            if let Some(inner) = table.get_mut(section).and_then(Value::as_table_mut) {
                remove(inner, rest);
            }
        }
    }
}

impl<'de> Deserialize<'de> for Recipe {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Recipe::deserialize(deserializer)
    }
}

impl Recipe {
    /// Returns the recipe as TOML, which reads back as an equal one; an error if a path is not UTF-8.
    pub fn to_toml(&self) -> Result<String, RecipeError> {
        let body = toml::to_string(self).map_err(|error| unwritable(&error))?;
        // The writer also writes integers that the reader rejects.
        body.parse::<Table>().map_err(|error| unwritable(&error))?;
        Ok(format!("# The recipe of this run as dtrain {} resolved it.\n{body}", env!("CARGO_PKG_VERSION")))
    }
}

fn unwritable(error: &dyn std::fmt::Display) -> RecipeError {
    RecipeError::whole("the resolved recipe", format!("cannot be written as TOML: {error}"))
}
