//! Batch normalisation over participants, compared with the whole batch. The participants are threads that
//! share their tensors. Each adds them up, so the losses' sum has one graph, which libtorch differentiates.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Barrier, Mutex};

use tch::{Device, Kind, Tensor};

use super::super::super::batch_sync::BatchSync;
use super::super::super::error::ModelError;
use super::super::super::registry::Registry;
use super::super::super::{Architecture, UnetConfig, build, build_unet};
use super::super::*;

/// The tensors that the threads exchange.
#[derive(Debug)]
struct Table {
    slots: Mutex<Vec<Option<Tensor>>>,
    barrier: Barrier,
}

/// One thread's slot.
#[derive(Debug)]
struct Participant {
    table: Arc<Table>,
    index: usize,
}

impl BatchSync for Participant {
    fn all_reduce(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        self.table.slots.lock().unwrap()[self.index] = Some(x.shallow_clone());
        self.table.barrier.wait();
        let sum = {
            let slots = self.table.slots.lock().unwrap();
            let parts = slots.iter().map(|slot| slot.as_ref().unwrap());
            parts.skip(1).fold(slots[0].as_ref().unwrap().shallow_clone(), |sum, part| sum + part)
        };
        self.table.barrier.wait();
        Ok(sum)
    }

    fn participants(&self) -> usize {
        self.table.slots.lock().unwrap().len()
    }
}

fn create_participants(count: usize) -> Vec<Arc<dyn BatchSync>> {
    let slots = Mutex::new((0..count).map(|_| None).collect());
    let table = Arc::new(Table { slots, barrier: Barrier::new(count) });
    (0..count)
        .map(|index| {
            let table = Arc::clone(&table);
            Arc::new(Participant { table, index }) as Arc<dyn BatchSync>
        })
        .collect()
}

/// Calls `run` for each item on a separate thread. Returns the results in the items' order.
fn in_threads<I: Send, T: Send>(items: impl IntoIterator<Item = I>, run: impl Fn(I) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || run(item))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub(crate) type Forward = Box<dyn Fn(&Tensor) -> Result<Tensor, ModelError> + Send>;

/// Compares outputs and gradients of a model from `make` for the whole `x` and for its parts in threads.
pub(crate) fn compare(make: &dyn Fn(&mut Registry) -> Forward, x: &Tensor, parts: &[i64], tolerance: f64) {
    let new = |sync| {
        let mut registry = Registry::new(Device::Cpu);
        registry.kind = Kind::Double;
        registry.set_batch_sync(sync);
        let forward = make(&mut registry);
        (registry, forward)
    };
    let (whole, forward) = new(None);
    for entry in whole.state() {
        // Change weights and statistics from their initial values: a branch with weight 0 would hide errors.
        if entry.tensor().kind() == Kind::Double && entry.tensor().dim() == 1 {
            let _ = tch::no_grad(|| entry.tensor().shallow_clone().uniform_(0.5, 1.5));
        }
    }
    let joint: Vec<_> =
        create_participants(parts.len()).into_iter().map(|participant| new(Some(participant))).collect();
    for (registry, _) in &joint {
        for (from, to) in whole.state().iter().zip(registry.state()) {
            tch::no_grad(|| to.tensor().shallow_clone().copy_(from.tensor()));
        }
    }
    let x = x.copy().set_requires_grad(true);
    let expected = forward(&x).unwrap();
    let direction = expected.detach().randn_like();
    (&expected * &direction).sum(Kind::Double).backward();
    let expected_gradient = x.grad().copy();

    let pieces: Vec<Tensor> = x
        .split_with_sizes(parts, 0)
        .iter()
        .map(|part| part.detach().copy().set_requires_grad(true))
        .collect();
    let (registries, forwards): (Vec<_>, Vec<_>) = joint.into_iter().unzip();
    let given = forwards.into_iter().zip(pieces.iter().map(Tensor::shallow_clone));
    let outputs = in_threads(given, |(forward, piece)| forward(&piece).unwrap());
    let near = |got: &Tensor, expected: &Tensor, name: &str| {
        // With two values a channel, the normalised values are near 1 and -1, and the gradient is what is left
        // of terms 10,000 times larger and more: its error is relative to the terms.
        let scale = expected.abs().max().double_value(&[]).max(1e-3);
        let difference = (got - expected).abs().max().double_value(&[]) / scale;
        assert!(difference < tolerance, "{name}: {difference:e}");
    };
    let got = Tensor::cat(&outputs, 0);
    near(&got, &expected.detach(), "outputs");
    (&got * &direction).sum(Kind::Double).backward();
    let gradients: Vec<Tensor> = pieces.iter().map(|piece| piece.grad()).collect();
    near(&Tensor::cat(&gradients, 0), &expected_gradient, "the input's gradient");
    for (index, entry) in whole.state().iter().enumerate() {
        let of = |registry: &Registry| registry.state()[index].tensor().shallow_clone();
        if entry.tensor().requires_grad() {
            let sum = registries.iter().map(|registry| of(registry).grad()).reduce(|a, b| a + b);
            near(&sum.unwrap(), &entry.tensor().grad(), entry.name());
        } else {
            for registry in &registries {
                near(&of(registry), entry.tensor(), entry.name());
            }
        }
    }
}

fn batch_norm(registry: &mut Registry) -> Forward {
    let layer = BatchNorm::new(&mut registry.root().sub("bn"), 5).unwrap();
    Box::new(move |x| layer.forward(x, true))
}

pub(crate) fn values(shape: [i64; 4]) -> Tensor {
    // Mean and spread differ by sample and by channel.
    let noise = Tensor::f_randn(shape, (Kind::Double, Device::Cpu)).unwrap();
    let by_sample = Tensor::f_randn([shape[0], shape[1], 1, 1], (Kind::Double, Device::Cpu)).unwrap();
    noise * by_sample.exp() + by_sample * 3.0
}

#[test]
fn parts_are_normalised_as_the_whole_batch() {
    compare(&batch_norm, &values([6, 5, 3, 4]), &[3, 3], 1e-10);
    compare(&batch_norm, &values([7, 5, 3, 4]), &[1, 4, 2], 1e-10);
}

#[test]
fn parts_may_have_one_value_or_none() {
    compare(&batch_norm, &values([2, 5, 1, 1]), &[1, 1], 1e-10);
    compare(&batch_norm, &values([3, 5, 2, 2]), &[2, 0, 1], 1e-10);
}

#[test]
fn whole_networks_give_the_same_results() {
    let resnet = |registry: &mut Registry| -> Forward {
        let model = build(Architecture::ResNet18, 3, 4, registry).unwrap();
        let least = if registry.is_batch_synced() { 1 } else { 2 };
        assert_eq!(model.min_micro_batch(32), least);
        Box::new(move |x| model.forward(x, true))
    };
    compare(&resnet, &values([4, 3, 33, 33]), &[1, 3], 1e-6);
    compare(&resnet, &values([3, 3, 40, 40]), &[0, 3], 1e-6);
    let unet = |registry: &mut Registry| -> Forward {
        let config = UnetConfig { channels: 3, classes: 2, width: 4, depth: 2 };
        registry.channels_last = true;
        let model = build_unet(config, registry).unwrap();
        Box::new(move |x| model.forward(x, true))
    };
    compare(&unet, &values([3, 3, 13, 10]), &[2, 0, 1], 1e-6);
}

#[test]
fn a_large_mean_keeps_the_variance_accurate() {
    let layers: Vec<_> = create_participants(2)
        .into_iter()
        .map(|participant| {
            let mut registry = Registry::new(Device::Cpu);
            registry.set_batch_sync(Some(participant));
            let layer = BatchNorm::new(&mut registry.root().sub("bn"), 1).unwrap();
            (registry, layer)
        })
        .collect();
    // In float32 the squares of these values differ by less than their last digit.
    let parts = [[10_000.0f32, 10_001.0], [10_002.0, 10_003.0]];
    let outputs = in_threads(layers.into_iter().zip(parts), |((registry, layer), part)| {
        let y = layer.forward(&Tensor::from_slice(&part).view([2, 1, 1, 1]), true).unwrap();
        let variance = registry.get("bn.running_var").unwrap().tensor();
        assert!((variance.double_value(&[0]) - (0.9 + 0.1 * 5.0 / 3.0)).abs() < 1e-5);
        y
    });
    let expected = [-1.5f64, -0.5, 0.5, 1.5].map(|value| value / (1.25f64 + 1e-5).sqrt());
    let got = Tensor::cat(&outputs, 0).view([4]);
    for (index, expected) in expected.into_iter().enumerate() {
        // Mean times scale is about 9000, whose last digit is 0.001.
        assert!((got.double_value(&[index as i64]) - expected).abs() < 2e-3, "{got}");
    }
}

#[test]
fn too_few_values_fail_on_all_and_one_participant_is_ignored() {
    let outcomes = in_threads((0i64..).zip(create_participants(2)), |(index, participant)| {
        let mut registry = Registry::new(Device::Cpu);
        registry.set_batch_sync(Some(participant));
        let layer = BatchNorm::new(&mut registry.root().sub("bn"), 5).unwrap();
        let x = values([index, 5, 1, 1]).to_kind(Kind::Float);
        let outcome = layer.forward(&x, true).map(drop);
        let counter = registry.get("bn.num_batches_tracked").unwrap().tensor();
        assert_eq!(counter.int64_value(&[]), 0);
        assert!(layer.forward(&x, false).is_ok());
        outcome
    });
    for outcome in outcomes {
        assert!(matches!(outcome, Err(ModelError::Batch { .. })), "{outcome:?}");
    }
    let mut registry = Registry::new(Device::Cpu);
    registry.set_batch_sync(create_participants(1).pop());
    assert!(!registry.is_batch_synced());
}

#[test]
fn half_precision_values_have_float32_statistics() {
    let half = values([4, 5, 6, 6]).to_kind(Kind::BFloat16);
    let parts = [half.narrow(0, 0, 1), half.narrow(0, 1, 3)];
    let outcomes = in_threads(create_participants(2).into_iter().zip(parts), |(participant, x)| {
        let mut registry = Registry::new(Device::Cpu);
        registry.set_batch_sync(Some(participant));
        let layer = BatchNorm::new(&mut registry.root().sub("bn"), 5).unwrap();
        let y = layer.forward(&x, true).unwrap();
        assert_eq!(y.kind(), Kind::BFloat16);
        (y, registry.get("bn.running_var").unwrap().tensor().shallow_clone())
    });
    let [a, b] = outcomes.as_slice() else { panic!("two participants") };
    let mut registry = Registry::new(Device::Cpu);
    let layer = BatchNorm::new(&mut registry.root().sub("bn"), 5).unwrap();
    let expected = layer.forward(&half.to_kind(Kind::Float), true).unwrap();
    let got = Tensor::cat(&[&a.0, &b.0], 0).to_kind(Kind::Float);
    assert!(got.allclose(&expected, 0.01, 0.01, false));
    let variance = registry.get("bn.running_var").unwrap().tensor();
    assert!(a.1.equal(&b.1) && a.1.allclose(variance, 1e-5, 1e-6, false));
}
