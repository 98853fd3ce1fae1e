//! Compares every learning-rate schedule with torch's, step by step. `tests/parity/README.md` describes the
//! reference.

use dtrain_common::schedule::{Decay, Per, Schedule};
use dtrain_tests::parity::reference;
use dtrain_tests::reference::{cases, expand};
use serde_json::Value;

/// torch's recursive forms collect rounding errors over the steps: this share of the rate, and `OF_THE_PEAK`
/// if a rate near zero is a difference of numbers near the peak.
const RELATIVE: f64 = 1e-12;
const OF_THE_PEAK: f64 = 1e-15;

fn schedule(about: &Value) -> Schedule {
    let whole = |key: &str| about[key].as_u64().unwrap();
    Schedule {
        peak: about["peak"].as_f64().unwrap(),
        warmup_steps: whole("warmup_steps"),
        total_steps: whole("total_steps"),
        steps_per_epoch: whole("steps_per_epoch"),
        per: match about["per"].as_str().unwrap() {
            "step" => Per::Step,
            "epoch" => Per::Epoch,
            other => panic!("a unit {other}"),
        },
        decay: decay(&about["decay"]),
    }
}

fn decay(about: &Value) -> Decay {
    let number = |key: &str| about[key].as_f64().unwrap();
    let (min_lr, gamma) = (|| number("min_lr"), || number("gamma"));
    match about["kind"].as_str().unwrap() {
        "constant" => Decay::Constant,
        "linear" => Decay::Linear { min_lr: min_lr() },
        "cosine" => Decay::Cosine { min_lr: min_lr() },
        "step" => Decay::Step { every: about["every"].as_u64().unwrap(), gamma: gamma() },
        "polynomial" => Decay::Polynomial { min_lr: min_lr(), power: number("power") },
        "restarts" => Decay::Restarts {
            min_lr: min_lr(),
            first: number("first") as u64,
            stretch: number("stretch") as u64,
        },
        "inverse_sqrt" => Decay::InverseSqrt { timescale: number("timescale") as u64 },
        "stable" => Decay::Stable {
            min_lr: min_lr(),
            fall: number("fall"),
            shape: serde_json::from_value(about["shape"].clone()).unwrap(),
        },
        "multi_step" => Decay::MultiStep {
            milestones: serde_json::from_value(about["milestones"].clone()).unwrap(),
            gamma: gamma(),
        },
        "exponential" => Decay::Exponential { gamma: gamma() },
        "one_cycle" => Decay::OneCycle {
            pct_start: number("pct_start"),
            div_factor: number("div_factor"),
            final_div_factor: number("final_div_factor"),
        },
        other => panic!("a decay {other}"),
    }
}

#[test]
fn learning_rates_equal_torchs() {
    let mut decays = Vec::new();
    for (name, case) in cases(&reference("schedules.json")) {
        let schedule = schedule(&case["schedule"]);
        let wanted = expand(&case["rates"], schedule.total_steps as usize);
        for (step, wanted) in wanted.into_iter().enumerate() {
            let lr = schedule.lr(step as u64);
            let off = (lr - wanted).abs();
            assert!(
                off <= RELATIVE * wanted + OF_THE_PEAK * schedule.peak,
                "{name}, step {step}: {lr:e} against {wanted:e}"
            );
        }
        let kind = (std::mem::discriminant(&schedule.decay), schedule.per);
        if !decays.contains(&kind) {
            decays.push(kind);
        }
    }
    // Eleven decays; all but the constant one differ between steps and epochs.
    assert_eq!(decays.len(), 21, "{decays:?}");
}
