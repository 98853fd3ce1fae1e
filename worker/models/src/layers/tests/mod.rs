#![allow(clippy::unwrap_used)]
pub(crate) mod sync;

use tch::{Device, Kind, Tensor};

use super::super::error::ModelError;
use super::super::layout::{channels_last, is_channels_last};
use super::super::registry::Registry;
use super::init::CPU_FLOAT;
use super::*;

const THREE_BY_THREE: ConvOptions =
    ConvOptions { kernel: 3, stride: 1, padding: 1, bias: false, init: Init::FanOut };

#[test]
fn batch_norm_counts_and_normalises_only_in_training() {
    let mut registry = Registry::new(Device::Cpu);
    let layer = BatchNorm::new(&mut registry.root().sub("bn"), 2).unwrap();
    let x = Tensor::from_slice(&[1.0f32, 3.0, 10.0, 30.0]).f_view([1, 2, 1, 2]).unwrap();
    let counter = registry.get("bn.num_batches_tracked").unwrap().tensor();

    let unchanged = layer.forward(&x, false).unwrap();
    assert!((unchanged.double_value(&[0, 1, 0, 1]) - 30.0).abs() < 1e-3);
    assert_eq!(counter.int64_value(&[]), 0);

    let y = layer.forward(&x, true).unwrap();
    assert!((y.double_value(&[0, 0, 0, 0]) + 1.0).abs() < 1e-4);
    assert!((y.double_value(&[0, 1, 0, 1]) - 1.0).abs() < 1e-4);
    assert_eq!(counter.int64_value(&[]), 1);
    // 0.9 x 0 + 0.1 x 20, and 0.9 x 1 + 0.1 x 200 (the running variance is the unbiased one).
    assert!((registry.get("bn.running_mean").unwrap().tensor().double_value(&[1]) - 2.0).abs() < 1e-5);
    assert!((registry.get("bn.running_var").unwrap().tensor().double_value(&[1]) - 20.9).abs() < 1e-4);
}

#[test]
fn frozen_statistics_normalise_in_training_and_stay() {
    let mut registry = Registry::new(Device::Cpu);
    registry.is_batch_frozen = true;
    let layer = BatchNorm::new(&mut registry.root().sub("bn"), 2).unwrap();
    let running = || registry.buffers().map(|entry| entry.tensor().copy()).collect::<Vec<_>>();
    let before = running();
    let x = Tensor::from_slice(&[1f32, 2.0, 3.0, -4.0]).view([2, 2]).set_requires_grad(true);
    let trained = layer.forward(&x, true).unwrap();
    assert_eq!(trained, layer.forward(&x, false).unwrap());
    // One value per channel is enough.
    assert_eq!(layer.forward(&x.narrow(0, 1, 1), true).unwrap(), trained.narrow(0, 1, 1));
    assert_eq!(running(), before);
    trained.sum(Kind::Float).backward();
    // The statistics are constants: 1 / sqrt(1 + eps) for each value.
    let expected = (1.0 + 1e-5f64).powf(-0.5);
    assert!((x.grad() - expected).abs().max().double_value(&[]) < 1e-6);
}

#[test]
fn groups_are_normalised_separately_and_move_the_statistics_by_their_mean() {
    let x = Tensor::randn([7, 2, 3, 3], (Kind::Double, Device::Cpu)) * 3.0 + 1.0;
    let layer = |name: &str| {
        let mut registry = Registry::new(Device::Cpu);
        registry.kind = Kind::Double;
        let layer = BatchNorm::new(&mut registry.root().sub(name), 2).unwrap();
        (registry, layer)
    };
    let (whole, all) = layer("all");
    whole.groups().set(Some(3));
    let together = x.copy().set_requires_grad(true);
    let got = all.forward(&together, true).unwrap();
    let direction = got.detach().randn_like();
    (&got * &direction).sum(Kind::Double).backward();

    let value = |registry: &Registry, at: usize| registry.state()[at].tensor().copy();
    let mut statistics =
        [Tensor::zeros([2], (Kind::Double, Device::Cpu)), Tensor::zeros([2], (Kind::Double, Device::Cpu))];
    for (begin, length) in [(0, 3), (3, 3), (6, 1)] {
        let (registry, alone) = layer("alone");
        let part = x.narrow(0, begin, length).copy().set_requires_grad(true);
        let expected = alone.forward(&part, true).unwrap();
        (&expected * direction.narrow(0, begin, length)).sum(Kind::Double).backward();
        assert!(got.narrow(0, begin, length).allclose(&expected, 1e-12, 1e-12, false));
        assert!(together.grad().narrow(0, begin, length).allclose(&part.grad(), 1e-12, 1e-12, false));
        for (at, sum) in statistics.iter_mut().enumerate() {
            *sum += value(&registry, 2 + at) * (length as f64 / 7.0);
        }
    }
    for (at, expected) in statistics.iter().enumerate() {
        assert!(value(&whole, 2 + at).allclose(expected, 1e-12, 1e-12, false));
    }
    assert_eq!(value(&whole, 4).int64_value(&[]), 1);
    // Groups exist only in training.
    assert!(all.forward(&x, false).is_ok());
}

/// Two samples of the three are a group, and each has two rows, as frames of a video.
#[test]
fn rows_of_a_sample_are_in_its_group() {
    let mut registry = Registry::new(Device::Cpu);
    let layer = BatchNorm::new(&mut registry.root().sub("bn"), 2).unwrap();
    let x = Tensor::randn([6, 2], CPU_FLOAT) * 3.0;
    let run = |x: &Tensor, group: Option<usize>, samples: usize| {
        registry.groups().set(group);
        registry.groups().begin_micro_batch(samples);
        layer.forward(x, true)
    };
    for (group, borders) in [(1, &[0, 2, 4, 6][..]), (2, &[0, 4, 6]), (3, &[0, 6]), (8, &[0, 6])] {
        let part = |pair: &[i64]| run(&x.narrow(0, pair[0], pair[1] - pair[0]), None, 1).unwrap();
        let expected = Tensor::cat(&borders.windows(2).map(part).collect::<Vec<_>>(), 0);
        assert!(run(&x, Some(group), 3).unwrap().allclose(&expected, 1e-5, 1e-6, false), "{group}");
    }
    let error = run(&x, Some(2), 4).unwrap_err();
    assert!(matches!(&error, ModelError::Rows(layer, 6, 4) if layer == "bn"), "{error}");
    assert!(run(&x, None, 4).is_ok(), "without groups, rows need no samples");
}

#[test]
fn layers_count_a_micro_batch_together() {
    let mut registry = Registry::new(Device::Cpu);
    let layers = ["a", "b"].map(|name| BatchNorm::new(&mut registry.root().sub(name), 2).unwrap());
    let x = Tensor::from_slice(&[1.0f32, 3.0, 10.0, 30.0]).f_view([1, 2, 1, 2]).unwrap();
    let counts = || {
        ["a", "b"].map(|name| {
            registry.get(&format!("{name}.num_batches_tracked")).unwrap().tensor().int64_value(&[])
        })
    };
    for done in 0..2 {
        registry.groups().begin_forward();
        drop(layers[0].forward(&x, true).unwrap());
        drop(layers[1].forward(&x, true).unwrap());
        assert_eq!(counts(), [3 * done, done]);
        // A layer that is used several times counts each.
        drop(layers[0].forward(&x, true).unwrap());
        drop(layers[0].forward(&x, true).unwrap());
        registry.groups().end_forward().unwrap();
        assert_eq!(counts(), [3 * done + 3, done + 1]);
    }
    // A pass that failed counts nothing.
    registry.groups().begin_forward();
    drop(layers[1].forward(&x, true).unwrap());
    registry.groups().begin_forward();
    registry.groups().end_forward().unwrap();
    assert_eq!(counts(), [6, 2]);
}

#[test]
fn batch_norm_of_one_value_per_channel_is_an_error() {
    let mut registry = Registry::new(Device::Cpu);
    let layer = BatchNorm::new(&mut registry.root().sub("bn"), 3).unwrap();
    let x = Tensor::f_zeros([1, 3, 1, 1], CPU_FLOAT).unwrap();
    let error = layer.forward(&x, true).unwrap_err();
    assert!(matches!(&error, ModelError::Batch(layer, _) if layer == "bn"), "{error}");
    assert!(error.to_string().contains("[1, 3, 1, 1]"));
    assert_eq!(registry.get("bn.num_batches_tracked").unwrap().tensor().int64_value(&[]), 0);
    assert!(layer.forward(&x, false).is_ok());
}

#[test]
fn a_wrong_shape_is_an_error_and_not_a_panic() {
    let mut registry = Registry::new(Device::Cpu);
    let conv = Conv2d::new(&mut registry.root().sub("conv"), (3, 4), THREE_BY_THREE).unwrap();
    let linear = Linear::new(&mut registry.root().sub("fc"), 4, 2).unwrap();
    let x = Tensor::f_zeros([1, 5, 8, 8], CPU_FLOAT).unwrap();
    assert!(matches!(conv.forward(&x, true), Err(ModelError::Torch(_))));
    assert!(matches!(linear.forward(&x, true), Err(ModelError::Torch(_))));
    let x = Tensor::f_zeros([2, 3, 9, 9], CPU_FLOAT).unwrap();
    assert_eq!(conv.forward(&x, true).unwrap().size(), [2, 4, 9, 9]);
    // Of a changed program file.
    let mut registry = Registry::new(Device::Cpu);
    let norm = BatchNorm::new(&mut registry.root().sub("bn"), 2).unwrap();
    for shape in [&[][..], &[3]] {
        let error = norm.forward(&Tensor::zeros(shape, (Kind::Float, Device::Cpu)), true).unwrap_err();
        assert!(error.to_string().contains("BatchNorm takes N x channels"), "{error}");
    }
}

#[test]
fn initial_values_have_the_documented_spread() {
    let mut registry = Registry::new(Device::Cpu);
    Conv2d::new(&mut registry.root().sub("conv"), (64, 128), THREE_BY_THREE).unwrap();
    Linear::new(&mut registry.root().sub("fc"), 400, 100).unwrap();
    let deviation =
        |name| registry.get(name).unwrap().tensor().f_std(true).unwrap().f_double_value(&[]).unwrap();
    let of_conv = (2.0f64 / (128.0 * 9.0)).sqrt();
    assert!((deviation("conv.weight") / of_conv - 1.0).abs() < 0.02);
    let of_linear = 1.0 / 400.0f64.sqrt() / 3.0f64.sqrt();
    assert!((deviation("fc.weight") / of_linear - 1.0).abs() < 0.02);
    let largest = registry.get("fc.bias").unwrap().tensor().f_abs().unwrap().f_max().unwrap();
    assert!(largest.double_value(&[]) <= 0.05);
}

#[test]
fn channels_last_moves_values_and_gradients() {
    let x = Tensor::f_arange(2 * 3 * 4 * 5, CPU_FLOAT).unwrap().view([2, 3, 4, 5]).set_requires_grad(true);
    let y = channels_last(&x).unwrap();
    assert!(is_channels_last(&y) && !is_channels_last(&x) && y.equal(&x));
    (&y * &y).sum(Kind::Float).backward();
    assert!(x.grad().equal(&(x.detach() * 2.0)));
    // With one channel both layouts are the same; three dimensions have no such layout.
    assert!(is_channels_last(&x.narrow(1, 0, 1).contiguous()));
    assert!(!is_channels_last(&x.select(0, 0)));
    assert!(matches!(channels_last(&x.select(0, 0)), Err(ModelError::Torch(_))));
}

#[test]
fn attention_equals_the_textbook_formula() {
    let options = BlockOptions {
        width: 12,
        heads: 3,
        causal: true,
        eps: 1e-5,
        gelu: "tanh",
        drops_inside: true,
        drop_path: 0.0,
        init: Init::Normal(0.5),
        residual: Init::Normal(0.5),
        names: BlockNames::GPT2,
    };
    let x = Tensor::f_randn([2, 5, 12], CPU_FLOAT).unwrap();
    for causal in [true, false] {
        let mut registry = Registry::new(Device::Cpu);
        let options = BlockOptions { causal, ..options };
        let layer = Block::new(&mut registry.root(), &options).unwrap();
        let get = |name: &str| registry.get(name).unwrap().tensor().detach();
        let qkv = x.linear(&get("attn.c_attn.weight"), Some(&get("attn.c_attn.bias")));
        let mut heads = Vec::new();
        for head in 0..3 {
            let part = |index: i64| qkv.narrow(2, 12 * index + 4 * head, 4);
            let mut scores = part(0).matmul(&part(1).transpose(1, 2)) / 2.0;
            if causal {
                let later = Tensor::f_ones([5, 5], CPU_FLOAT).unwrap().triu(1).to_kind(Kind::Bool);
                scores = scores.masked_fill(&later, f64::NEG_INFINITY);
            }
            heads.push(scores.softmax(-1, Kind::Float).matmul(&part(2)));
        }
        let expected =
            Tensor::cat(&heads, 2).linear(&get("attn.c_proj.weight"), Some(&get("attn.c_proj.bias")));
        let got = layer.attention(&x, true).unwrap();
        let difference = (got - expected).abs().max().double_value(&[]);
        assert!(difference < 1e-5, "causal {causal}: {difference:e}");
    }
}

#[test]
fn a_transposed_convolution_enlarges_without_overlap() {
    let mut registry = Registry::new(Device::Cpu);
    let layer = ConvTranspose2d::new(&mut registry.root().sub("up"), (3, 2), 2).unwrap();
    let x = Tensor::f_randn([1, 3, 4, 5], CPU_FLOAT).unwrap();
    let y = layer.forward(&x).unwrap();
    assert_eq!(y.size(), [1, 2, 8, 10]);
    let weight = registry.get("up.weight").unwrap().tensor();
    let bias = registry.get("up.bias").unwrap().tensor();
    // Output pixel (5, 6) depends only on input pixel (2, 3), by the kernel's element (1, 0).
    let expected = x.select(2, 2).select(2, 3).matmul(&weight.select(2, 1).select(2, 0)) + bias;
    let difference = (y.select(2, 5).select(2, 6) - expected).abs().max().double_value(&[]);
    assert!(difference < 1e-5, "{difference:e}");
}
