//! A recipe of any trainer: the launcher's and the run directory's view.

use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, de};
use toml::{Table, Value};

use super::draft::{Draft, Source, read};
use super::effect::WithoutEffect;
use super::keys::Settings;
use super::kinds::Key;
use super::origin::Problem;
use super::values::OwnKinds;
use super::{General, RecipeError, differences, validate};

/// A recipe whose task, `[data]` and `[model]` only its trainer understands.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct AnyRecipe {
    /// As written.
    table: Table,
    /// The word of the learning task.
    #[serde(skip_serializing)]
    task: String,
    /// The settings of every trainer.
    #[serde(skip_serializing)]
    general: General,
}

/// What a trainer says about a recipe that it accepts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Resolved {
    /// The recipe with absolute paths and all defaults, without settings that have no effect.
    pub recipe: AnyRecipe,
    /// The settings of `[data]` and `[model]` that belong to the experiment, with the values that they have if the recipe
    /// does not hold them.
    pub experiment: Vec<(String, String)>,
    /// The samples that must stay in one micro-batch, if there are such groups.
    pub group: Option<usize>,
    /// The keys whose values come from the file of the model.
    #[serde(default)]
    pub of_file: Vec<String>,
}

impl Resolved {
    /// Returns the experiment settings that differ, as (key, value here, value there).
    pub fn differences(&self, other: &AnyRecipe) -> Vec<(String, String, String)> {
        self.recipe.differences(other, &self.experiment)
    }
}

const KEYS: [Key; 15] = OwnKinds::UNKNOWN.keys();

impl AnyRecipe {
    /// Reads a recipe and checks its general settings. Defaults that depend on other settings are not filled in. See [`Source::find`] for `name_or_path`.
    ///
    /// # Errors
    /// A recipe that cannot be read, and unknown or wrong general settings.
    pub fn load(name_or_path: &str, overrides: &[String]) -> Result<Self, RecipeError> {
        Self::parse(&Source::find(name_or_path)?, overrides)
    }

    /// Works as [`AnyRecipe::load`] for a recipe that is already read.
    pub fn parse(source: &Source, overrides: &[String]) -> Result<Self, RecipeError> {
        let draft = Draft::new(source, overrides, &KEYS)?;
        draft.first(draft.check(&KEYS))?;
        let table = draft.stated().as_table().cloned().unwrap_or_default();
        let recipe = Self::from_table(table).map_err(|problem| draft.error(&problem))?;
        let mut general = recipe.general.clone();
        general.fill();
        let mut list = WithoutEffect::default();
        general.add_without_effect(&mut list);
        let mut problems = validate::without_effect(&list, draft.stated());
        problems.extend(validate::check(&general, draft.stated(), None));
        draft.first(problems)?;
        Ok(recipe)
    }

    /// Returns whether the recipe or an override states a key, such as `checkpoint.every`.
    ///
    /// # Errors
    /// A recipe that cannot be found or is not TOML.
    pub fn states(name_or_path: &str, overrides: &[String], key: &str) -> Result<bool, RecipeError> {
        Ok(Draft::new(&Source::find(name_or_path)?, overrides, &KEYS)?.states(key))
    }

    /// Reads a recipe from a table. Only types of values are checked.
    ///
    /// # Errors
    /// A missing task, and general settings of a wrong type.
    pub fn from_table(table: Table) -> Result<Self, Problem> {
        let mut rest = table.clone();
        rest.remove("data");
        rest.remove("model");
        let Some(Value::String(task)) = rest.remove("task") else {
            return Err(Problem::at("task", "missing; state the task above the first section"));
        };
        Ok(Self { table, task, general: read("", Value::Table(rest))? })
    }

    /// Returns a section as it is written; empty if the recipe lacks it.
    pub fn section(&self, name: &str) -> Table {
        self.table.get(name).and_then(Value::as_table).cloned().unwrap_or_default()
    }

    /// Returns the word of the learning task.
    pub fn task(&self) -> &str {
        &self.task
    }

    /// Returns the settings of every trainer.
    pub fn general(&self) -> &General {
        &self.general
    }

    /// Returns the recipe as TOML, which reads back as an equal one; an error if a path is not UTF-8.
    pub fn to_toml(&self) -> Result<String, RecipeError> {
        let body = toml::to_string(&self.table).map_err(|error| RecipeError::unwritable(&error))?;
        // The writer also writes integers that the reader rejects.
        body.parse::<Table>().map_err(|error| RecipeError::unwritable(&error))?;
        Ok(format!("# The recipe of this run as dtrain {} resolved it.\n{body}", env!("CARGO_PKG_VERSION")))
    }

    /// Returns the experiment settings that differ, as (key, value here, value there). `own` are those of the trainer, as
    /// [`Resolved::experiment`].
    pub fn differences(&self, other: &Self, own: &[(String, String)]) -> Vec<(String, String, String)> {
        let differing = std::iter::zip(self.experiment(own), other.experiment(own))
            .filter(|((_, mine), (_, theirs))| mine != theirs)
            .map(|((key, mine), (_, theirs))| (key, mine, theirs));
        differing
            .flat_map(|one| match one.0 == "stage" && self.stage.len() == other.stage.len() {
                true => differences::of_stages(&self.stage, &other.stage),
                false => vec![one],
            })
            .collect()
    }

    /// Returns every setting of the experiment as text, always the same keys in the same order. `own` are those of the
    /// trainer, as [`Resolved::experiment`].
    pub fn experiment(&self, own: &[(String, String)]) -> Vec<(String, String)> {
        let mut task = Settings::default();
        task.experiment("task", &self.task);
        let mut general = Settings::default();
        self.general.settings(&mut general);
        let of = |(key, default): &(String, String)| {
            let found = key.split_once('.').and_then(|(section, key)| self.table.get(section)?.get(key));
            let found = found.cloned().map(differences::without_programs);
            (key.clone(), found.map_or_else(|| default.clone(), |value| value.to_string()))
        };
        let named = |settings: Settings| settings.0.into_iter().map(|(key, value)| (key.to_owned(), value));
        named(task).chain(own.iter().map(of)).chain(named(general)).collect()
    }
}

/// A recipe has the general settings and their arithmetic, besides what is the trainer's.
impl Deref for AnyRecipe {
    type Target = General;

    fn deref(&self) -> &General {
        &self.general
    }
}

impl<'de> Deserialize<'de> for AnyRecipe {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = Table::deserialize(deserializer)?;
        Self::from_table(table).map_err(de::Error::custom)
    }
}
