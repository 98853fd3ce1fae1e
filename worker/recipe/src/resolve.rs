//! What the trainer says about a recipe.

use dtrain_common::question::{ResolveAnswer, ResolveQuestion, Unresolved};
use dtrain_common::recipe::keys::{Section, Settings};
use dtrain_common::recipe::kinds::Key;
use dtrain_common::recipe::{AnyRecipe, General, RecipeError, Resolved, schema};
use toml::{Table, Value};

use super::load::keys;
use super::{Data, Model, Recipe};

impl Recipe {
    /// Answers a launcher. `custom`: see [`Recipe::with_custom`].
    ///
    /// # Errors
    /// A recipe that is wrong, or, if the question checks them, files that cannot be read.
    pub fn answer(
        asked: &Unresolved,
        question: &ResolveQuestion,
        custom: Option<&'static [Key]>,
    ) -> ResolveAnswer {
        let recipe = Self::with_custom(&asked.source, &asked.overrides, custom)?;
        if question.check_paths {
            recipe.check_paths()?;
        }
        recipe.resolved()
    }

    /// Returns the recipe as every part of dtrain reads it, without settings that have no effect.
    ///
    /// # Errors
    /// A path that is not UTF-8, or a number beyond TOML's.
    pub fn resolved(&self) -> Result<Resolved, RecipeError> {
        let mut experiment = Settings::default();
        Data::default().settings(&mut experiment);
        // A saved recipe may leave out the usual loss.
        let loss = self.task.usual_loss(self.target()).unwrap_or_default();
        Model { loss, ..Model::default() }.settings(&mut experiment);
        let experiment = experiment.0.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let group = self.model.batchnorm.group();
        Ok(Resolved { recipe: self.plain()?, experiment, group, of_file: self.of_file.clone() })
    }

    /// Returns this recipe with the general settings of another recipe of the same experiment.
    pub fn with_general_of(&self, other: &AnyRecipe) -> Self {
        Self { general: other.general().clone(), ..self.clone() }
    }

    /// Returns the JSON Schema of recipes. `custom`: see [`Recipe::with_custom`].
    ///
    /// # Errors
    /// Defaults that JSON cannot hold.
    pub fn schema(custom: Option<&'static [Key]>) -> Result<serde_json::Value, serde_json::Error> {
        let mut defaults = serde_json::to_value(General::default())?;
        defaults["data"] = serde_json::to_value(Data::default())?;
        defaults["model"] = serde_json::to_value(Model::default())?;
        Ok(schema(&keys(custom), &defaults))
    }

    /// Returns the recipe as TOML, which reads back as an equal one.
    ///
    /// # Errors
    /// As [`Recipe::resolved`].
    pub fn to_toml(&self) -> Result<String, RecipeError> {
        self.plain()?.to_toml()
    }

    /// Returns [`Resolved::recipe`].
    ///
    /// # Errors
    /// As [`Recipe::resolved`].
    pub fn plain(&self) -> Result<AnyRecipe, RecipeError> {
        let unwritable = |error: toml::ser::Error| RecipeError::unwritable(&error);
        let mut table = Table::try_from(&self.general).map_err(unwritable)?;
        table.insert("task".to_owned(), self.task.as_str().into());
        for (name, section) in
            [("data", Table::try_from(&self.data)), ("model", Table::try_from(&self.model))]
        {
            table.insert(name.to_owned(), section.map_err(unwritable)?.into());
        }
        for (key, _) in self.settings_without_effect() {
            remove(&mut table, key);
        }
        if self.leaves_loss_out() {
            remove(&mut table, "model.loss");
        }
        AnyRecipe::from_table(table).map_err(|problem| RecipeError::unwritable(&problem))
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
