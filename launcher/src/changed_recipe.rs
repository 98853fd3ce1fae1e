//! Changes of a recipe that the launcher makes: for `--try` and `--overfit`.

use dtrain_common::recipe::AnyRecipe;
use toml::{Table, Value};

/// Returns a recipe as it is written.
pub(crate) fn table_of(recipe: &AnyRecipe) -> Table {
    match Value::try_from(recipe) {
        Ok(Value::Table(table)) => table,
        // A recipe is a table.
        _ => Table::new(),
    }
}

/// Changes a section, which is made if it is not there.
pub(crate) fn change(table: &mut Table, name: &str, change: impl FnOnce(&mut Table)) {
    if let Value::Table(section) = table.entry(name).or_insert_with(|| Table::new().into()) {
        change(section);
    }
}

/// Sets the steps of the run, or of each of its stages, in place of epochs; `more` changes the stages further.
pub(crate) fn set_steps(table: &mut Table, steps: i64, more: impl Fn(&mut Table)) {
    let shorten = |section: &mut Table| {
        section.remove("epochs");
        section.insert("steps".into(), steps.into());
    };
    match table.get_mut("stage").and_then(Value::as_array_mut) {
        Some(stages) => stages.iter_mut().filter_map(Value::as_table_mut).for_each(|stage| {
            shorten(stage);
            more(stage);
        }),
        None => change(table, "train", shorten),
    }
}
