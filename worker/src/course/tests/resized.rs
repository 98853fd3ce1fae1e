//! Plans of runs whose training data got another size at a resume.

use super::*;

/// Returns the plan of a run of steps of 8 samples, over data of `(first step, steps per epoch)`.
fn over(train: &str, optim: &str, periods: &[(u64, u64)]) -> RunPlan {
    let text = format!(
        "task = \"classify\"\n[data]\nroot = \"photos\"\n[optim]\nlr = 1.0\n{optim}\n[train]\neffective_batch = 8\n{train}"
    );
    let recipe = Recipe::parse("test", &text, &[]).unwrap();
    let periods: Vec<_> =
        periods.iter().map(|&(step, length)| DataPeriod { step, train_samples: 8 * length }).collect();
    let samples = periods.last().unwrap().train_samples;
    RunPlan::over(&recipe, 1, samples, periods, &Needs::default()).unwrap()
}

fn at(epoch: u64, step_in_epoch: u64) -> Position {
    Position { stage: 0, epoch, step_in_epoch }
}

fn close(got: f64, wanted: f64) {
    assert!((got - wanted).abs() < 1e-12, "{got} against {wanted}");
}

#[test]
fn finished_epochs_stay_finished() {
    // Fewer samples after 5 of 10 epochs: the other 5 have half the steps.
    let plan = over("epochs = 10", "", &[(0, 10), (50, 5)]);
    assert_eq!((plan.total_steps, plan.epochs()), (75, 10));
    assert_eq!([49, 50, 74].map(|done| plan.position(done)), [at(4, 9), at(5, 0), at(9, 4)]);
    assert_eq!((plan.samples_after(50), plan.samples_after(75)), (400, 600));
    close(plan.epochs_after(50), 5.0);
    close(plan.epochs_after(75), 10.0);
    let checkpoints: Vec<u64> =
        (40..=75).filter(|&done| plan.is_checkpoint(done, plan.is_evaluation(done))).collect();
    assert_eq!(checkpoints, [40, 50, 55, 60, 65, 70, 75]);
    // An epoch of 7 steps is over if an epoch now has 5; with 20 it has 13 left.
    let shorter = over("epochs = 10", "", &[(0, 10), (57, 5)]);
    assert_eq!((shorter.position(57), shorter.total_steps), (at(6, 0), 77));
    let longer = over("epochs = 10", "", &[(0, 10), (57, 20)]);
    assert_eq!((longer.position(57), longer.position(70), longer.total_steps), (at(5, 7), at(6, 0), 150));
    assert_eq!(longer.samples_after(70) - longer.samples_after(57), 13 * 8);
    assert_eq!(longer.describe_rest(57).split(": ").last(), Some("93 steps left of 150"));
    // The run may be over, and it has every sample of its last epochs once.
    let over_at_once = over("epochs = 1", "", &[(0, 10), (7, 5)]);
    assert_eq!((over_at_once.total_steps, over_at_once.ends_by_resize(7)), (7, true));
    // An evaluation follows if less data ended the epoch. A longer epoch has it later, and an epoch that was over has had it.
    assert!(shorter.ends_by_resize(57) && !longer.ends_by_resize(57));
    assert!(
        plan.is_checkpoint(50, plan.is_evaluation(50)) && plan.ends_by_resize(50) && !plan.ends_by_resize(55)
    );
    let samples: Vec<u32> = steps(&plan, 1, 70).concat();
    assert_eq!(samples.iter().collect::<std::collections::BTreeSet<_>>().len(), 40);
}

#[test]
fn a_run_of_steps_takes_its_steps() {
    for periods in [[(0, 10), (50, 5)], [(0, 10), (50, 200)]] {
        assert_eq!(over("steps = 100", "", &periods).total_steps, 100, "{periods:?}");
    }
    // The shorter of both counts.
    assert_eq!(over("epochs = 10\nsteps = 60", "", &[(0, 10), (50, 5)]).total_steps, 60);
    assert_eq!(over("epochs = 10\nsteps = 60", "", &[(0, 10), (50, 1)]).total_steps, 55);
    let every = "steps = 100\n[checkpoint]\nevery = \"30 steps\"";
    let plan = over(every, "", &[(0, 10), (50, 3)]);
    assert_eq!(
        (1..=100).filter(|&done| plan.is_checkpoint(done, plan.is_evaluation(done))).collect::<Vec<_>>(),
        [30, 60, 90, 100]
    );
    let every = "epochs = 10\n[checkpoint]\nevery = \"2 epochs\"";
    let plan = over(every, "", &[(0, 10), (50, 5)]);
    assert_eq!(
        (1..=75).filter(|&done| plan.is_checkpoint(done, plan.is_evaluation(done))).collect::<Vec<_>>(),
        [20, 40, 55, 65, 75]
    );
}

#[test]
fn schedules_continue_from_where_they_were() {
    let schedule = |text: &str| format!("schedule = {{ {text} }}");
    // Half of the epochs are done, so half of the line.
    let plan = over("epochs = 10", &schedule("name = \"linear\""), &[(0, 10), (50, 5)]);
    for (step, rate) in [(50, 0.5), (55, 0.4), (74, 0.02)] {
        close(plan.lr(step), rate);
    }
    // Half of the steps of a run of steps.
    let plan = over("steps = 100", &schedule("name = \"linear\""), &[(0, 10), (50, 5)]);
    close(plan.lr(50), 0.5);
    close(plan.lr(75), 0.25);
    // A warm-up that is over is not repeated.
    let warm = schedule("name = \"linear\", warmup = \"30 steps\"");
    let plan = over("epochs = 10", &warm, &[(0, 10), (50, 5)]);
    for (step, rate) in [(50, 5.0 / 7.0), (62, 5.0 / 7.0 * 13.0 / 25.0)] {
        close(plan.lr(step), rate);
    }
    // One in its middle continues.
    let warm = schedule("name = \"constant\", warmup = \"4 epochs\"");
    let plan = over("epochs = 10", &warm, &[(0, 10), (20, 5)]);
    for (step, rate) in [(20, 0.55), (21, 0.6), (29, 1.0), (30, 1.0)] {
        close(plan.lr(step), rate);
    }
    let stepped = schedule("name = \"step\", milestones = [\"6 epochs\", \"58 steps\"], gamma = 0.5");
    let plan = over("epochs = 10", &stepped, &[(0, 10), (50, 5)]);
    for (step, rate) in [(54, 1.0), (55, 0.5), (57, 0.5), (58, 0.25), (74, 0.25)] {
        close(plan.lr(step), rate);
    }
    for every in ["per = \"epoch\", every = \"2 epochs\"", "every = \"2 epochs\""] {
        let stepped = schedule(&format!("name = \"step\", {every}, gamma = 0.5"));
        let plan = over("epochs = 10", &stepped, &[(0, 10), (50, 5)]);
        for (step, rate) in [(50, 0.25), (54, 0.25), (55, 0.125), (65, 0.0625)] {
            close(plan.lr(step), rate);
        }
    }
    let cosine = schedule("name = \"cosine\", per = \"epoch\"");
    let plan = over("epochs = 10", &cosine, &[(0, 10), (57, 5)]);
    let same = over("epochs = 10", &cosine, &[(0, 5)]);
    assert!((57..77).all(|step| (plan.lr(step) - same.lr(30 + (step - 57))).abs() < 1e-12));
}

/// Stage "a" of 4 epochs unfreezes in its middle; stage "b" has 20 steps.
#[test]
fn stages_and_phases_follow_the_data() {
    let stages = "[[stage]]\nname = \"a\"\nepochs = 4\nunfreeze = [{ at = 0, match = \"x\" }, { at = 0.5, match = \"*\" }]\n\
                  [[stage]]\nname = \"b\"\nsteps = 20\n";
    let phases = |plan: &RunPlan| -> Vec<u64> {
        plan.stages[0].phases.iter().map(|phase| phase.steps.start).collect()
    };
    // The phase began before the change: it stays.
    let plan = over(stages, "", &[(0, 10), (30, 20)]);
    assert_eq!((phases(&plan), plan.stages[1].steps.clone()), (vec![0, 20], 50..70));
    assert_eq!(plan.position(50), Position { stage: 1, epoch: 4, step_in_epoch: 0 });
    let plan = over(stages, "", &[(0, 10), (10, 20)]);
    assert_eq!((phases(&plan), plan.stages[1].steps.clone()), (vec![0, 30], 70..90));
    // The data ends the stage before its second phase: the phase of the steps that were taken stays.
    let one = stages.replace("epochs = 4", "epochs = 1");
    let plan = over(&one, "", &[(0, 100), (30, 30)]);
    assert_eq!((phases(&plan), plan.stages[1].steps.clone()), (vec![0], 30..50));
    assert_eq!(plan.phase_at(29), PhaseId { stage: 0, phase: 0 });
    assert_eq!(plan.phase_at(30), PhaseId { stage: 1, phase: 0 });
    // A change between the stages, and one in the second.
    let plan = over(stages, "", &[(0, 10), (40, 5), (45, 8)]);
    assert_eq!(plan.stages[1].steps, 40..60);
    assert_eq!(plan.position(45), Position { stage: 1, epoch: 5, step_in_epoch: 0 });
    assert_eq!(plan.epochs(), 7);
}

proptest! {
    /// After any number of changes every epoch is counted once, and the rate of the next step is that without the change.
    #[test]
    fn changes_of_the_data_neither_skip_nor_repeat(
        first in 1u64..12, changes in prop::collection::vec((1u64..30, 1u64..12), 1..5),
        epochs in 1u64..12, limit in prop::option::of(1u64..90), warmup in 0u64..8, warm_epochs: bool,
        course in prop::sample::select(vec!["linear", "cosine", "exponential", "constant"]),
    ) {
        let mut train = format!("epochs = {epochs}");
        if let Some(steps) = limit {
            train.push_str(&format!("\nsteps = {steps}"));
        }
        let unit = if warm_epochs { "epochs" } else { "steps" };
        let gamma = if course == "exponential" { ", gamma = 0.9" } else { "" };
        let total = first * epochs;
        let total = limit.map_or(total, |limit| limit.min(total));
        let warmup = if warm_epochs { warmup.min(total / first) } else { warmup.min(total) };
        let schedule = format!("schedule = {{ name = {course:?}, warmup = \"{warmup} {unit}\"{gamma} }}");
        let mut periods = vec![(0, first)];
        let mut plan = over(&train, &schedule, &periods);
        let mut seen: Vec<(u64, f64)> = Vec::new();
        for (gap, length) in changes {
            let step = periods[periods.len() - 1].0 + gap;
            if step >= plan.total_steps {
                break;
            }
            seen.extend((seen.len() as u64..step).map(|step| (plan.position(step).epoch, plan.lr(step))));
            let is_warm = |plan: &RunPlan| plan.stages[0].rates.schedule.warmup_steps <= step;
            let before = (plan.position(step), plan.lr(step));
            let was_warm = is_warm(&plan);
            periods.push((step, length));
            plan = over(&train, &schedule, &periods);
            let Position { epoch, step_in_epoch, .. } = plan.position(step);
            let wanted = match before.0.step_in_epoch.min(length) {
                over if over == length => (before.0.epoch + 1, 0),
                rest => (before.0.epoch, rest),
            };
            prop_assert_eq!((epoch, step_in_epoch), wanted);
            // The past stays.
            for (step, (epoch, _)) in seen.iter().enumerate() {
                prop_assert_eq!(plan.position(step as u64).epoch, *epoch);
            }
            if was_warm && step < plan.total_steps {
                prop_assert!((plan.lr(step) - before.1).abs() < 1e-9, "{} after {}", plan.lr(step), before.1);
            }
        }
        let now = periods[periods.len() - 1].0;
        let (mut last, mut rate, mut falls) = (plan.position(now), 0.0, false);
        for step in now..plan.total_steps {
            let position = plan.position(step);
            let follows = (position.epoch, position.step_in_epoch) == (last.epoch, last.step_in_epoch + 1)
                || (position.epoch, position.step_in_epoch) == (last.epoch + 1, 0);
            prop_assert!(step == now || follows, "{:?} after {:?}", position, last);
            // A rate that has begun to fall falls on.
            let next = plan.lr(step);
            prop_assert!(next > 0.0 && next <= 1.0 + 1e-9);
            prop_assert!(!falls || next <= rate + 1e-9, "{} after {}", next, rate);
            falls |= step > now && next < rate - 1e-9;
            (last, rate) = (position, next);
        }
        let complete = plan.epochs_after(plan.total_steps.max(now));
        match limit {
            Some(limit) => prop_assert!(plan.total_steps <= limit.max(now) && complete <= epochs as f64 + 1e-9),
            None => prop_assert!((complete - epochs as f64).abs() < 1e-9, "{} of {}", complete, epochs),
        }
    }
}
