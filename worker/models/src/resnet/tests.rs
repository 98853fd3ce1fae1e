#![allow(clippy::unwrap_used)]
use tch::{Device, Kind};

use super::super::layout::{channels_last, is_channels_last};
use super::super::{Architecture, build};
use super::*;

fn network(arch: Architecture, classes: usize) -> (Registry, Box<dyn Classifier>) {
    let mut registry = Registry::new(Device::Cpu);
    let model = build(arch, 3, classes, &mut registry).unwrap();
    (registry, model)
}

fn images(shape: [i64; 4]) -> Tensor {
    Tensor::f_ones(shape, (Kind::Float, Device::Cpu)).unwrap()
}

#[test]
fn blocks_start_as_the_identity() {
    let (registry, _model) = network(Architecture::ResNet18, 10);
    for entry in registry.parameters() {
        let zero = entry.tensor().abs().max().double_value(&[]) == 0.0;
        let silent = entry.name().ends_with("bn2.weight");
        let bias =
            entry.name().contains("bn") && entry.name().ends_with("bias") || entry.name().ends_with("1.bias");
        assert_eq!(zero, silent || bias, "{}", entry.name());
    }
}

#[test]
fn parameter_counts_are_torchvisions() {
    for (arch, count, tensors, entries) in [
        (Architecture::ResNet18, 11_689_512, 62, 122),
        (Architecture::ResNet34, 21_797_672, 110, 218),
        (Architecture::ResNet50, 25_557_032, 161, 320),
        (Architecture::ResNet101, 44_549_160, 314, 626),
        (Architecture::ResNet152, 60_192_808, 467, 932),
    ] {
        let (registry, _) = network(arch, 1000);
        assert_eq!(registry.parameter_count(), count, "{arch:?}");
        assert_eq!(registry.parameters().count(), tensors);
        assert_eq!(registry.state().len(), entries);
    }
    assert_eq!(network(Architecture::ResNet18, 10).0.parameter_count(), 11_689_512 - 990 * 513);
}

#[test]
fn forward_and_backward_reach_every_parameter() {
    let (registry, model) = network(Architecture::ResNet18, 7);
    let logits = model.forward(&images([2, 3, 40, 33]), true).unwrap();
    assert_eq!(logits.size(), [2, 7]);
    logits.f_square().unwrap().f_sum(Kind::Float).unwrap().f_backward().unwrap();
    for entry in registry.parameters() {
        assert!(entry.tensor().grad().defined(), "{} has no gradient", entry.name());
        assert_eq!(entry.tensor().grad().size(), entry.tensor().size());
    }
    let counter = registry.get("layer4.1.bn2.num_batches_tracked").unwrap().tensor();
    assert_eq!(counter.int64_value(&[]), 1);
}

#[test]
fn evaluation_keeps_the_state_and_takes_one_image() {
    let (registry, model) = network(Architecture::ResNet18, 3);
    let before: Vec<Tensor> = registry.buffers().map(|entry| entry.tensor().copy()).collect();
    assert_eq!(model.forward(&images([1, 3, 32, 32]), false).unwrap().size(), [1, 3]);
    for (entry, before) in registry.buffers().zip(&before) {
        assert!(entry.tensor().f_equal(before).unwrap(), "{}", entry.name());
    }
}

#[test]
fn the_smallest_micro_batch_suffices_for_batch_norm() {
    let (_registry, model) = network(Architecture::ResNet18, 3);
    for size in [8usize, 32, 33, 64] {
        let least = model.min_micro_batch(size);
        let side = size as i64;
        assert!(model.forward(&images([least as i64, 3, side, side]), true).is_ok(), "{size}");
        if least > 1 {
            let error = model.forward(&images([least as i64 - 1, 3, side, side]), true).unwrap_err();
            assert!(matches!(&error, ModelError::Batch(layer, _) if layer.starts_with("layer")), "{error}");
        }
    }
    assert_eq!([1, 32, 33, 224].map(|size| model.min_micro_batch(size)), [2, 2, 1, 1]);
}

#[test]
fn wrong_input_and_no_classes_are_errors() {
    let (_registry, model) = network(Architecture::ResNet18, 3);
    for shape in [[1, 1, 32, 32], [0, 3, 32, 32], [1, 3, 0, 32]] {
        let error = model.forward(&images(shape), false).unwrap_err();
        assert!(matches!(error, ModelError::Input { .. }), "{error}");
    }
    let flat = Tensor::f_ones([3, 32, 32], (Kind::Float, Device::Cpu)).unwrap();
    assert!(matches!(model.forward(&flat, false), Err(ModelError::Input { .. })));
    let nothing = build(Architecture::ResNet18, 3, 0, &mut Registry::new(Device::Cpu)).map(|_| ());
    assert!(matches!(nothing, Err(ModelError::NoClasses)));
}

#[test]
fn bottlenecks_start_as_the_identity_with_the_stride_in_the_middle() {
    let (registry, model) = network(Architecture::ResNet50, 5);
    let silent = registry
        .parameters()
        .filter(|entry| entry.name().ends_with("bn3.weight") && entry.name().starts_with("layer"));
    assert_eq!(silent.filter(|entry| entry.tensor().abs().max().double_value(&[]) == 0.0).count(), 16);
    let inner = registry.get("layer2.0.conv1.weight").unwrap().tensor().size();
    assert_eq!(inner, [128, 256, 1, 1]);
    assert_eq!(model.forward(&images([1, 3, 64, 64]), true).unwrap().size(), [1, 5]);
    let mut registry = Registry::new(Device::Cpu);
    let block = Block::new(&mut registry.root(), (8, 4), 2, true).unwrap();
    let strides: Vec<Vec<i64>> = block
        .layers
        .iter()
        .map(|(conv, _)| {
            conv.forward(&images([1, if std::ptr::eq(conv, &block.layers[0].0) { 8 } else { 4 }, 8, 8]), true)
        })
        .map(|y| y.unwrap().size()[2..].to_vec())
        .collect();
    assert_eq!(strides, [[8, 8], [4, 4], [8, 8]]);
}

#[test]
fn images_must_have_the_models_channels() {
    for channels in [1, 4] {
        let mut registry = Registry::new(Device::Cpu);
        let model = build(Architecture::ResNet18, channels, 3, &mut registry).unwrap();
        let side = channels as i64;
        assert_eq!(registry.get("conv1.weight").unwrap().tensor().size(), [64, side, 7, 7]);
        assert_eq!(model.forward(&images([2, side, 33, 33]), true).unwrap().size(), [2, 3]);
        let error = model.forward(&images([2, 3, 33, 33]), true).unwrap_err();
        assert!(error.to_string().contains(&format!("N x {channels} x H x W")), "{error}");
    }
    let nothing = build(Architecture::ResNet18, 0, 3, &mut Registry::new(Device::Cpu)).map(|_| ());
    assert!(matches!(nothing, Err(ModelError::NoChannels)));
}

/// The same weights in both layouts.
fn pair(layout: Layout) -> [(Registry, ResNet); 2] {
    let [plain, last] = [false, true].map(|on| {
        let mut registry = Registry::new(Device::Cpu);
        registry.kind = Kind::Double;
        registry.channels_last = on;
        let net = ResNet::new(layout, 3, 5, &mut registry).unwrap();
        (registry, net)
    });
    for (from, to) in plain.0.state().iter().zip(last.0.state()) {
        // A branch with weight 0 would hide errors.
        let source = if from.name().ends_with("weight") && from.tensor().dim() == 1 {
            from.tensor().uniform(0.5, 1.0)
        } else {
            from.tensor().detach()
        };
        tch::no_grad(|| {
            from.tensor().shallow_clone().copy_(&source);
            to.tensor().shallow_clone().copy_(&source);
        });
    }
    [plain, last]
}

#[test]
fn channels_last_changes_only_the_strides() {
    let layouts = [
        Layout { blocks: [1, 1, 1, 1], bottleneck: false },
        Layout { blocks: [1, 1, 1, 1], bottleneck: true },
    ];
    for layout in layouts {
        let [(plain, a), (last, b)] = pair(layout);
        let x = Tensor::f_randn([3, 3, 65, 70], (Kind::Double, Device::Cpu)).unwrap();
        let (xa, xb) = (x.copy().set_requires_grad(true), x.copy().set_requires_grad(true));
        let maps = b.features(&x, false).unwrap();
        assert!(is_channels_last(&maps), "{:?}", maps.stride());
        assert!(!is_channels_last(&a.features(&x, false).unwrap()));
        let images = channels_last(&x).unwrap();
        let mut y = b.stem.run(&images, |layers, x| stem(layers, x, true)).unwrap();
        assert!(is_channels_last(&y));
        for block in &b.blocks {
            y = block.run(&y, |block, x| block.forward(x, true)).unwrap();
            assert!(is_channels_last(&y), "{:?}", y.stride());
        }
        // The loop above has changed `b`'s statistics; make them equal before the comparison.
        for (from, to) in plain.buffers().zip(last.buffers()) {
            to.tensor().shallow_clone().copy_(from.tensor());
        }

        let (ya, yb) = (a.forward(&xa, true).unwrap(), b.forward(&xb, true).unwrap());
        let near = |a: &Tensor, b: &Tensor, name: &str| {
            let difference = ((a - b).norm() / a.norm()).double_value(&[]);
            assert!(difference < 1e-9, "{name}: {difference:e}");
        };
        near(&ya, &yb, "logits");
        ya.square().sum(Kind::Double).backward();
        yb.square().sum(Kind::Double).backward();
        near(&xa.grad(), &xb.grad(), "the images' gradient");
        for (from, to) in plain.parameters().zip(last.parameters()) {
            near(&from.tensor().grad(), &to.tensor().grad(), from.name());
            let four = to.tensor().dim() == 4;
            assert!(!four || is_channels_last(to.tensor()), "{}", to.name());
            assert!(
                !four || is_channels_last(&to.tensor().grad()),
                "gradient of {}: {:?}",
                to.name(),
                to.tensor().grad().stride()
            );
        }
        for (from, to) in plain.buffers().zip(last.buffers()) {
            assert!(from.tensor().allclose(to.tensor(), 1e-9, 1e-12, false), "{}", from.name());
        }
    }
}
