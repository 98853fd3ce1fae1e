#![allow(clippy::unwrap_used)]
use tch::{Device, Kind, Tensor};

use std::path::Path;

use super::*;
use crate::data::CacheBudget;
use crate::data::{Column, load_one};
use crate::models::Registry;

const RECIPE: &str = "task = \"lm\"\n[data]\nkind = \"generated\"\ntrain_samples = 7\ntest_samples = 3\n[model]\nwidth = 8\n\
                      depth = 1\nheads = 2\ncontext = 16\n[train]\nsteps = 1\n";

fn build(recipe: &Recipe, text: LmSurvey) -> Result<Lm, TaskError> {
    let mut registry = Registry::new(Device::Cpu);
    let context = BuildContext { registry: &mut registry, local_ranks: 1, cache: CacheBudget::default() };
    Lm::build(recipe, text, context)
}

#[test]
fn every_token_weighs_the_same() {
    tch::manual_seed(2);
    let task = build(&Recipe::parse("test", RECIPE, &[]).unwrap(), LmSurvey::Text(Text::Generated)).unwrap();
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
    let (of_first, no_target) = (|all: &Tensor| all.narrow(0, 0, 1), Gpt::NO_TARGET);
    let first = tokens::cross_entropy(&of_first(&logits), &of_first(targets), no_target).unwrap();
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
        let task = build(&recipe, LmSurvey::Text(Text::Generated)).unwrap();
        assert_eq!((task.facts().train.len(), task.facts().test.len()), (7, 3));
        assert_eq!(task.facts().weight_per_sample, 16.0);
        let columns = load_one(task.facts().test.as_ref(), 2, None).unwrap();
        let tokens = columns[1].as_i64().unwrap().iter().map(|&token| token as u32);
        let text = task.vocabulary().decode(tokens);
        assert!(text.is_ascii() && text.len() == 16, "{text:?}");
        let totals = Totals { loss_sum: 16.0 * 8f64.ln(), weight: 16.0, sums: Vec::new() };
        let [("perplexity", perplexity), (name, bits)] = Task::figures(&task, &totals)[..] else {
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

/// Builds the task for the lines of a text, and a batch of its first three training samples, the second unreadable.
fn of_lines(text: &str, sets: &[&str]) -> (Lm, Batch) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lines.txt");
    std::fs::write(&path, text).unwrap();
    let recipe = RECIPE.replace(
        "kind = \"generated\"\ntrain_samples = 7\ntest_samples = 3\n",
        &format!("root = {path:?}\ndocuments = \"lines\"\n"),
    );
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    let recipe = Recipe::parse("test", &recipe, &sets).unwrap();
    let text = SurveyContext::with_log(|context| Lm::survey(&recipe, context)).unwrap();
    tch::manual_seed(2);
    let task = build(&recipe, text).unwrap();
    let set = &task.facts().train;
    let samples: Vec<Vec<Column>> =
        (0..3).map(|index| load_one(set.as_ref(), index, None).unwrap()).collect();
    let column = |field: usize| {
        let values = samples.iter().flat_map(|sample| sample[field].as_i64().unwrap());
        Column::I64(values.copied().collect())
    };
    let decoded = crate::data::Batch {
        fields: set.fields().into(),
        columns: (0..4).map(column).collect(),
        weights: vec![1.0, 0.0, 1.0],
        ..Default::default()
    };
    let batch = Batch::new(&decoded, Device::Cpu).unwrap();
    (task, batch)
}

#[test]
fn padding_is_left_out_without_a_change_of_the_loss() {
    let (task, mut batch) = of_lines("a cat\nthe red dog\nabc\nsee\n", &[]);
    assert_eq!((batch.longest, task.facts().is_capturable), (Some(11), false));
    assert_eq!(task.facts().weight_per_sample, (4.0 + 10.0 + 2.0) / 3.0);
    let columns = |batch: &Batch| {
        let tokens = batch.field("tokens").unwrap();
        task.without_padding(batch, [tokens, tokens]).unwrap()[0].size()
    };
    assert_eq!(columns(&batch), [3, 16]);
    batch.longest = Some(3);
    assert_eq!(columns(&batch), [3, 8]);
    // The second sample, which is longer, is unreadable.
    let trimmed = task.loss(&batch, Mode::Train).unwrap();
    batch.longest = None;
    assert_eq!(columns(&batch), [3, 16]);
    let whole = task.loss(&batch, Mode::Train).unwrap();
    assert_eq!((trimmed.weight.double_value(&[]), whole.weight.double_value(&[])), (6.0, 6.0));
    let [trimmed, whole] = [trimmed, whole].map(|loss| loss.sum.double_value(&[]));
    assert!((trimmed - whole).abs() < 1e-6 * whole, "{trimmed} {whole}");
    assert_eq!(Gpt::NO_TARGET, crate::data::text_documents::NO_TARGET);
}

#[test]
fn packed_documents_count_their_targets() {
    let text = "a cat\nthe red dog\nabc\n".repeat(4);
    let (task, batch) = of_lines(&text, &["data.pack=true", "data.test_fraction=0.3"]);
    let set = &task.facts().train;
    let targets = |index: usize| {
        let columns = load_one(set.as_ref(), index, None).unwrap();
        columns[1].as_i64().unwrap().iter().filter(|&&target| target >= 0).count() as f64
    };
    let loss = task.loss(&batch, Mode::Evaluate).unwrap();
    assert_eq!(loss.weight.double_value(&[]), targets(0) + targets(2));
    let all: f64 = (0..set.len()).map(targets).sum();
    assert_eq!(task.facts().weight_per_sample, all / set.len() as f64);
    assert!(task.facts().is_capturable, "the same work for every batch");
}

#[test]
fn buckets_are_the_order_of_documents_by_length() {
    let text = "a cat\nthe red dog\nabc\n".repeat(30);
    let (task, _) = of_lines(&text, &["data.sampler=buckets", "train.effective_batch=9"]);
    let order = task.facts().sampling().epoch(1, 0);
    let length = |at: usize| {
        let columns = load_one(task.facts().train.as_ref(), order[at].sample as usize, None).unwrap();
        columns[2].as_i64().unwrap().iter().sum::<i64>()
    };
    assert_eq!(order.len(), 81);
    for step in 0..9 {
        assert!((1..9).all(|at| length(9 * step) == length(9 * step + at)), "step {step}");
    }
}
