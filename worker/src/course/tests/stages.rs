//! Plans of several stages.

use super::*;

const SECTIONS: &str = "task = \"classify\"\n[data]\nkind = \"generated\"\n";

fn staged(stages: &str) -> Recipe {
    Recipe::parse("test", &format!("{SECTIONS}{stages}"), &[]).unwrap()
}

fn plan_of(recipe: &Recipe, ranks: usize, samples: u64) -> Result<RunPlan, PlanError> {
    RunPlan::new(recipe, ranks, samples, &Needs::default())
}

/// 20 samples: two epochs of 3 steps of 8, then 7 steps of 4 (5 per epoch), then an epoch of 3 steps.
const THREE: &str = r#"
[train]
effective_batch = 8
[[stage]]
name = "a"
epochs = 2
[[stage]]
name = "b"
steps = 7
effective_batch = 4
micro_batch = 1
unfreeze = [{ at = 0, match = "a" }, { at = 0.3, match = "b" }, { at = 0.5, match = "c" }]
[[stage]]
name = "c"
epochs = 1
"#;

#[test]
fn stages_and_phases_follow_each_other() {
    let plan = plan_of(&staged(THREE), 2, 20).unwrap();
    let steps: Vec<_> = plan.stages.iter().map(|stage| stage.steps.clone()).collect();
    assert_eq!(steps, [0..6, 6..13, 13..16]);
    assert_eq!((plan.total_steps, plan.epochs()), (16, 5));
    let phases: Vec<_> =
        plan.stages[1].phases.iter().map(|phase| (phase.steps.clone(), phase.unfrozen)).collect();
    assert_eq!(phases, [(6..8, 1), (8..10, 2), (10..13, 3)]);
    let at = |stage, epoch, step_in_epoch| Position { stage, epoch, step_in_epoch };
    for (done, position) in [
        (5, at(0, 1, 2)),
        (6, at(1, 2, 0)),
        (12, at(1, 3, 1)),
        // The end of a stage cuts an epoch short; the next stage begins a new epoch.
        (13, at(2, 4, 0)),
        (16, at(2, 5, 0)),
    ] {
        assert_eq!(plan.position(done), position, "after {done}");
    }
    let id = |stage, phase| PhaseId { stage, phase };
    assert_eq!((plan.phase_at(5), plan.phase_at(6)), (id(0, 0), id(1, 0)));
    assert_eq!((plan.phase_at(9), plan.phase_at(10)), (id(1, 1), id(1, 2)));
    assert_eq!((plan.phase_at(15), plan.phase_at(16)), (id(2, 0), id(2, 0)));
    assert_eq!(plan.phase(id(1, 2)).steps, 10..13);
    assert_eq!((plan.samples_after(6), plan.samples_after(13)), (40, 40 + 20 + 8));
    assert!((plan.epochs_after(13) - (2.0 + 7.0 / 5.0)).abs() < 1e-12);
    // At the end of every epoch, counted from the start of its stage, and of every stage.
    let checkpoints: Vec<u64> =
        (0..=16).filter(|&done| plan.is_checkpoint(done, plan.is_evaluation(done))).collect();
    assert_eq!(checkpoints, [3, 6, 11, 13, 16]);
    assert_eq!(plan.stages[1].partition.to_string(), "4 = 2 ranks x 1 x 2 accumulation");
    assert_eq!(plan.to_string(), "16 steps in all: 6 of \"a\", 7 of \"b\", 3 of \"c\"");
}

#[test]
fn another_partition_keeps_the_samples() {
    let whole = plan_of(&staged(THREE), 2, 20).unwrap();
    let before = steps(&whole, 2, 0);
    let plan = whole.with_micro_batches(0, 1).unwrap();
    assert_eq!(plan.stages[0].partition.micro_batch(), 1);
    assert_eq!(steps(&plan, 2, 0), before);
    assert!(plan.with_micro_batches(0, 0).is_none());
}

fn rates(stages: &str, schedule: &str) -> Vec<f64> {
    let text =
        format!("[optim]\nlr = 1.0\nschedule = {{ {schedule} }}\n[train]\neffective_batch = 10\n{stages}");
    let plan = plan_of(&staged(&text), 1, 20).unwrap();
    (0..plan.total_steps).map(|step| plan.lr(step)).collect()
}

fn close(one: &[f64], other: &[f64]) {
    assert_eq!(one.len(), other.len(), "{one:?}");
    for (a, b) in one.iter().zip(other) {
        assert!((a - b).abs() < 1e-12, "{one:?} against {other:?}");
    }
}

const LINE: &str = "name = \"linear\"";

#[test]
fn schedules_restart_in_every_stage() {
    let stages = "[[stage]]\nname = \"a\"\nsteps = 2\n[[stage]]\nname = \"b\"\nsteps = 4\nlr_factor = 0.1\n";
    close(&rates(stages, LINE), &[1.0, 0.5, 0.1, 0.075, 0.05, 0.025]);
    // The warm-up restarts too.
    let warm = "name = \"constant\", warmup = \"2 steps\"";
    close(&rates(stages, warm), &[0.5, 1.0, 0.05, 0.1, 0.1, 0.1]);
}

#[test]
fn continued_schedules_span_the_stages() {
    let stages = |second: &str| {
        format!(
            "[[stage]]\nname = \"a\"\nsteps = 2\nschedule = \"continue\"\n[[stage]]\nname = \"b\"\nsteps = 2\nschedule = \
             \"continue\"\n{second}"
        )
    };
    close(&rates(&stages(""), LINE), &[1.0, 0.75, 0.5, 0.25]);
    close(&rates(&stages("lr = 0.2"), LINE), &[1.0, 0.75, 0.1, 0.05]);
    // A one-cycle over 4 steps that rises over half of them: torch's turn is at 0.5 x 4 - 1 = step 1.
    let cycle = "name = \"onecycle\", rise = 0.5, start_factor = 10, final_factor = 10";
    close(&rates(&stages(""), cycle), &[0.1, 1.0, 0.505, 0.01]);
    // 2 steps per epoch, then 4 by a smaller batch; the warm-up is the first epoch and half the second.
    let halved = "[[stage]]\nname = \"a\"\nepochs = 1\nschedule = \"continue\"\n[[stage]]\nname = \"b\"\nepochs = 1\n\
                  effective_batch = 5\nschedule = \"continue\"\n";
    let warm = "name = \"constant\", warmup = \"1.5 epochs\"";
    close(&rates(halved, warm), &[0.25, 0.5, 0.75, 1.0, 1.0, 1.0]);
}

#[test]
fn errors_and_warnings_name_their_stage() {
    let plan_error =
        |text: &str, ranks, samples| plan_of(&staged(text), ranks, samples).unwrap_err().to_string();
    let two = |first: &str, second: &str| {
        format!("[[stage]]\nname = \"a\"\nepochs = 1\n{first}[[stage]]\nname = \"b\"\nepochs = 1\n{second}")
    };
    let batch = "[train]\neffective_batch = 8\n";
    let small = format!("{batch}{}", two("", "effective_batch = 2\n"));
    let error = plan_error(&small, 3, 20);
    assert!(error.starts_with("stage \"b\": train.effective_batch: "), "{error}");
    let warm = "[optim]\nschedule = { name = \"cosine\", warmup = \"3 steps\" }\n";
    let error = plan_error(&format!("{batch}{warm}{}", two("", "effective_batch = 16\n")), 1, 20);
    assert!(error.contains("stage \"b\"") && error.contains("the schedule of 2"), "{error}");
    for schedule in [
        "name = \"cosine\", per = \"epoch\"",
        "name = \"step\", every = \"1 epoch\"",
        "name = \"step\", milestones = [\"1 epoch\"]",
    ] {
        let text = format!(
            "{batch}[optim]\nschedule = {{ {schedule} }}\n{}",
            two("", "effective_batch = 4\nschedule = \"continue\"\n")
        );
        let error = plan_error(&text, 1, 20);
        assert!(error.contains("stage \"b\"") && error.contains("5 steps in this stage and 3"), "{error}");
    }
    let needs = Needs { min_micro_batch: 2, ..Needs::default() };
    let text = format!("{batch}{}", two("", "micro_batch = 1\n"));
    let error = RunPlan::new(&staged(&text), 1, 16, &needs).unwrap_err().to_string();
    assert!(error.starts_with("stage \"b\": a micro-batch of 1"), "{error}");
    let warned = Needs { depends: Some("pairs are formed within it".into()), ..Needs::default() };
    let warnings = RunPlan::new(&staged(&text), 1, 16, &warned).unwrap().warnings;
    assert!(
        warnings.len() == 1 && warnings[0].starts_with("stage \"b\": the result depends"),
        "{warnings:?}"
    );
}

/// A stage: epochs or steps, length, samples per step, largest micro-batch, and percentages for unfreezing.
type Draw = (bool, u64, usize, usize, Vec<u8>);

fn text_of(draws: &[Draw], drop: bool) -> String {
    let last = if drop { "last_batch = \"drop\"\n" } else { "" };
    let mut text = format!("[train]\neffective_batch = 10\n{last}");
    for (number, (epochs, length, batch, micro, parts)) in draws.iter().enumerate() {
        let unit = if *epochs { "epochs" } else { "steps" };
        let mut parts: Vec<u8> = parts.clone();
        parts.sort_unstable();
        parts.dedup();
        let entries: Vec<String> = parts
            .iter()
            .map(|part| format!("{{ at = {}, match = \"p{part}\" }}", f64::from(*part) / 100.0))
            .collect();
        text.push_str(&format!(
            "[[stage]]\nname = \"{number}\"\n{unit} = {length}\neffective_batch = {batch}\nmicro_batch = {micro}\n\
             unfreeze = [{}]\n",
            entries.join(", ")
        ));
    }
    text
}

proptest! {
    /// Every epoch has every sample once, for any stages, ranks and partitions; phases cover stages.
    #[test]
    fn every_epoch_has_every_sample_once(
        samples in 12u64..60, ranks in 1usize..4, drop: bool,
        draws in prop::collection::vec(
            (any::<bool>(), 1u64..5, 4usize..12, 1usize..5, prop::collection::vec(0u8..100, 0..4)), 1..4),
    ) {
        let plan = plan_of(&staged(&text_of(&draws, drop)), ranks, samples).unwrap();
        let all = steps(&plan, ranks, 0);
        prop_assert_eq!(all.len() as u64, plan.total_steps);
        let mut begins = 0;
        for stage in &plan.stages {
            prop_assert_eq!(stage.steps.start, begins);
            begins = stage.steps.end;
            let mut next = stage.steps.start;
            for phase in &stage.phases {
                prop_assert!(phase.steps.start == next && phase.steps.end > next);
                next = phase.steps.end;
            }
            prop_assert_eq!(next, stage.steps.end);
        }
        prop_assert_eq!(begins, plan.total_steps);

        let mut seen: std::collections::BTreeMap<u64, Vec<u32>> = Default::default();
        for (step, indices) in all.iter().enumerate() {
            let position = plan.position(step as u64);
            prop_assert_eq!(indices.len(), plan.step_samples(position));
            seen.entry(position.epoch).or_default().extend(indices);
        }
        prop_assert_eq!(seen.len() as u64, plan.epochs());
        for stage in &plan.stages {
            let whole = (stage.steps.end - stage.steps.start) / stage.steps_per_epoch;
            let batch = stage.partition.effective_batch();
            for epoch in 0..plan.epochs() {
                let first = plan.position(stage.steps.start).epoch;
                let of_stage = (first..first + whole).contains(&epoch);
                let mut indices = seen[&epoch].clone();
                indices.sort_unstable();
                indices.dedup();
                prop_assert_eq!(indices.len(), seen[&epoch].len(), "a sample twice in epoch {}", epoch);
                if of_stage {
                    let wanted = if drop { samples as usize / batch * batch } else { samples as usize };
                    prop_assert_eq!(indices.len(), wanted);
                }
            }
        }
        // A run resumed anywhere continues with the next sample.
        let done = plan.total_steps * 2 / 3;
        prop_assert_eq!(&all[done as usize..], &steps(&plan, ranks, done)[..]);
        let before: usize = all[..done as usize].iter().map(Vec::len).sum();
        prop_assert_eq!(before as u64, plan.samples_after(done));
    }
}

/// Evaluations have their own turns; with a figure that decides, each has a checkpoint.
#[test]
fn evaluations_and_checkpoints_have_their_own_turns() {
    let text = |more: &str| {
        format!(
            "task = \"classify\"\n[data]\nkind = \"generated\"\ntrain_samples = 40\n[train]\neffective_batch = 8\nsteps = 12\n\
             [checkpoint]\nevery = \"4 steps\"\n[evaluate]\nevery = \"6 steps\"\n{more}"
        )
    };
    let plan = |more: &str| {
        let recipe = Recipe::parse("test", &text(more), &[]).unwrap();
        RunPlan::new(&recipe, 1, 40, &Needs::default()).unwrap()
    };
    let steps = |is_due: &dyn Fn(u64) -> bool| (1..=12).filter(|&done| is_due(done)).collect::<Vec<_>>();
    let apart = plan("");
    assert_eq!(steps(&|done| apart.is_checkpoint(done, apart.is_evaluation(done))), [4, 8, 12]);
    assert_eq!(steps(&|done| apart.is_evaluation(done)), [6, 12]);
    let decided = plan("[train.stop_early]\npatience = 2\n");
    assert_eq!(steps(&|done| decided.is_checkpoint(done, decided.is_evaluation(done))), [4, 6, 8, 12]);
    assert_eq!(steps(&|done| decided.is_evaluation(done)), [6, 12]);
    // An evaluation that is left out leaves only the checkpoints by their own turns.
    assert_eq!(steps(&|done| decided.is_checkpoint(done, false)), [4, 8, 12]);
}
