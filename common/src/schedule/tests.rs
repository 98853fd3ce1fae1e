//! Properties of every schedule. tests/tests/schedules.rs compares the numbers with torch's.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::recipe::{AnyRecipe, FallShape, Source};

const COSINE: Schedule = Schedule {
    peak: 0.1,
    warmup_steps: 10,
    total_steps: 110,
    steps_per_epoch: 20,
    per: Per::Step,
    decay: Decay::Cosine { min_lr: 0.01 },
};

fn with(decay: Decay, per: Per) -> Schedule {
    Schedule { decay, per, ..COSINE }
}

fn close(got: f64, wanted: f64) {
    assert!((got - wanted).abs() <= 1e-15, "{got} against {wanted}");
}

#[test]
fn warm_up_rises_linearly_to_the_peak() {
    for per in [Per::Step, Per::Epoch] {
        let schedule = with(COSINE.decay, per);
        close(schedule.lr(0), 0.01);
        close(schedule.lr(4), 0.05);
        assert_eq!((schedule.lr(9), schedule.lr(10)), (0.1, 0.1));
    }
}

#[test]
fn the_cosine_halves_in_the_middle_and_ends_at_the_minimum() {
    close(COSINE.lr(60), 0.055);
    close(COSINE.lr(110), 0.01);
    assert_eq!(COSINE.lr(5000), COSINE.lr(110));
    for step in 11..=110 {
        assert!(COSINE.lr(step) <= COSINE.lr(step - 1));
    }
}

#[test]
fn a_line_is_a_line() {
    let line = with(Decay::Linear { min_lr: 0.02 }, Per::Step);
    close(line.lr(10), 0.1);
    close(line.lr(60), 0.06);
    close(line.lr(109), 0.1 - 0.08 * 0.99);
    close(line.lr(110), 0.02);
    close(line.lr(u64::MAX), 0.02);
}

#[test]
fn drops_come_at_their_units() {
    let step = with(Decay::Step { every: 30, gamma: 0.5 }, Per::Step);
    for (at, wanted) in [(39, 0.1), (40, 0.05), (69, 0.05), (70, 0.025), (109, 0.0125)] {
        close(step.lr(at), wanted);
    }
    // Epoch 0 ends at step 20, epoch 3 begins at step 60.
    let milestones = Decay::MultiStep { milestones: vec![4, 1, 3], gamma: 0.5 };
    let milestones = with(milestones, Per::Epoch);
    for (at, wanted) in [(19, 0.1), (20, 0.05), (59, 0.05), (60, 0.025), (80, 0.0125), (109, 0.0125)] {
        close(milestones.lr(at), wanted);
    }
    let early = Decay::MultiStep { milestones: vec![5], gamma: 0.5 };
    let early = with(early, Per::Step);
    assert_eq!((early.lr(9), early.lr(10)), (0.1, 0.05));
}

#[test]
fn one_cycle_begins_low_peaks_and_ends_lower() {
    let schedule = Schedule {
        warmup_steps: 0,
        total_steps: 100,
        decay: Decay::OneCycle { pct_start: 0.3, div_factor: 25.0, final_div_factor: 1e4 },
        ..COSINE
    };
    close(schedule.lr(0), 0.004);
    close(schedule.lr(29), 0.1);
    close(schedule.lr(99), 4e-7);
    assert_eq!(schedule.lr(99), schedule.lr(1_000_000));
    assert!((0..29).all(|step| schedule.lr(step) < schedule.lr(step + 1)));
    assert!((29..99).all(|step| schedule.lr(step) > schedule.lr(step + 1)));
}

#[test]
fn restarts_begin_at_the_peak_and_the_last_part_falls() {
    let restarts = with(Decay::Restarts { min_lr: 0.02, first: 10, stretch: 2 }, Per::Step);
    // After the warm-up of 10 steps, cosines of 10, 20, 40 and 80 steps.
    for (at, wanted) in [(10, 0.1), (15, 0.06), (20, 0.1), (30, 0.06), (40, 0.1), (60, 0.06), (80, 0.1)] {
        close(restarts.lr(at), wanted);
    }
    let stable = |shape, at| with(Decay::Stable { min_lr: 0.02, fall: 0.4, shape }, Per::Step).lr(at);
    // The last 40 of 100 steps after the warm-up.
    for shape in [FallShape::Linear, FallShape::Cosine, FallShape::Sqrt] {
        assert_eq!((stable(shape, 10), stable(shape, 70)), (0.1, 0.1));
        close(stable(shape, 110), 0.02);
    }
    close(stable(FallShape::Linear, 90), 0.06);
    close(stable(FallShape::Cosine, 90), 0.06);
    close(stable(FallShape::Sqrt, 80), 0.06);
    let root = with(Decay::InverseSqrt { timescale: 10 }, Per::Step);
    for (at, wanted) in [(10, 0.1), (40, 0.05), (100, 0.1 / 10f64.sqrt())] {
        close(root.lr(at), wanted);
    }
}

#[test]
fn runs_without_room_for_a_curve_are_defined() {
    for decay in every_decay() {
        for (warmup_steps, total_steps) in [(0, 0), (0, 1), (1, 1), (110, 110), (200, 110)] {
            for per in [Per::Step, Per::Epoch] {
                let schedule = Schedule { warmup_steps, total_steps, ..with(decay.clone(), per) };
                for step in [0, 1, 109, 110, 199, 200, 10_000] {
                    let lr = schedule.lr(step);
                    assert!((0.0..=0.1).contains(&lr), "{schedule:?} at {step}: {lr}");
                }
            }
        }
    }
}

fn every_decay() -> Vec<Decay> {
    // With a pct_start of 0.1 and 10 units the rise has no length; torch divides by zero there.
    let one_cycle = |pct_start| Decay::OneCycle { pct_start, div_factor: 25.0, final_div_factor: 1e4 };
    let stable = |fall, shape| Decay::Stable { min_lr: 0.01, fall, shape };
    vec![
        Decay::Constant,
        Decay::Linear { min_lr: 0.01 },
        Decay::Cosine { min_lr: 0.01 },
        Decay::Step { every: 3, gamma: 0.3 },
        Decay::Step { every: 0, gamma: 0.3 },
        Decay::MultiStep { milestones: vec![2, 2, 5], gamma: 0.1 },
        Decay::Exponential { gamma: 0.9 },
        Decay::Polynomial { min_lr: 0.01, power: 0.9 },
        Decay::Restarts { min_lr: 0.01, first: 7, stretch: 1 },
        Decay::Restarts { min_lr: 0.01, first: 0, stretch: 2 },
        Decay::InverseSqrt { timescale: 0 },
        Decay::InverseSqrt { timescale: 12 },
        stable(0.2, FallShape::Linear),
        stable(1.0, FallShape::Cosine),
        stable(0.5, FallShape::Sqrt),
        one_cycle(0.0),
        one_cycle(0.1),
        one_cycle(0.3),
        one_cycle(1.0),
    ]
}

fn schedules() -> impl Strategy<Value = Schedule> {
    let decay = prop::sample::select(every_decay());
    let per = prop::sample::select(vec![Per::Step, Per::Epoch]);
    (decay, per, 0u64..40, 1u64..200, 0u64..30).prop_map(
        |(decay, per, warmup_steps, more, steps_per_epoch)| Schedule {
            peak: 0.1,
            warmup_steps,
            total_steps: warmup_steps + more,
            steps_per_epoch,
            per,
            decay,
        },
    )
}

fn stated(course: &str) -> Schedule {
    let text = format!(
        "task = \"classify\"\n[data]\nkind = \"generated\"\n[train]\nepochs = 10\n[optim]\nlr = 0.5\nschedule = {course}"
    );
    let source = Source { name: "test".into(), text };
    Schedule::of(&AnyRecipe::parse(&source, &[]).unwrap(), 3, 20, 200)
}

#[test]
fn every_name_has_its_course() {
    let decay = |course| stated(course).decay;
    assert_eq!(decay("{ name = \"constant\" }"), Decay::Constant);
    assert_eq!(decay("{ name = \"linear\", min_lr = 0.1 }"), Decay::Linear { min_lr: 0.1 });
    assert_eq!(decay("{ name = \"cosine\" }"), Decay::Cosine { min_lr: 0.0 });
    assert_eq!(decay("{ name = \"step\", every = \"3 epochs\" }"), Decay::Step { every: 60, gamma: 0.1 });
    assert_eq!(
        decay("{ name = \"step\", milestones = [\"30 steps\", \"4 epochs\"], gamma = 0.2 }"),
        Decay::MultiStep { milestones: vec![30, 80], gamma: 0.2 }
    );
    assert_eq!(decay("{ name = \"exponential\", gamma = 0.9 }"), Decay::Exponential { gamma: 0.9 });
    assert!(matches!(decay("{ name = \"onecycle\" }"), Decay::OneCycle { pct_start: 0.3, .. }));
    assert_eq!(
        decay("{ name = \"polynomial\", power = 0.9 }"),
        Decay::Polynomial { min_lr: 0.0, power: 0.9 }
    );
    assert_eq!(
        decay("{ name = \"cosine-restarts\", every = \"2 epochs\", stretch = 2 }"),
        Decay::Restarts { min_lr: 0.0, first: 40, stretch: 2 }
    );
    // By default the time scale is the warm-up, which the caller counts.
    let timescale = |more: &str| stated(&format!("{{ name = \"inverse-sqrt\"{more} }}")).decay;
    assert_eq!(timescale(""), Decay::InverseSqrt { timescale: 10_000 });
    assert_eq!(timescale(", warmup = \"1 epoch\""), Decay::InverseSqrt { timescale: 20 });
    assert_eq!(timescale(", timescale = \"7 steps\""), Decay::InverseSqrt { timescale: 7 });
    let shape = FallShape::Linear;
    assert_eq!(decay("{ name = \"wsd\" }"), Decay::Stable { min_lr: 0.0, fall: 0.2, shape });
}

#[test]
fn per_epoch_lengths_are_counted_in_epochs() {
    let schedule = stated("{ name = \"step\", every = \"3 epochs\", per = \"epoch\" }");
    assert_eq!((schedule.per, &schedule.decay), (Per::Epoch, &Decay::Step { every: 3, gamma: 0.1 }));
    assert_eq!((schedule.peak, schedule.warmup_steps, schedule.total_steps), (0.5, 3, 200));
}

proptest! {
    #[test]
    fn rates_survive_resumes_and_changes_of_optimizer_and_stage(
        schedule in schedules(), cuts in prop::collection::vec(0u64..240, 0..6)
    ) {
        let whole: Vec<u64> = (0..240).map(|step| schedule.lr(step).to_bits()).collect();
        // Every part has a new schedule, as in a process that starts there, and some steps are repeated.
        let mut cuts = cuts;
        cuts.sort_unstable();
        cuts.push(240);
        let mut parts = vec![0; 240];
        let mut begin = 0usize;
        for end in cuts {
            let own = schedule.clone();
            for step in begin.saturating_sub(3) as u64..end {
                parts[step as usize] = own.lr(step).to_bits();
            }
            begin = end as usize;
        }
        prop_assert_eq!(whole, parts);
    }

    #[test]
    fn rates_stay_between_zero_and_the_peak_and_within_an_epoch(schedule in schedules()) {
        let mut last = 0.0;
        for step in 0..schedule.total_steps + 10 {
            let lr = schedule.lr(step);
            prop_assert!(lr > 0.0 && lr <= 0.1 * (1.0 + 1e-15), "step {}: {}", step, lr);
            let within = step % schedule.steps_per_epoch.max(1) != 0;
            if schedule.per == Per::Epoch && within && step > schedule.warmup_steps {
                prop_assert_eq!(lr, last);
            }
            last = lr;
        }
        prop_assert_eq!(schedule.lr(schedule.total_steps), schedule.lr(u64::MAX));
    }
}
