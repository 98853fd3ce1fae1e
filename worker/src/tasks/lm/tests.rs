#![allow(clippy::unwrap_used)]
use tch::Device;

use std::path::Path;

use super::*;
use crate::data::{Column, load_one};
use crate::models::Registry;

const RECIPE: &str = "task = \"lm\"\n[data]\nkind = \"generated\"\ntrain_samples = 7\ntest_samples = 3\n[model]\nwidth = 8\n\
                      depth = 1\nheads = 2\ncontext = 16\n[train]\nsteps = 1\n";

fn build(recipe: &Recipe, text: Text) -> Result<Lm, TaskError> {
    let mut registry = Registry::new(Device::Cpu);
    let context = BuildContext { registry: &mut registry, local_ranks: 1 };
    Lm::build(recipe, text, context)
}

#[test]
fn every_token_weighs_the_same() {
    tch::manual_seed(2);
    let task = build(&Recipe::parse("test", RECIPE, &[]).unwrap(), Text::Generated).unwrap();
    let set = &task.facts().train;
    let samples: Vec<Vec<Column>> =
        (0..3).map(|index| load_one(set.as_ref(), index, None).unwrap()).collect();
    let column = |field: usize| {
        let values = samples.iter().flat_map(|sample| sample[field].as_i64().unwrap());
        Column::I64(values.copied().collect())
    };
    let decoded = crate::data::Batch {
        fields: set.fields().into(),
        columns: vec![column(0), column(1)],
        weights: vec![1.0, 0.0, 1.0],
        ..Default::default()
    };
    let batch = Batch::new(&decoded, Device::Cpu).unwrap();
    let loss = task.loss(&batch, Mode::Evaluate).unwrap();
    assert_eq!(loss.weight.double_value(&[]), 32.0);
    assert_eq!(loss.sums.size(), [0]);
    let Model::Built(model) = &task.model else { panic!("a built-in network") };
    let logits = model.forward(batch.field("tokens").unwrap(), false).unwrap();
    let targets = batch.field("targets").unwrap();
    let first = cross_entropy(&logits.narrow(0, 0, 1), &targets.narrow(0, 0, 1)).unwrap();
    let targets = targets.unsqueeze(-1);
    let losses = logits.log_softmax(-1, Kind::Double).gather(-1, &targets, false);
    let by_hand = -(losses.get(0).sum(Kind::Double) + losses.get(2).sum(Kind::Double)).double_value(&[]);
    assert!((loss.sum.double_value(&[]) - by_hand).abs() < 1e-4);
    let by_hand = -losses.get(0).sum(Kind::Double).double_value(&[]);
    assert!((first.double_value(&[]) - by_hand).abs() < 1e-4, "as for logits of a program");
}

#[test]
fn generated_text_has_the_recipe_s_sample_counts() {
    for tokenizer in ["chars", "bytes"] {
        let sets = [format!("data.tokenizer=\"{tokenizer}\"")];
        let recipe = Recipe::parse("test", RECIPE, &sets).unwrap();
        let task = build(&recipe, Text::Generated).unwrap();
        assert_eq!((task.facts().train.len(), task.facts().test.len()), (7, 3));
        assert_eq!(task.facts().weight_per_sample, 16.0);
        let columns = load_one(task.facts().test.as_ref(), 2, None).unwrap();
        let tokens = columns[1].as_i64().unwrap().iter().map(|&token| token as u32);
        let text = task.vocabulary().decode(tokens);
        assert!(text.is_ascii() && text.len() == 16, "{text:?}");
        let totals = Totals { loss_sum: 16.0 * 8f64.ln(), weight: 16.0, sums: Vec::new() };
        let [("perplexity", perplexity), (name, bits)] = task.figures(&totals)[..] else {
            panic!("two figures");
        };
        assert!((perplexity - 8.0).abs() < 1e-9 && (bits - 3.0).abs() < 1e-12);
        assert_eq!(name == "bits_per_char", tokenizer == "chars");
        // A saved model can be used without its training text.
        let kept: Vocabulary =
            serde_json::from_value(task.facts().extra.clone()["vocabulary"].clone()).unwrap();
        assert_eq!(&kept, task.vocabulary());
        assert_eq!(kept.size(), task.facts().classes);
    }
}

#[test]
fn short_or_missing_texts_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("short.txt");
    std::fs::write(&path, "too short a text").unwrap();
    let survey = |root: &Path| {
        let text = RECIPE.replace(
            "kind = \"generated\"\ntrain_samples = 7\ntest_samples = 3\n",
            &format!("root = {root:?}\n"),
        );
        let recipe = Recipe::parse("test", &text, &[]).unwrap();
        SurveyContext::with_log(|context| Lm::survey(&recipe, context)).and_then(|text| build(&recipe, text))
    };
    let error = survey(&path).err().unwrap().to_string();
    assert!(error.contains("16") && error.contains("context"), "{error}");
    let error = survey(&folder.path().join("absent.txt")).err().unwrap().to_string();
    assert!(error.contains("absent.txt"), "{error}");
}
