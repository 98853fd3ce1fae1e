//! Compares the optimizers, the moving average and the schedule with torch's: trajectories over 20 steps,
//! rates of 100 steps. `tests/parity/README.md` describes the references.

use super::{about, device, file};
use crate::formula;
use dtrain_common::schedule::{Decay, Per, Schedule};
use dtrain_test_kit::assert_values;
use dtrain_worker::models::TensorFile;
use dtrain_worker::optim::{GroupOptions, Muon, Optimizer, Rule, WeightDecay};
use dtrain_worker::recipe::{AdjustLr, NewtonSchulz};
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

/// The least and the largest number of rows and columns, and both orders.
const MATRICES: [(&str, [i64; 2]); 3] = [("tall", [12, 5]), ("wide", [4, 9]), ("square", [6, 6])];

/// Compares Muon on matrices, and AdamW on the rest of the same table, with torch's.
///
/// # Panics
/// If they differ too much.
pub fn muon_follows_torch() {
    let (file, about) = (TensorFile::open(&file("muon")).unwrap(), about("muon"));
    let cases = about["cases"].as_object().unwrap();
    assert_eq!(cases.len(), 4);
    for (case, settings) in cases {
        // In bfloat16, sums in another order can round to another number, 0.4% away, on another processor.
        let per_step = if device().is_cuda() { 0.05 } else { 0.001 };
        let bf16 = per_step * 10.0 * settings["lr"].as_f64().unwrap();
        for (kind, suffix, precision, tolerance) in [
            (Kind::Float, "bf16", NewtonSchulz::Bf16, bf16),
            (Kind::Float, "f32", NewtonSchulz::Full, 1e-5),
            (Kind::Double, "f64", NewtonSchulz::Full, 1e-12),
        ] {
            let number = |key: &str, otherwise: f64| settings[key].as_f64().unwrap_or(otherwise);
            let lr = number("lr", 1e-3);
            let shapes =
                MATRICES.iter().map(|(name, shape)| (*name, shape.to_vec())).chain([("bias", vec![5])]);
            let parameters: Vec<(&str, Tensor)> = shapes
                .map(|(name, shape)| {
                    let count = shape.iter().product::<i64>() as usize;
                    let values = Tensor::from_slice(&formula::unit(&format!("muon.{name}"), count));
                    (
                        name,
                        values
                            .view(shape.as_slice())
                            .to_kind(kind)
                            .to_device(device())
                            .set_requires_grad(true),
                    )
                })
                .collect();
            let matrices =
                GroupOptions { is_matrix: true, ..GroupOptions::plain(number("weight_decay", 0.1)) };
            let rest = GroupOptions { lr_factor: 1e-3 / lr, ..GroupOptions::plain(0.01) };
            let groups = vec![matrices, rest];
            let rows = parameters.iter().map(|(name, tensor)| (*name, tensor, usize::from(*name == "bias")));
            let mut table = Table::of_groups(rows, &groups).unwrap();
            let adamw =
                Rule::Adam { betas: (0.9, 0.999), eps: 1e-8, decay: WeightDecay::Decoupled, amsgrad: false };
            let muon = Muon {
                momentum: number("momentum", 0.95),
                nesterov: settings["nesterov"].as_bool().unwrap_or(true),
                adjust_lr: match settings["adjust_lr_fn"].as_str() {
                    Some("match_rms_adamw") => AdjustLr::MatchRmsAdamW,
                    _ => AdjustLr::Original,
                },
                newton_schulz: precision,
            };
            let optimizer = Optimizer::new(adamw, groups, &mut table).unwrap();
            let mut optimizer = optimizer.with_muon(Some(muon), &mut table).unwrap();
            for step in 0..10 {
                for (name, parameter) in &parameters {
                    let name = format!("muon.gradient.{name}");
                    let gradient = Tensor::from_slice(&formula::gradient(&name, step, parameter.numel()));
                    let gradient = gradient.view(parameter.size().as_slice()).to_kind(kind);
                    tch::no_grad(|| parameter.grad().copy_(&gradient));
                }
                optimizer.step(&mut table, lr, &[true; 4], None).unwrap();
                for (name, parameter) in &parameters {
                    let wanted = read(&file, &format!("{case}.{suffix}.{name}")).get(step as i64);
                    let difference = (parameter - wanted).abs().max().double_value(&[]);
                    assert_values!(
                        difference <= tolerance,
                        "{case} in {suffix}, {name}, step {step}: off by {difference:e}"
                    );
                }
            }
            let elements =
                |column: &str| table.column(column).unwrap().iter().map(Tensor::numel).sum::<usize>();
            // One moment for a matrix, two for the rest, with gaps up to multiples of 64 bytes.
            assert!(
                (132..132 + 48).contains(&elements("momentum_buffer")),
                "{}",
                elements("momentum_buffer")
            );
            assert!(elements("exp_avg") <= 16 && elements("exp_avg_sq") == elements("exp_avg"));
        }
    }
}

/// Compares adaptive clipping with timm's.
///
/// # Panics
/// If they differ too much.
pub fn adaptive_clipping_follows_timm() {
    let file = TensorFile::open(&file("muon")).unwrap();
    let none = Rule::Sgd { momentum: 0.0, nesterov: false };
    for (name, shape) in [("convolution", &[4, 3, 3, 2][..]), ("matrix", &[6, 5]), ("vector", &[7])] {
        for (size, scale) in [("small", 1e-3), ("large", 1.0)] {
            for (kind, suffix, tolerance) in [(Kind::Double, "f64", 1e-12), (Kind::Float, "f32", 1e-6)] {
                let count = shape.iter().product::<i64>() as usize;
                let shaped =
                    |values: &[f64]| Tensor::from_slice(values).view(shape).to_kind(kind).to_device(device());
                let parameter = shaped(&formula::unit(&format!("agc.{name}"), count));
                let gradient = shaped(&formula::gradient(&format!("muon.gradient.{name}"), 0, count)) * scale;
                for (tensor, unit, factor) in
                    [(&parameter, 0, 1e-5), (&parameter, 1, 0.0), (&gradient, 2, 0.0), (&gradient, 3, 1e-4)]
                {
                    let _ = tensor.get(unit).f_mul_scalar_(factor).unwrap();
                }
                let parameter = parameter.set_requires_grad(true);
                let mut table = Table::of([("parameter", &parameter)]).unwrap();
                tch::no_grad(|| parameter.grad().copy_(&gradient));
                let optimizer = Optimizer::new(none, vec![GroupOptions::plain(0.0)], &mut table).unwrap();
                optimizer.with_clip_adaptive(Some(0.01)).step(&mut table, 0.0, &[true], None).unwrap();
                let wanted = read(&file, &format!("agc.{size}.{suffix}.{name}"));
                let difference = (parameter.grad() - &wanted).abs().max().double_value(&[]);
                assert_values!(difference <= tolerance, "{size} {name} in {suffix}: off by {difference:e}");
                let is_clipped = (wanted - gradient).abs().max().double_value(&[]) > 1e-4;
                assert!(is_clipped || size == "small", "nothing is clipped");
            }
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
