//! Compares the optimizers, the moving average and the schedule with torch's: trajectories over 20 steps,
//! rates of 100 steps. `tests/parity/README.md` describes the references.

use super::{about, device, file};
use crate::formula;
use dtrain_common::schedule::{Decay, Per, Schedule};
use dtrain_test_kit::assert_values;
use dtrain_worker::models::TensorFile;
use dtrain_worker::optim::{GroupOptions, Optimizer, Rule, WeightDecay};
use dtrain_worker::state::{AVERAGE, Average, Table};
use serde_json::Value;
use tch::{Kind, Tensor};

fn reference() -> (TensorFile, Value) {
    (TensorFile::open(&file("optimizers")).unwrap(), about("optimizers"))
}

fn read(file: &TensorFile, name: &str) -> Tensor {
    file.read(name).unwrap().to_device(device())
}

fn optimizer(settings: &Value, table: &mut Table) -> Optimizer {
    let number = |key: &str| settings[key].as_f64().unwrap();
    let rule = match settings["optimizer"].as_str().unwrap() {
        name @ ("adam" | "adamw") => {
            let beta = |index: usize| settings["betas"][index].as_f64().unwrap();
            Rule::Adam {
                betas: (beta(0), beta(1)),
                eps: number("eps"),
                decay: match name {
                    "adamw" => WeightDecay::Decoupled,
                    _ => WeightDecay::L2,
                },
                amsgrad: settings["amsgrad"].as_bool().unwrap_or_default(),
            }
        }
        "lion" => {
            let beta = |index: usize| settings["betas"][index].as_f64().unwrap();
            Rule::Lion { betas: (beta(0), beta(1)) }
        }
        "rmsprop" => Rule::RmsProp {
            alpha: number("alpha"),
            eps: number("eps"),
            momentum: number("momentum"),
            centered: settings["centered"].as_bool().unwrap(),
        },
        "sgd" => {
            Rule::Sgd { momentum: number("momentum"), nesterov: settings["nesterov"].as_bool().unwrap() }
        }
        other => panic!("an optimizer {other}"),
    };
    Optimizer::new(rule, vec![GroupOptions::plain(number("weight_decay"))], table).unwrap()
}

/// Compares the updates with torch's.
///
/// # Panics
/// If they differ too much.
pub fn updates_follow_torch() {
    let (file, about) = reference();
    let cases = about["cases"].as_object().unwrap();
    assert!(cases.len() >= 18);
    for (case, settings) in cases {
        for (kind, suffix, tolerance) in [(Kind::Double, "f64", 1e-12), (Kind::Float, "f32", 2e-6)] {
            let wanted = read(&file, &format!("{case}.{suffix}"));
            let parameter = read(&file, "parameter").to_kind(kind).set_requires_grad(true);
            let mut table = Table::of([("parameter", &parameter)]).unwrap();
            let mut optimizer = optimizer(settings, &mut table);
            for step in 0..20 {
                let gradient = Tensor::from_slice(&formula::gradient("optimizer.gradient", step, 33));
                tch::no_grad(|| parameter.grad().copy_(&gradient.to_kind(kind)));
                optimizer.step(&mut table, settings["lr"].as_f64().unwrap(), &[true], None).unwrap();
                let difference = (&parameter - wanted.get(step as i64)).abs().max().double_value(&[]);
                assert_values!(
                    difference <= tolerance,
                    "{case} in {suffix}, step {step}: off by {difference:e}"
                );
            }
            assert_eq!(table.updates(), [20]);
            // The gap after the 33 elements stays zero: every reduced and updated range includes it.
            let data = table.data().next().unwrap();
            assert!(data.size1().unwrap() > 33);
            let gap = data.slice(0, 33, None, 1).abs().sum(Kind::Double).double_value(&[]);
            assert_values!(gap == 0.0, "the gap holds {gap}");
        }
    }
}

/// Compares the moving average with torch's.
///
/// # Panics
/// If they differ too much.
pub fn the_moving_average_follows_torch() {
    let (file, about) = reference();
    let decay = about["ema"]["decay"].as_f64().unwrap();
    let case = about["ema"]["case"].as_str().unwrap();
    for (suffix, tolerance) in [("f64", 1e-14), ("f32", 2e-7)] {
        let live = read(&file, &format!("{case}.{suffix}"));
        let wanted = read(&file, &format!("ema.{suffix}"));
        // AveragedModel copies the first values.
        let parameter = live.get(0).copy().set_requires_grad(true);
        let mut table = Table::of([("parameter", &parameter)]).unwrap();
        table.add_column(AVERAGE).unwrap();
        let mut average = Average::new(decay, false);
        for step in 0..20 {
            if step > 0 {
                tch::no_grad(|| parameter.shallow_clone().copy_(&live.get(step)));
                average.update(&table).unwrap();
            }
            let held = &table.column(AVERAGE.name).unwrap()[0];
            let off = (held.slice(0, 0, 33, 1) - wanted.get(step)).abs().max().double_value(&[]);
            assert_values!(off <= tolerance, "step {step} in {suffix}: off by {off:e}");
        }
        assert_eq!(average.updates(), 19);
        assert_values!(
            (live.get(19) - wanted.get(19)).abs().max().double_value(&[]) > 1e-3,
            "the average is the last value"
        );
    }
}

/// Compares the schedule with torch's.
///
/// # Panics
/// If they differ too much.
pub fn the_schedule_follows_torch() {
    let (file, about) = reference();
    let settings = &about["warmup_cosine"];
    let schedule = Schedule {
        peak: settings["lr"].as_f64().unwrap(),
        warmup_steps: settings["warmup"].as_u64().unwrap(),
        total_steps: settings["total"].as_u64().unwrap(),
        steps_per_epoch: 1,
        per: Per::Step,
        decay: Decay::Cosine { min_lr: settings["min_lr"].as_f64().unwrap() },
    };
    let wanted = Vec::<f64>::try_from(file.read("warmup_cosine").unwrap()).unwrap();
    assert_eq!(wanted.len(), 100);
    for (step, wanted) in wanted.into_iter().enumerate() {
        let lr = schedule.lr(step as u64);
        assert!((lr - wanted).abs() <= 1e-12, "step {step}: {lr} against {wanted}");
    }
}
