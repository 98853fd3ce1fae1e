#![allow(clippy::unwrap_used)]
use std::cell::Cell;

use super::*;
use crate::collectives::Ranks;
use crate::optim::{GroupOptions, Muon, Optimizer, Rule, WeightDecay};
use crate::planning::rehearsal;
use crate::step::Eager;

thread_local! {
    /// Whether steps of this thread are decided as on a GPU, on any device.
    pub(in crate::step) static AS_ON_A_GPU: Cell<bool> = const { Cell::new(false) };
}

fn step_plan(clip: Option<f64>) -> StepPlan {
    StepPlan { expected_weight: 8.0, clip, lr: 0.01, is_rehearsed: false, ..rehearsal::plan_step(&[8]) }
}

fn single(table: &Table) -> Exchange {
    Exchange::new(Ranks::single(), None, table, dtrain_recipe::Reduce::default()).unwrap()
}

fn totals(loss_sum: f64, weight: f64) -> Totals {
    Totals { loss_sum, weight, sums: Vec::new() }
}

#[test]
fn the_factor_excludes_unreadable_samples_clips_and_skips() {
    for (loss, weight, correction, norm, clip, factor) in [
        (1.0, 8.0, 1.0, 3.0, None, Some(1.0)),
        (1.0, 8.0, 1.0, 3.0, Some(5.0), Some(1.0)),
        (1.0, 6.0, 8.0 / 6.0, 3.0, None, Some(8.0 / 6.0)),
        // As in torch.
        (1.0, 8.0, 1.0, 4.0, Some(1.0), Some(1.0 / (4.0 + 1e-6))),
        (1.0, 8.0, 1.0, f64::NAN, None, None),
        (1.0, 8.0, 1.0, f64::INFINITY, Some(1.0), None),
        (f64::NAN, 8.0, 1.0, 1.0, None, None),
        (0.0, 0.0, f64::INFINITY, f64::NAN, None, None),
    ] {
        let chosen = choose_factor(&totals(loss, weight), correction, norm, true, &step_plan(clip));
        assert_eq!(chosen, factor, "loss {loss}, weight {weight}, norm {norm}, {clip:?}");
    }
}

const ADAM: Rule =
    Rule::Adam { betas: (0.9, 0.999), eps: 1e-8, decay: WeightDecay::Decoupled, amsgrad: false };
/// Rules with a fused kernel and without.
const RULES: [Rule; 4] = [
    ADAM,
    Rule::Adam { betas: (0.9, 0.999), eps: 1e-8, decay: WeightDecay::L2, amsgrad: true },
    Rule::Lion { betas: (0.9, 0.99) },
    Rule::RmsProp { alpha: 0.9, eps: 1e-3, momentum: 0.9, centered: true },
];

const MUON: Muon = Muon {
    momentum: 0.95,
    nesterov: true,
    adjust_lr: dtrain_recipe::AdjustLr::Original,
    newton_schulz: dtrain_recipe::NewtonSchulz::Full,
};

/// How the gradient of a test is clipped, and whether it is that of a matrix for Muon.
#[derive(Debug, Clone, Copy, Default)]
struct Form {
    clip: Option<f64>,
    value: Option<f64>,
    adaptive: Option<f64>,
    is_matrix: bool,
}

/// Returns parameters with these gradients, and their optimizer.
fn trained(gradient: &[f32], rule: Rule, form: Form) -> (Table, Optimizer) {
    let leaf = Tensor::ones([1, gradient.len() as i64], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let groups = vec![GroupOptions { is_matrix: form.is_matrix, ..GroupOptions::plain(0.1) }];
    let mut table = Table::of_groups([("w", &leaf, 0)], &groups).unwrap();
    table.grads().unwrap()[0].copy_(&Tensor::from_slice(gradient).view([1, -1]));
    let optimizer = Optimizer::new(rule, groups, &mut table).unwrap();
    let optimizer = optimizer.with_muon(form.is_matrix.then_some(MUON), &mut table).unwrap();
    (table, optimizer.with_clip_value(form.value).with_clip_adaptive(form.adaptive))
}

/// Gradients, loss and weight of each step.
const STEPS: [(&[f32], f64, f64); 8] = [
    (&[3.0, -4.0], 1.5, 8.0),
    (&[3.0, -4.0], 1.5, 6.0),
    (&[0.0, 0.0], 0.0, 8.0),
    (&[1e-3, 2e-3], -7.0, 8.0),
    (&[f32::INFINITY, 1.0], 1.5, 8.0),
    (&[f32::NAN, 1.0], 1.5, 8.0),
    (&[3.0, -4.0], f64::NAN, 8.0),
    (&[0.0, 0.0], 0.0, 0.0),
];

#[test]
fn device_and_host_decide_alike() {
    let with_adam = [None, Some(1.0), Some(100.0)].map(|clip| (ADAM, Form { clip, ..Form::default() }));
    let with_others = RULES.into_iter().flat_map(|rule| {
        [(None, None), (Some(0.5), None), (None, Some(0.01))]
            .map(|(value, adaptive)| (rule, Form { value, adaptive, ..Form::default() }))
    });
    let with_muon =
        [None, Some(0.01)].map(|adaptive| (ADAM, Form { adaptive, is_matrix: true, ..Form::default() }));
    let cases: Vec<_> = with_adam.into_iter().chain(with_others).chain(with_muon).collect();
    for (gradient, loss, weight) in STEPS {
        for &(rule, form) in &cases {
            let plan = step_plan(form.clip);
            let case = format!("{gradient:?}, loss {loss}, weight {weight}, {rule:?}, {form:?}");
            // On the host.
            let (mut table, mut optimizer) = trained(gradient, rule, form);
            let norm = table.own_norms().unwrap()[0].double_value(&[]);
            let correction = plan.expected_weight / weight;
            let factor = choose_factor(&totals(loss, weight), correction, norm * correction, true, &plan);
            if let Some(factor) = factor {
                table.scale_grad(factor).unwrap();
                optimizer.step(&mut table, 0.01, &[true], None).unwrap();
            }
            // On the device; the host does not wait before the update.
            let (mut device_table, mut device_optimizer) = trained(gradient, rule, form);
            let counted = Tensor::from_slice(&[loss, weight, 5.0]);
            let queued =
                queue_decision(&single(&device_table), &mut Eager, &device_table, None, &counted, &plan)
                    .unwrap();
            let scale_and_skip = fused::ScaleAndSkip { scale: &queued.scale, skip: &queued.skip };
            device_optimizer.step(&mut device_table, 0.01, &[true], Some(scale_and_skip)).unwrap();
            let decision = read_decision(&queued.figures.wait().unwrap(), 1).unwrap();
            assert_eq!(decision.is_skipped, factor.is_none(), "{case}");
            if decision.is_skipped {
                device_table.count_updates(&[true], -1);
            } else {
                assert!((decision.norm - norm * correction).abs() <= 1e-12 * norm, "{case}");
                assert_eq!(decision.totals.sums, [5.0]);
            }
            assert_eq!(device_table.updates(), table.updates(), "{case}");
            let value = |table: &Table| table.leaves()[0].copy();
            assert!(value(&device_table).allclose(&value(&table), 1e-6, 0.0, false), "{case}");
            for ((_, device), (_, host)) in
                device_table.columns().zip(table.columns()).filter(|((_, held), _)| !held.is_empty())
            {
                assert!(device[0].allclose(&host[0], 1e-5, 1e-12, false), "{case}");
            }
        }
    }
}

#[test]
fn a_scaler_overflow_skips_the_step() {
    let (table, _) = trained(&[3.0, -4.0], ADAM, Form::default());
    let plan = step_plan(None);
    let (found, counted) = (Tensor::from(1f32), Tensor::from_slice(&[1.0, 8.0]));
    let queued = queue_decision(&single(&table), &mut Eager, &table, Some(&found), &counted, &plan).unwrap();
    let decision = read_decision(&queued.figures.wait().unwrap(), 0).unwrap();
    assert!(!decision.finite && decision.is_skipped);
    assert_eq!(queued.skip.double_value(&[0]), 1.0);
}
