#![allow(clippy::unwrap_used)]
use std::sync::atomic::AtomicU64;

use dtrain_torch_shim::autocast::Autocast;
use tch::{Device, Kind};

use super::super::{
    Architecture, BatchNorm, Conv2d, ConvOptions, Gpt, GptConfig, Linear, Registry, Role, UnetConfig,
    VitConfig, build, build_unet,
};
use super::*;

type Forward = Box<dyn Fn(&Tensor) -> Result<Tensor, ModelError>>;

/// Returns all results of a step of two micro-batches: outputs, gradients and buffers by name.
fn step(registry: &Registry, forward: &Forward, batches: &[Tensor], bf16: bool) -> Vec<(String, Tensor)> {
    tch::manual_seed(11);
    let mut results = Vec::new();
    let before: Vec<Tensor> = registry.buffers().map(|entry| entry.tensor().copy()).collect();
    for (number, batch) in batches.iter().enumerate() {
        let y = {
            let _region = bf16.then(|| Autocast::enter(Device::Cpu, Kind::BFloat16).unwrap());
            forward(batch).unwrap()
        };
        let loss = y.to_kind(Kind::Float).square().sum(Kind::Float);
        registry.recompute().backward(&loss).unwrap();
        results.push((format!("output {number}"), y.detach()));
    }
    for entry in registry.parameters() {
        let mut leaf = entry.tensor().shallow_clone();
        if leaf.requires_grad() {
            results.push((entry.name().to_owned(), leaf.grad().copy()));
            leaf.zero_grad();
        }
    }
    for (entry, before) in registry.buffers().zip(before) {
        results.push((entry.name().to_owned(), entry.tensor().copy()));
        tch::no_grad(|| entry.tensor().shallow_clone().copy_(&before));
    }
    results
}

/// Checks that results are identical to the bit with no, the first, and all segments recomputed.
fn compare(registry: &Registry, forward: &Forward, batches: &[Tensor], segments: usize) {
    assert_eq!(registry.recompute().segments(), segments);
    for entry in registry.parameters().filter(|entry| entry.tensor().dim() == 1) {
        // A branch with weight 0 would hide errors.
        let _ = tch::no_grad(|| entry.tensor().shallow_clone().uniform_(0.5, 1.5));
    }
    for bf16 in [false, true] {
        registry.recompute().set(0);
        let plain = step(registry, forward, batches, bf16);
        for count in [1, usize::MAX] {
            registry.recompute().set(count);
            assert_eq!(registry.recompute().count(), count.min(segments));
            let again = step(registry, forward, batches, bf16);
            assert_eq!(plain.len(), again.len());
            for ((name, a), (_, b)) in plain.iter().zip(&again) {
                assert!(a.equal(b) && a.kind() == b.kind(), "{name} at {count} segments, bf16 {bf16}");
            }
        }
    }
}

fn images(shape: [i64; 4]) -> Vec<Tensor> {
    [0, 1].map(|_| Tensor::randn(shape, (Kind::Float, Device::Cpu))).into()
}

#[test]
fn a_gpt_has_the_same_gradients() {
    let config = GptConfig { vocabulary: 11, context: 8, width: 12, depth: 3, heads: 3 };
    let mut registry = Registry::new(Device::Cpu);
    let model = Gpt::new(config, &mut registry).unwrap();
    let tokens = [0, 1].map(|_| Tensor::randint(11, [2, 8], (Kind::Int64, Device::Cpu)));
    let forward: Forward = Box::new(move |x| model.forward(x, true));
    compare(&registry, &forward, &tokens, 3);
}

#[test]
fn a_vit_has_the_same_gradients() {
    let config = VitConfig { image_size: 16, patch: 4, width: 24, depth: 4, heads: 3 };
    let mut registry = Registry::new(Device::Cpu);
    let model = build(Architecture::Vit(config), 3, 5, &mut registry).unwrap();
    let forward: Forward = Box::new(move |x| model.forward(x, true));
    compare(&registry, &forward, &images([3, 3, 16, 16]), 4);
}

#[test]
fn resnets_have_the_same_gradients_and_statistics() {
    for (arch, last, segments) in [(Architecture::ResNet18, false, 9), (Architecture::ResNet50, true, 17)] {
        let mut registry = Registry::new(Device::Cpu);
        registry.channels_last = last;
        let model = build(arch, 3, 5, &mut registry).unwrap();
        let forward: Forward = Box::new(move |x| model.forward(x, true));
        compare(&registry, &forward, &images([2, 3, 33, 33]), segments);
    }
}

#[test]
fn a_unet_has_the_same_gradients_and_statistics() {
    for last in [false, true] {
        let config = UnetConfig { channels: 3, classes: 2, width: 4, depth: 3 };
        let mut registry = Registry::new(Device::Cpu);
        registry.channels_last = last;
        let model = build_unet(config, &mut registry).unwrap();
        let forward: Forward = Box::new(move |x| model.forward(x, true));
        compare(&registry, &forward, &images([2, 3, 21, 26]), 7);
    }
}

/// A segment of one layer that counts its runs.
/// As in training.
fn forward(layer: &Linear, x: &Tensor) -> Result<Tensor, ModelError> {
    layer.forward(x, true)
}

struct Counted {
    registry: Registry,
    segment: Segment<Linear>,
    times: Arc<AtomicU64>,
}

impl Counted {
    fn new() -> Self {
        let mut registry = Registry::new(Device::Cpu);
        let mut root = registry.root();
        let segment = root.segment(|scope| Linear::new(&mut scope.sub("fc"), 4, 4)).unwrap();
        Self { registry, segment, times: Arc::default() }
    }

    /// Runs one step. `change` gets the number of earlier runs and the output, and returns a changed output.
    fn step(&self, change: impl Fn(u64, Tensor) -> Tensor + Send + Sync + 'static) -> Result<(), ModelError> {
        let x = Tensor::ones([2, 4], (Kind::Float, Device::Cpu));
        let times = Arc::clone(&self.times);
        let y = self.segment.run(&x, move |layer, x| {
            Ok(change(times.fetch_add(1, Ordering::SeqCst), layer.forward(x, true)?))
        })?;
        self.registry.recompute().backward(&y.sum(Kind::Float))
    }

    fn times(&self) -> u64 {
        self.times.swap(0, Ordering::SeqCst)
    }
}

#[test]
fn a_segment_is_recomputed_only_if_needed() {
    let counted = Counted::new();
    assert_eq!(&*counted.segment.name, "fc");
    let same = |_, y| y;
    counted.step(same).unwrap();
    assert_eq!(counted.times(), 1, "recompute is off");
    counted.registry.recompute().set_all();
    counted.step(same).unwrap();
    assert_eq!(counted.times(), 2);
    let x = Tensor::ones([2, 4], (Kind::Float, Device::Cpu));
    let y = tch::no_grad(|| counted.segment.run(&x, forward)).unwrap();
    assert!(!y.requires_grad(), "an evaluation");
    // Frozen, and no earlier layer learns: the output needs no gradient, as without recomputation.
    for entry in counted.registry.parameters() {
        entry.tensor().shallow_clone().zero_grad();
        let _ = entry.tensor().set_requires_grad(false);
    }
    let y = counted.segment.run(&x, forward).unwrap();
    assert!(!y.requires_grad());
    // Frozen, but an earlier layer learns.
    let x = x.set_requires_grad(true);
    counted.segment.run(&x, forward).unwrap().sum(Kind::Float).backward();
    assert!(x.grad().abs().sum(Kind::Float).double_value(&[]) > 0.0);
    assert!(
        counted.registry.parameters().all(|entry| entry.tensor().grad().abs().max().double_value(&[]) == 0.0)
    );
}

#[test]
fn a_segment_with_another_result_is_an_error() {
    let counted = Counted::new();
    counted.registry.recompute().set_all();
    let found = |error: ModelError, words: &str| {
        let text = error.to_string();
        assert!(matches!(&error, ModelError::Recomputed(segment, _) if segment == "fc"), "{text}");
        assert!(text.contains(words) && text.contains("memory.recompute = \"off\""), "{text}");
    };
    // One element differs in its last bit.
    let bit = |time: u64, y: Tensor| {
        let change = Tensor::from_slice(&[0.0f32, 0.0, 0.0, 1e-6 * time as f32]);
        y + change
    };
    found(counted.step(bit).unwrap_err(), "other values");
    let shape = |time: u64, y: Tensor| y.narrow(0, 0, 1 + (time % 2) as i64);
    found(counted.step(shape).unwrap_err(), "shape [2, 4] instead of [1, 4]");
    let kind =
        |time: u64, y: Tensor| y.to_kind(if time.is_multiple_of(2) { Kind::Float } else { Kind::Double });
    counted.times();
    found(counted.step(kind).unwrap_err(), "of Double instead of Float");

    // Bits are compared in the runs 1, 2, 4, 8 ... since the last change; shapes always.
    for _ in 0..2 {
        counted.registry.recompute().set(0);
        counted.registry.recompute().set_all();
        let outcomes: Vec<bool> = (1..=17).map(|_| counted.step(bit).is_err()).collect();
        let checked: Vec<usize> = (1..=17).filter(|run| outcomes[run - 1]).collect();
        assert_eq!(checked, [1, 2, 4, 8, 16]);
    }
    counted.times();
    assert!(counted.step(shape).is_err());
}

#[test]
fn errors_of_both_passes_keep_their_type() {
    let counted = Counted::new();
    counted.registry.recompute().set_all();
    let x = Tensor::ones([2, 4], (Kind::Float, Device::Cpu));
    let no_classes = |time: u64| {
        move |_: &Linear, x: &Tensor, now: u64| match now == time {
            true => Err(ModelError::NoClasses),
            false => Ok(x * 2.0),
        }
    };
    for time in [0, 1] {
        let (fail, times) = (no_classes(time), AtomicU64::default());
        let outcome = counted
            .segment
            .run(&x, move |layer, x| fail(layer, x, times.fetch_add(1, Ordering::SeqCst)))
            .and_then(|y| counted.registry.recompute().backward(&y.sum(Kind::Float)));
        assert!(matches!(outcome, Err(ModelError::NoClasses)), "{outcome:?}");
    }
    // An error that nobody took must not become the cause of a later one.
    let (fail, times) = (no_classes(1), AtomicU64::default());
    let y = counted.segment.run(&x, move |layer, x| fail(layer, x, times.fetch_add(1, Ordering::SeqCst)));
    assert!(y.unwrap().sum(Kind::Float).f_backward().is_err());
    counted.step(|_, y| y).unwrap();
    let constant = Tensor::ones([1], (Kind::Float, Device::Cpu));
    let outcome = counted.registry.recompute().backward(&constant);
    assert!(matches!(outcome, Err(ModelError::Torch(_))), "{outcome:?}");
}

#[test]
fn layers_know_whether_they_are_recomputed() {
    assert!(!is_recomputing());
    let mut registry = Registry::new(Device::Cpu);
    let build = |scope: &mut super::super::Scope<'_>| {
        let conv = Conv2d::new(&mut scope.sub("conv"), (2, 3), ConvOptions::kernel(1))?;
        Ok((conv, BatchNorm::new(&mut scope.sub("bn"), 3)?))
    };
    let segment = registry.root().segment(build).unwrap();
    registry.recompute().set_all();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&seen);
    let x = Tensor::randn([2, 2, 3, 3], (Kind::Float, Device::Cpu));
    let y = segment.run(&x, move |(conv, bn), x| {
        recorded.lock().unwrap().push(is_recomputing());
        bn.forward(&conv.forward(x, true)?, true)
    });
    registry.recompute().backward(&y.unwrap().square().sum(Kind::Float)).unwrap();
    assert_eq!(*seen.lock().unwrap(), [false, true]);
    assert!(!is_recomputing());
    let counter = registry.get("bn.num_batches_tracked").unwrap();
    assert_eq!((counter.tensor().int64_value(&[]), counter.role()), (1, Role::Buffer));
}
