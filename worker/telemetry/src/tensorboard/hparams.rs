//! The settings of the recipe for TensorBoard's plugin hparams, which compares runs.

use std::collections::BTreeMap;

use prost::Message;
use toml::{Table, Value as Toml};

use super::lines::of_plugin;
use super::message::{
    Constant, Content, Declared, End, Figure, FigureName, HParams, Kind, Part, Setting, Shape, Start, Tensor,
    Value,
};

/// Sections that do not make an experiment.
const LEFT_OUT: [&str; 2] = ["log", "checkpoint"];
/// The form of the records.
const NAME: &str = "hparams";

/// Returns the records of the beginning: what is compared, and the settings of this run.
pub(super) fn beginning(recipe: &str, figures: &[String], time: f64) -> [Value; 2] {
    let settings = settings(recipe);
    let setting = |(name, constant): (&String, &Constant)| Setting {
        name: name.clone(),
        kind: match constant.kind {
            Some(Kind::Flag(_)) => 2,
            Some(Kind::Number(_)) => 3,
            _ => 1,
        },
    };
    let figure = |tag: &String| Figure { name: Some(FigureName { tag: tag.clone() }) };
    let declared = Declared {
        settings: settings.iter().map(setting).collect(),
        figures: figures.iter().map(figure).collect(),
    };
    [
        value("_hparams_/experiment", Part::Experiment(declared)),
        value("_hparams_/session_start_info", Part::Start(Start { settings, time })),
    ]
}

/// Returns the record of the end.
pub(super) fn end(is_success: bool, time: f64) -> Value {
    value("_hparams_/session_end_info", Part::End(End { status: if is_success { 1 } else { 2 }, time }))
}

fn value(tag: &str, part: Part) -> Value {
    let content = HParams { part: Some(part) }.encode_to_vec();
    // The content is in the metadata; a value needs a tensor.
    let nothing = Tensor {
        dtype: 1,
        shape: Some(Shape { lengths: vec![super::message::Length { size: 0 }] }),
        texts: Vec::new(),
    };
    Value {
        tag: tag.to_owned(),
        metadata: Some(of_plugin(NAME, content)),
        content: Some(Content::Tensor(nothing)),
    }
}

/// Returns the settings of a recipe by their dotted keys.
fn settings(recipe: &str) -> BTreeMap<String, Constant> {
    let mut found = BTreeMap::new();
    let table: Table = recipe.parse().unwrap_or_default();
    for (name, value) in table.iter().filter(|(name, _)| !LEFT_OUT.contains(&name.as_str())) {
        add(name.clone(), value, &mut found);
    }
    found
}

fn add(key: String, value: &Toml, found: &mut BTreeMap<String, Constant>) {
    let kind = match value {
        Toml::Table(table) => {
            return table.iter().for_each(|(name, value)| add(format!("{key}.{name}"), value, found));
        }
        Toml::Boolean(flag) => Kind::Flag(*flag),
        Toml::Integer(number) => Kind::Number(*number as f64),
        Toml::Float(number) => Kind::Number(*number),
        Toml::String(text) => Kind::Text(text.clone()),
        other => Kind::Text(other.to_string()),
    };
    found.insert(key, Constant { kind: Some(kind) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_dotted_keys() {
        let recipe = "task = \"lm\"\n[optim]\nlr = 0.1\nbetas = [0.9, 0.99]\nschedule = { warmup = 3 }\n[log]\npictures = 4\n";
        let found = settings(recipe);
        let text = |text: &str| Kind::Text(text.to_owned());
        let expected = [
            ("optim.betas", text("[0.9, 0.99]")),
            ("optim.lr", Kind::Number(0.1)),
            ("optim.schedule.warmup", Kind::Number(3.0)),
            ("task", text("lm")),
        ];
        let found: Vec<_> =
            found.into_iter().filter_map(|(key, constant)| Some((key, constant.kind?))).collect();
        assert_eq!(found, expected.map(|(key, kind)| (key.to_owned(), kind)));
    }
}
