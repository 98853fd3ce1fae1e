//! From text and overrides to a recipe: parse, override, check against the keys, read, resolve, validate.

use dtrain_common::recipe::keys::Section;
use dtrain_common::recipe::kinds::{self, Key, Kind};
use dtrain_common::recipe::{AnyRecipe, Draft, OwnKinds, Problem, RecipeError, Source, read};
use toml::{Table, Value};

use super::loss::LOSS;
use super::tasks::OTHER_TASKS;
use super::{Data, Model, Recipe, Task, defaults, imported, mask_colors, paths, validate};

/// What dtrain's trainer takes.
pub(super) const OWN: OwnKinds = OwnKinds {
    task: Kind::Choice(Task::NAMES, OTHER_TASKS),
    data: Kind::Section(Data::KEYS),
    model: Kind::Section(Model::KEYS),
    custom: Kind::Free,
};

/// Returns every key of a recipe. `custom`: the keys of `[custom]`, if they are known.
pub(super) fn keys(custom: Option<&'static [Key]>) -> [Key; 15] {
    OwnKinds { custom: custom.map_or(Kind::Free, Kind::Section), ..OWN }.keys()
}

impl Recipe {
    /// Loads the recipe of a file, else the embedded recipe of that name. `overrides` are `a.b=value` with a
    /// TOML value or bare text, whichever the key takes; they apply in order, before any check. Errors name file, line and key.
    pub fn load(name_or_path: &str, overrides: &[String]) -> Result<Self, RecipeError> {
        Self::of(&Source::find(name_or_path)?, overrides)
    }

    /// Reads a recipe from `text`; errors name it `source_name`. See [`Recipe::load`].
    pub fn parse(source_name: &str, text: &str, overrides: &[String]) -> Result<Self, RecipeError> {
        Self::of(&Source { name: source_name.to_owned(), text: text.to_owned() }, overrides)
    }

    /// Works as [`Recipe::load`] for a recipe that is already read.
    pub fn of(source: &Source, overrides: &[String]) -> Result<Self, RecipeError> {
        Self::with_custom(source, overrides, None)
    }

    /// Works as [`Recipe::of`] for a user's trainer whose `[custom]` takes these keys.
    pub fn with_custom(
        source: &Source,
        overrides: &[String],
        custom: Option<&'static [Key]>,
    ) -> Result<Self, RecipeError> {
        let keys = keys(custom);
        let draft = Draft::new(source, overrides, &keys)?;
        let mut problems = draft.check(&keys);
        problems.extend(missing(&draft));
        problems.extend(losses(draft.stated()));
        draft.first(problems)?;
        let table = draft.stated().as_table().cloned().unwrap_or_default();
        let mut recipe = Self::from_table(table).map_err(|problem| draft.error(&problem))?;
        recipe.general.fill();
        fill_losses(&mut recipe);
        draft.first(mask_colors::read(&mut recipe))?;
        defaults::fill(&mut recipe, &|key| draft.states(key));
        draft.first(paths::make_absolute(&mut recipe))?;
        let of_file = imported::fill(&mut recipe, &|key| draft.states(key));
        recipe.of_file = of_file.map_err(|problem| draft.error(&problem))?;
        if !recipe.of_file.is_empty() {
            // What depends on them.
            let of_file = recipe.of_file.clone();
            defaults::fill(&mut recipe, &|key| draft.states(key) || of_file.iter().any(|of| of == key));
        }
        draft.first(validate::check(&recipe, &draft))?;
        Ok(recipe)
    }

    fn from_table(table: Table) -> Result<Self, Problem> {
        let stated = AnyRecipe::from_table(table)?;
        let task = Task::named(stated.task()).ok_or_else(|| Problem::at("task", "is unknown"))?;
        let [data, model] = ["data", "model"].map(|name| stated.section(name).into());
        let general = stated.general().clone();
        Ok(Self {
            task,
            data: read("data", data)?,
            model: read("model", model)?,
            general,
            of_file: Vec::new(),
        })
    }
}

/// Returns the missing keys of a recipe that this trainer needs.
fn missing(draft: &Draft<'_>) -> Vec<Problem> {
    // A user's trainer may make its samples without a setting.
    let task = draft.stated().get("task").and_then(Value::as_str).and_then(Task::named);
    let custom = task.is_some_and(|task| task.facts().is_own);
    let needed = [
        ("task", true, "write task = \"classify\" above the first section"),
        ("data", !custom, "add [data] with root = \"...\", or with kind = \"generated\""),
    ];
    let missing = needed.into_iter().filter(|(key, needed, _)| *needed && !draft.states(key));
    missing.map(|(key, _, remedy)| Problem::at(key, format!("missing; {remedy}"))).collect()
}

/// Writes the losses of stages with all their settings, so that equal ones are equal.
fn fill_losses(recipe: &mut Recipe) {
    for number in 0..recipe.stage.len() {
        if let Some(loss) = recipe.loss_of_stage(number) {
            recipe.general.stage[number].loss = Value::try_from(loss).ok();
        }
    }
}

/// Returns the losses of stages that are none.
fn losses(stated: &Value) -> Vec<Problem> {
    let stages = stated.get("stage").and_then(Value::as_array).into_iter().flatten().enumerate();
    let wrong = |(number, stage): (usize, &Value)| {
        let message = kinds::check(&LOSS, stage.get("loss")?).err()?;
        Some(Problem::at(&format!("stage[{number}].loss"), message))
    };
    stages.filter_map(wrong).collect()
}
