#![allow(clippy::unwrap_used)]

mod resized;
mod stages;

use std::collections::HashSet;
use std::sync::Arc;

use dtrain_recipe::mixes::Mixup;
use dtrain_recipe::{Mix, MixBy};
use proptest::prelude::*;

use super::*;
use crate::data::{Blend, Mixing};

impl Default for Needs {
    fn default() -> Self {
        Self {
            min_micro_batch: 1,
            is_program_min: false,
            max_micro_batch: None,
            batch_norms: BatchNorms::None,
            depends: None,
            undivided: Vec::new(),
            has_partners: false,
            group: None,
        }
    }
}

/// A queue in buffers needs steps of one part; groups need enough samples, also the last one.
#[test]
fn undivided_steps_and_small_groups_are_checked() {
    let queue = Needs { undivided: vec!["queue".into(), "pointer".into()], ..Needs::default() };
    let plan = |more: &str, ranks, needs: &Needs| RunPlan::new(&recipe(8, more), ranks, 20, needs);
    let whole = plan("", 1, &queue).unwrap();
    assert!(whole.warnings[0].contains("training writes `queue`, `pointer`"), "{:?}", whole.warnings);
    assert!(whole.with_smaller_micro_batches(0).is_none());
    assert_eq!((queue.least_micro_batch(8), Needs::default().least_micro_batch(8)), (8, 1));
    for (more, ranks) in [("", 2), ("[memory]\nmicro_batch = 4", 1)] {
        let error = plan(more, ranks, &queue).unwrap_err().to_string();
        assert!(error.contains("on one rank with memory.micro_batch = 8"), "{error}");
        assert!(plan(more, ranks, &Needs::default()).is_ok());
    }
    let grouped = |group, least| {
        let recipe = recipe(9, &format!("[model]\nbatchnorm = \"group:{group}\""));
        let needs =
            Needs { batch_norms: BatchNorms::Grouped, group: Some((group, least)), ..Needs::default() };
        RunPlan::new(&recipe, 1, 18, &needs)
    };
    assert!(grouped(4, 1).is_ok() && grouped(3, 2).is_ok() && grouped(1, 1).is_ok());
    for group in [1, 4] {
        let error = grouped(group, 2).unwrap_err().to_string();
        assert!(error.contains("a BatchNorm group of 1 is too small"), "{error}");
    }
}

fn recipe(batch: usize, more: &str) -> Recipe {
    let text = format!(
        "task = \"classify\"\n[data]\nkind = \"generated\"\n[train]\neffective_batch = {batch}\nepochs = 3\n{more}"
    );
    Recipe::parse("test", &text, &[]).unwrap()
}

/// Returns the samples of every step, loaded by all ranks together.
fn steps(plan: &RunPlan, ranks: usize, done: u64) -> Vec<Vec<u32>> {
    let sampling = Sampling::shuffled(plan.train_samples as usize);
    let mut work: Vec<_> = (0..ranks).map(|rank| plan.micro_batches(rank, done, &sampling)).collect();
    (done..plan.total_steps)
        .map(|step| {
            let position = plan.position(step);
            let of_rank = |(rank, work): (usize, &mut _)| {
                let micro_steps = plan.micro_ranges(position, rank).len();
                Iterator::take(work, micro_steps)
                    .flat_map(|micro: MicroBatch| micro.places)
                    .map(|place| place.sample)
                    .collect::<Vec<_>>()
            };
            work.iter_mut().enumerate().flat_map(of_rank).collect()
        })
        .collect()
}

proptest! {
    #[test]
    fn steps_have_the_same_samples_for_every_partition(
        samples in 1u64..200, batch in 1usize..40, ranks in 1usize..6, micro in 1usize..12, drop: bool
    ) {
        prop_assume!(ranks <= batch && (!drop || samples >= batch as u64));
        let last = if drop { "last_batch = \"drop\"" } else { "" };
        let cut = format!("{last}\n[memory]\nmicro_batch = {micro}");
        let one = RunPlan::new(&recipe(batch, last), 1, samples, &Needs::default()).unwrap();
        let many = RunPlan::new(&recipe(batch, &cut), ranks, samples, &Needs::default()).unwrap();
        let whole = steps(&one, 1, 0);
        prop_assert_eq!(&whole, &steps(&many, ranks, 0));
        let seen: usize = whole.iter().map(Vec::len).sum();
        prop_assert_eq!(seen as u64, many.samples_after(many.total_steps));

        // A resumed run continues with the next sample, on any number of ranks.
        let done = one.total_steps / 2;
        prop_assert_eq!(&whole[done as usize..], &steps(&many, ranks, done)[..]);
        let before: usize = whole[..done as usize].iter().map(Vec::len).sum();
        prop_assert_eq!(before as u64, many.samples_after(done));
    }
}

#[test]
fn invalid_plans_are_errors_with_remedies() {
    let plan = |recipe: &Recipe, ranks, samples, min_micro_batch| {
        let needs = Needs { min_micro_batch, ..Needs::default() };
        RunPlan::new(recipe, ranks, samples, &needs)
    };
    let error = plan(&recipe(8, ""), 9, 100, 1).unwrap_err();
    assert!(matches!(error, PlanError::Batch(_)), "{error}");
    let error = plan(&recipe(8, "last_batch = \"drop\""), 1, 7, 1).unwrap_err();
    assert!(matches!(error, PlanError::NoSteps { samples: 7, .. }), "{error}");
    let warmup = "[optim]\nschedule = { name = \"cosine\", warmup = \"50 steps\" }";
    let error = plan(&recipe(8, warmup), 1, 16, 1).unwrap_err();
    assert!(matches!(error, PlanError::Warmup { warmup: 50, total: 6 }), "{error}");
    // 17 samples leave one sample for the last step.
    let error = plan(&recipe(8, ""), 1, 17, 2).unwrap_err();
    assert!(matches!(error, PlanError::MicroBatch { smallest: 1, .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("last_batch") && text.contains("BatchNorm") && !text.contains("model.file"),
        "{text}"
    );
    let program = Needs { min_micro_batch: 2, is_program_min: true, ..Needs::default() };
    let text = RunPlan::new(&recipe(8, ""), 1, 17, &program).unwrap_err().to_string();
    assert!(text.contains("model.file is valid only for more") && !text.contains("BatchNorm"), "{text}");
    assert!(plan(&recipe(8, "last_batch = \"drop\""), 1, 17, 2).is_ok());
}

#[test]
fn smaller_micro_batches_respect_the_model_s_minimum() {
    let needs = Needs { min_micro_batch: 2, ..Needs::default() };
    let sizes = |batch: usize| {
        let samples = 4 * batch as u64;
        let mut plan = RunPlan::new(&recipe(batch, ""), 1, samples, &needs).unwrap();
        let mut sizes = vec![batch];
        while let Some(smaller) = plan.with_smaller_micro_batches(0) {
            plan = smaller;
            sizes.push(plan.stages[0].partition.micro_batch());
        }
        sizes
    };
    assert_eq!(sizes(8), [8, 4, 2]);
    // Half is too small for the model, but a larger part is possible.
    assert_eq!(sizes(6), [6, 3, 2]);
    assert_eq!(sizes(5), [5, 3], "3 + 2");
    assert_eq!(sizes(3), [3], "2 + 1");
}

#[test]
fn larger_micro_batches_than_the_model_takes_are_avoided_or_an_error() {
    let needs = Needs { max_micro_batch: Some(6), ..Needs::default() };
    let plan = |more: &str| RunPlan::new(&recipe(16, more), 1, 64, &needs);
    let mut sizes = vec![plan("").unwrap()];
    assert_eq!(
        sizes[0].stages[0].partition.to_string(),
        "16 = 1 rank x 16 in up to 3 micro-batches of 5 to 6"
    );
    sizes.extend(sizes[0].with_micro_batches(0, 16));
    assert_eq!(sizes[1].stages[0].partition.micro_batch(), 6, "not 8");
    assert!(plan("[memory]\nmicro_batch = 5").is_ok());
    let error = plan("[memory]\nmicro_batch = 8").unwrap_err().to_string();
    assert!(error.contains("micro-batch of 8") && error.contains("memory.micro_batch = 6"), "{error}");
}

fn with_batch_norms(
    batch: usize,
    more: &str,
    ranks: usize,
    samples: u64,
    batch_norms: BatchNorms,
) -> Result<RunPlan, PlanError> {
    let needs = Needs { batch_norms, ..Needs::default() };
    RunPlan::new(&recipe(batch, more), ranks, samples, &needs)
}

#[test]
fn synced_batch_norm_needs_even_micro_steps() {
    let plan =
        |batch, more, ranks, samples| with_batch_norms(batch, more, ranks, samples, BatchNorms::Synced);
    let one = "[memory]\nmicro_batch = 1";
    let error = plan(13, one, 2, 26).unwrap_err();
    assert!(matches!(error, PlanError::Uneven { remedy: "", .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("train.effective_batch") && text.contains("memory.micro_batch"), "{text}");
    // A last step of one sample for two ranks.
    let error = plan(8, "", 2, 17).unwrap_err();
    assert!(error.to_string().contains("train.last_batch = \"drop\""), "{error}");
    assert!(plan(8, "last_batch = \"drop\"", 2, 17).is_ok());
    assert!(plan(8, "steps = 2", 2, 17).is_ok(), "the run ends before that step");
    assert!(plan(13, "[memory]\nmicro_batch = 2", 2, 26).is_ok());
    assert!(plan(8, "", 2, 18).is_ok());
    assert!(with_batch_norms(13, one, 2, 27, BatchNorms::Local).is_ok());
}

#[test]
fn dependence_on_the_micro_batch_is_a_warning() {
    use BatchNorms::{Local, None, Synced};
    let warnings = |norms, ranks, more: &str| {
        let plan = with_batch_norms(16, more, ranks, 32, norms).unwrap();
        assert!(plan.warnings.len() < 2, "{:?}", plan.warnings);
        plan.warnings.into_iter().next().unwrap_or_default()
    };
    let four = "[memory]\nmicro_batch = 4";
    for (norms, ranks, more) in [(None, 2, four), (Local, 1, ""), (Synced, 2, "")] {
        assert_eq!(warnings(norms, ranks, more), "", "{norms:?} on {ranks}");
    }
    let says = |norms, ranks, more, words: &[&str]| {
        let warning = warnings(norms, ranks, more);
        assert!(warning.starts_with("the result depends on the micro-batch:"), "{warning}");
        for word in words {
            assert!(warning.contains(word), "no {word:?} in {warning}");
        }
        warning
    };
    says(Local, 2, "", &["8 of the step's 16", "set model.batchnorm = \"synced\""]);
    says(Local, 2, four, &["4 of the step's 16", "\"synced\" and, if memory allows, memory.micro_batch = 8"]);
    let alone = says(Local, 1, four, &["4 of the step's 16", "memory.micro_batch = 16"]);
    assert!(!alone.contains("synced"), "{alone}");
    says(Synced, 2, four, &["at most 8 of the step's 16", "memory.micro_batch = 8"]);

    let needs = Needs { depends: Some("pairs are formed within it".into()), ..Needs::default() };
    let plan = RunPlan::new(&recipe(16, four), 1, 32, &needs).unwrap();
    assert!(plan.warnings[0].contains("pairs are formed within it; "), "{:?}", plan.warnings);
    assert!(RunPlan::new(&recipe(16, ""), 1, 32, &needs).unwrap().warnings.is_empty());
}

/// The samples and partners of a step are the same on any ranks, from any step on and after a retry with smaller micro-batches.
#[test]
fn partners_are_of_the_step_and_not_of_its_cut() {
    let needs = Needs { has_partners: true, ..Needs::default() };
    let recipe = recipe(7, "");
    let mixing = Mixing::of(&[Mix::Mixup(Mixup { share: Some(0.5), ..Mixup::default() })], MixBy::Sample);
    let sampling = Sampling { has_partners: true, mixing: mixing.map(Arc::new), ..Sampling::shuffled(23) };
    let steps = |plan: &RunPlan, ranks: usize, done: u64| -> Vec<Vec<(u32, u32, Option<Blend>)>> {
        let mut work: Vec<_> = (0..ranks).map(|rank| plan.micro_batches(rank, done, &sampling)).collect();
        let mut of_step = |position| {
            let mut pairs = Vec::new();
            for (rank, work) in work.iter_mut().enumerate() {
                for micro in work.by_ref().take(plan.micro_ranges(position, rank).len()) {
                    assert_eq!(micro.width, 2);
                    assert_eq!(micro.blends.len(), micro.samples());
                    let mixed = micro.places.chunks(2).zip(micro.blends);
                    pairs.extend(mixed.map(|(pair, blend)| (pair[0].sample, pair[1].sample, blend)));
                }
            }
            pairs
        };
        (done..plan.total_steps).map(|step| of_step(plan.position(step))).collect()
    };
    let plan = RunPlan::new(&recipe, 1, 23, &needs).unwrap();
    let expected = steps(&plan, 1, 0);
    assert_eq!(expected.len(), 12);
    for pairs in &expected {
        assert!(pairs.iter().all(|(own, partner, _)| own != partner), "{pairs:?}");
        let sorted = |mut samples: Vec<u32>| {
            samples.sort_unstable();
            samples
        };
        let (own, partners): (Vec<_>, Vec<_>) =
            pairs.iter().map(|(own, partner, _)| (*own, *partner)).unzip();
        assert_eq!(sorted(own), sorted(partners));
    }
    let blends: Vec<_> = expected.iter().flatten().map(|(.., blend)| blend).collect();
    let mixed: Vec<_> = blends.iter().copied().flatten().map(|blend| blend.share.to_bits()).collect();
    assert!((20..60).contains(&mixed.len()), "about half of 82 samples: {}", mixed.len());
    assert_eq!(mixed.iter().collect::<HashSet<_>>().len(), mixed.len(), "no step draws again");
    for ranks in 1..=3 {
        let plan = RunPlan::new(&recipe, ranks, 23, &needs).unwrap();
        for plan in [plan.with_micro_batches(0, 1).unwrap(), plan] {
            for done in [0, 5, 11] {
                assert_eq!(steps(&plan, ranks, done), expected[done as usize..], "{ranks} ranks from {done}");
            }
        }
    }
    // The last step of an epoch of 22 samples has one.
    let error = RunPlan::new(&recipe, 1, 22, &needs).unwrap_err().to_string();
    assert!(error.contains("a step of one sample has no partner for it"), "{error}");
}
