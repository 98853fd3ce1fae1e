//! Symbolic tensors: their memory stats agree with those of real tensors, for each operation.
#![allow(clippy::unwrap_used)]

use dtrain_torch_shim::autocast::Autocast;
use dtrain_torch_shim::memory::{self, Usage};
use dtrain_torch_shim::symbolic::Symbolic;
use tch::{Device, Kind, Reduction, Tensor};

const CPU: Device = Device::Cpu;
const FLOAT: (Kind, Device) = (Kind::Float, CPU);

fn x(shape: &[i64]) -> Tensor {
    Tensor::randn(shape, FLOAT).set_requires_grad(true)
}

fn bias(length: i64) -> Option<Tensor> {
    Some(x(&[length]))
}

/// Name, inputs, and the operation on them.
type Case = (&'static str, fn() -> Vec<Tensor>, fn(&[Tensor]) -> Tensor);

/// Convolves `t[0]` by the weight `t[1]`, in as many groups as fit their channels.
fn conv(t: &[Tensor], stride: i64, padding: i64) -> Tensor {
    let groups = t[0].size()[1] / t[1].size()[1];
    t[0].conv2d(&t[1], t.get(2), [stride, stride], [padding, padding], [1, 1], groups)
}

fn channels_last(t: Tensor) -> Tensor {
    let (n, c, h, w) = t.size4().unwrap();
    let mut y = Tensor::empty_strided([n, c, h, w], [h * w * c, 1, w * c, c], FLOAT);
    tch::no_grad(|| y.copy_(&t));
    y.set_requires_grad(true)
}

fn norm(t: &[Tensor]) -> Tensor {
    t[0].batch_norm(
        Some(&t[1]),
        Some(&t[2]),
        Some(&t[3].detach()),
        Some(&t[4].detach()),
        true,
        0.1,
        1e-5,
        true,
    )
}

fn attend(t: &[Tensor]) -> Tensor {
    Tensor::scaled_dot_product_attention(&t[0], &t[1], &t[2], None::<&Tensor>, 0.0, true, None, false)
}

fn classes(shape: &[i64]) -> Tensor {
    Tensor::zeros(shape, (Kind::Int64, CPU))
}

const CASES: &[Case] = &[
    ("conv 3x3", || vec![x(&[4, 8, 32, 32]), x(&[16, 8, 3, 3])], |t| conv(t, 1, 1)),
    ("conv of images", || vec![x(&[4, 3, 64, 64]).detach(), x(&[16, 3, 7, 7])], |t| conv(t, 2, 3)),
    ("wide conv 3x3", || vec![x(&[4, 64, 28, 28]), x(&[64, 64, 3, 3])], |t| conv(t, 1, 1)),
    ("wide conv 3x3 stride", || vec![x(&[4, 64, 28, 28]), x(&[128, 64, 3, 3])], |t| conv(t, 2, 1)),
    ("wide conv 1x1", || vec![x(&[4, 64, 28, 28]), x(&[256, 64, 1, 1])], |t| conv(t, 1, 0)),
    ("wide conv 1x1 down", || vec![x(&[4, 256, 28, 28]), x(&[64, 256, 1, 1])], |t| conv(t, 1, 0)),
    ("wide conv 1x1 stride", || vec![x(&[4, 256, 28, 28]), x(&[512, 256, 1, 1])], |t| conv(t, 2, 0)),
    (
        "wide conv channels-last",
        || vec![channels_last(x(&[4, 64, 28, 28])), channels_last(x(&[64, 64, 3, 3]))],
        |t| conv(t, 1, 1),
    ),
    (
        "wide conv bf16",
        || vec![x(&[4, 64, 28, 28]), x(&[64, 64, 3, 3])],
        |t| {
            let _region = Autocast::enter(CPU, Kind::BFloat16).unwrap();
            conv(t, 1, 1)
        },
    ),
    ("conv with bias", || vec![x(&[4, 8, 32, 32]), x(&[16, 8, 1, 1]), x(&[16])], |t| conv(t, 1, 0)),
    ("conv of one small image", || vec![x(&[1, 32, 8, 8]), x(&[32, 32, 3, 3])], |t| conv(t, 1, 1)),
    ("conv 1x1 of one small image", || vec![x(&[1, 64, 8, 8]), x(&[32, 64, 1, 1])], |t| conv(t, 2, 0)),
    (
        "dilated conv beyond the image",
        || vec![x(&[4, 160, 8, 8]), x(&[256, 160, 3, 3])],
        |t| t[0].conv2d(&t[1], None::<&Tensor>, [1, 1], [6, 6], [6, 6], 1),
    ),
    (
        "depthwise conv of tokens on a small map",
        || vec![x(&[4, 4, 1024]), x(&[1024, 1, 3, 3])],
        |t| {
            let maps = t[0].transpose(1, 2).reshape([4, 1024, 2, 2]);
            maps.conv2d(&t[1], None::<&Tensor>, [1, 1], [1, 1], [1, 1], 1024)
        },
    ),
    ("conv 3x3 of maps of 2x2", || vec![x(&[4, 128, 2, 2]), x(&[128, 128, 3, 3])], |t| conv(t, 1, 1)),
    ("conv 3x3 of maps of 1x1", || vec![x(&[4, 256, 1, 1]), x(&[128, 256, 3, 3])], |t| conv(t, 1, 1)),
    ("conv 5x5 of maps of 3x3", || vec![x(&[4, 64, 3, 3]), x(&[64, 64, 5, 5])], |t| conv(t, 1, 2)),
    ("conv 7x7 of maps of 4x4", || vec![x(&[4, 64, 4, 4]), x(&[64, 64, 7, 7])], |t| conv(t, 1, 3)),
    (
        "conv 3x3 of maps of 2x2 channels-last",
        || vec![channels_last(x(&[4, 128, 2, 2])), channels_last(x(&[128, 128, 3, 3]))],
        |t| conv(t, 1, 1),
    ),
    (
        "depthwise conv 7x7 channels-last of 32 channels",
        || vec![channels_last(x(&[4, 32, 16, 16])), x(&[32, 1, 7, 7])],
        |t| conv(t, 1, 3),
    ),
    (
        "depthwise conv 5x5 channels-last",
        || vec![channels_last(x(&[4, 96, 16, 16])), x(&[96, 1, 5, 5])],
        |t| conv(t, 1, 2),
    ),
    (
        "conv channels-last",
        || vec![channels_last(x(&[4, 8, 32, 32])), channels_last(x(&[16, 8, 3, 3]))],
        |t| conv(t, 1, 1),
    ),
    (
        "depthwise conv 7x7 channels-last",
        || vec![channels_last(x(&[4, 96, 16, 16])), x(&[96, 1, 7, 7])],
        |t| conv(t, 1, 3),
    ),
    ("conv 16x16 of images", || vec![x(&[4, 3, 32, 32]).detach(), x(&[192, 3, 16, 16])], |t| conv(t, 16, 0)),
    ("conv 3x3 of 100 channels", || vec![x(&[4, 100, 10, 10]), x(&[200, 100, 3, 3])], |t| conv(t, 1, 1)),
    (
        "depthwise conv 9x9 of maps of 2x2",
        || vec![x(&[4, 1000, 2, 2]), x(&[1000, 1, 9, 9])],
        |t| conv(t, 1, 4),
    ),
    (
        "depthwise conv 9x9 channels-last of maps of 1x1",
        || vec![x(&[4, 168, 1, 1]), x(&[168, 1, 9, 9])],
        |t| {
            let x = t[0].as_strided([4, 168, 1, 1], [168, 1, 168, 168], None);
            x.conv2d(&t[1], None::<Tensor>, [1, 1], [4, 4], [1, 1], 168)
        },
    ),
    (
        "depthwise conv 7x7 of constant maps",
        || vec![x(&[4, 96, 28, 28]).detach(), x(&[96, 1, 7, 7])],
        |t| conv(t, 1, 3),
    ),
    (
        "grouped conv of 8 channels with a stride",
        || vec![x(&[4, 152, 28, 28]), x(&[152, 8, 3, 3])],
        |t| conv(t, 2, 1),
    ),
    ("grouped conv of 4 channels", || vec![x(&[4, 128, 28, 28]), x(&[128, 4, 3, 3])], |t| conv(t, 1, 1)),
    (
        "depthwise conv 3x3 of odd channels",
        || vec![x(&[8, 40, 32, 32]), x(&[40, 1, 3, 3])],
        |t| conv(t, 1, 1),
    ),
    (
        "grouped conv channels-last",
        || vec![channels_last(x(&[4, 128, 32, 32])), x(&[128, 16, 3, 3])],
        |t| conv(t, 1, 1),
    ),
    (
        "layer norm of images channels-last",
        || vec![x(&[4, 96, 24, 24]), x(&[96]), x(&[96])],
        |t| t[0].permute([0, 2, 3, 1]).layer_norm([96], Some(&t[1]), Some(&t[2]), 1e-6, true),
    ),
    (
        "transposed conv",
        || vec![x(&[4, 16, 16, 16]), x(&[16, 8, 2, 2]), x(&[8])],
        |t| t[0].conv_transpose2d(&t[1], t.get(2), [2, 2], [0, 0], [0, 0], 1, [1, 1]),
    ),
    ("batch norm", || vec![x(&[4, 16, 32, 32]), x(&[16]), x(&[16]), x(&[16]), x(&[16])], norm),
    (
        "batch norm channels-last",
        || vec![channels_last(x(&[4, 16, 32, 32])), x(&[16]), x(&[16]), x(&[16]), x(&[16])],
        norm,
    ),
    (
        "layer norm",
        || vec![x(&[4, 64, 96]), x(&[96]), x(&[96])],
        |t| t[0].layer_norm([96], Some(&t[1]), Some(&t[2]), 1e-5, true),
    ),
    ("relu", || vec![x(&[4, 16, 32, 32])], |t| t[0].relu()),
    ("relu in place", || vec![x(&[4, 16, 32, 32])], |t| (&t[0] + 1.0).relu_()),
    ("gelu", || vec![x(&[4, 64, 96])], |t| t[0].gelu("tanh")),
    ("max pool", || vec![x(&[4, 16, 32, 32])], |t| t[0].max_pool2d([3, 3], [2, 2], [1, 1], [1, 1], false)),
    ("adaptive pool", || vec![x(&[4, 16, 8, 8])], |t| t[0].adaptive_avg_pool2d([1, 1])),
    ("mean", || vec![x(&[4, 16, 8, 8])], |t| t[0].mean_dim([2i64, 3].as_slice(), false, None::<Kind>)),
    ("linear", || vec![x(&[32, 96]), x(&[64, 96]), x(&[64])], |t| t[0].linear(&t[1], t.get(2))),
    (
        "linear of tokens",
        || vec![x(&[4, 64, 96]), x(&[128, 96]), x(&[128])],
        |t| t[0].linear(&t[1], t.get(2)),
    ),
    ("linear without bias", || vec![x(&[4, 64, 96]), x(&[128, 96])], |t| t[0].linear(&t[1], None::<&Tensor>)),
    ("attention", || vec![x(&[2, 4, 256, 32]), x(&[2, 4, 256, 32]), x(&[2, 4, 256, 32])], attend),
    ("attention of few tokens", || vec![x(&[2, 4, 50, 32]), x(&[2, 4, 50, 32]), x(&[2, 4, 50, 32])], attend),
    (
        "attention of many tokens",
        || vec![x(&[1, 2, 1024, 32]), x(&[1, 2, 1024, 32]), x(&[1, 2, 1024, 32])],
        attend,
    ),
    ("softmax", || vec![x(&[4, 64, 96])], |t| t[0].softmax(-1, Kind::Float)),
    (
        "cross-entropy",
        || vec![x(&[256, 100])],
        |t| t[0].cross_entropy_loss(&classes(&[256]), None::<Tensor>, Reduction::None, -100, 0.0),
    ),
    (
        "cross-entropy of pixels",
        || vec![x(&[4, 11, 32, 32])],
        |t| t[0].cross_entropy_loss(&classes(&[4, 32, 32]), None::<Tensor>, Reduction::None, -100, 0.0),
    ),
    ("embedding", || vec![x(&[512, 96])], |t| Tensor::embedding(&t[0], &classes(&[4, 64]), -1, false, false)),
    ("cat", || vec![x(&[4, 16, 32, 32]), x(&[4, 16, 32, 32])], |t| Tensor::cat(t, 1)),
    ("pad", || vec![x(&[4, 16, 31, 31])], |t| t[0].constant_pad_nd([0, 1, 0, 1])),
    ("upsample", || vec![x(&[4, 16, 16, 16])], |t| t[0].upsample_bilinear2d([32, 32], false, None, None)),
    ("dropout", || vec![x(&[4, 64, 96])], |t| t[0].dropout(0.1, true)),
    (
        "arithmetic",
        || vec![x(&[4, 64, 96]), x(&[96])],
        |t| (&t[0] * &t[1] + 1.0).square().sqrt().sigmoid().exp(),
    ),
    (
        "heads",
        || vec![x(&[4, 64, 96])],
        |t| {
            t[0].view([4, 64, 3, 4, 8])
                .permute([2, 0, 3, 1, 4])
                .select(0, 1)
                .transpose(1, 2)
                .reshape([4, 64, 32])
        },
    ),
    (
        "expand and sum",
        || vec![x(&[4, 1, 96])],
        |t| {
            t[0].expand([4, 64, 96], false).contiguous().sum_dim_intlist(
                [1i64].as_slice(),
                true,
                None::<Kind>,
            )
        },
    ),
    ("index and scatter", || vec![x(&[64, 96])], |t| t[0].index_select(0, &classes(&[16]))),
    (
        "bf16",
        || vec![x(&[4, 64, 96]), x(&[128, 96]), x(&[128])],
        |t| {
            let _region = Autocast::enter(CPU, Kind::BFloat16).unwrap();
            t[0].linear(&t[1], t.get(2)).gelu("none")
        },
    ),
    (
        "conv bf16",
        || vec![x(&[4, 8, 32, 32]), x(&[16, 8, 3, 3])],
        |t| {
            let _region = Autocast::enter(CPU, Kind::BFloat16).unwrap();
            conv(t, 1, 1).relu()
        },
    ),
    (
        "batch norm bf16",
        || vec![x(&[4, 16, 32, 32]), x(&[16]), x(&[16]), x(&[16]), x(&[16])],
        |t| {
            let mut t: Vec<Tensor> = t.iter().map(Tensor::shallow_clone).collect();
            t[0] = t[0].to_kind(Kind::BFloat16);
            norm(&t)
        },
    ),
    (
        "layer norm bf16",
        || vec![x(&[4, 64, 96]), x(&[96]), x(&[96])],
        |t| t[0].to_kind(Kind::BFloat16).layer_norm([96], Some(&t[1]), Some(&t[2]), 1e-5, true),
    ),
    (
        "attention bf16",
        || vec![x(&[2, 4, 256, 32]), x(&[2, 4, 256, 32]), x(&[2, 4, 256, 32])],
        |t| {
            let t: Vec<Tensor> = t.iter().map(|t| t.to_kind(Kind::BFloat16)).collect();
            attend(&t)
        },
    ),
];

/// Kernel scratch memory that needs no rule.
const SMALL: u64 = 160 << 10;

/// Runs forward, then backward. Returns allocated and peak bytes of each, and the result's shape.
fn measure((_, inputs, operation): &Case, usage: &dyn Fn() -> Usage) -> (Vec<u64>, Vec<i64>) {
    let inputs = inputs();
    let start = usage().allocated;
    let y = operation(&inputs);
    let forward = usage();
    y.square().sum(Kind::Float).backward();
    let backward = usage();
    let bytes = [forward.allocated, forward.peak, backward.allocated, backward.peak];
    (bytes.iter().map(|bytes| bytes.wrapping_sub(start)).collect(), y.size())
}

/// One test, because memory stats are process-wide.
#[test]
fn symbolic_operations_allocate_as_real_ones() {
    memory::enable_stats().unwrap();
    let mut wrong = Vec::new();
    for case in CASES {
        let real = measure(case, &|| {
            let usage = memory::usage(CPU).unwrap();
            memory::reset_peak(CPU).unwrap();
            usage
        });
        let region = Symbolic::enter(None).unwrap();
        let symbolic = std::panic::catch_unwind(|| {
            measure(case, &|| {
                let usage = region.usage().unwrap();
                region.reset_peak().unwrap();
                usage
            })
        })
        .unwrap_or_default();
        // In half precision each processor generation has other kernels, which copy more or less.
        let part = if case.0.contains("bf16") { 3 } else { 100 };
        let near = |(real, symbolic): (&u64, &u64)| real.abs_diff(*symbolic) <= SMALL + real / part;
        // Processors have other forward kernels for this case. A forward peak that is predicted too high, below that of
        // backward, changes no prediction of a step.
        let is_harmless = |place: usize, real: u64, symbolic: u64, backward: u64| {
            case.0 == "dilated conv beyond the image" && place == 1 && (real..=backward).contains(&symbolic)
        };
        let alike = real.0.len() == symbolic.0.len()
            && real
                .0
                .iter()
                .zip(&symbolic.0)
                .enumerate()
                .all(|(place, pair)| near(pair) || is_harmless(place, *pair.0, *pair.1, real.0[3]))
            && real.1 == symbolic.1
            && (real.0[0], real.0[2]) == (symbolic.0[0], symbolic.0[2]);
        if !alike {
            wrong.push(format!("{}: real {real:?}, symbolic {symbolic:?}", case.0));
        }
        assert_eq!(region.usage().unwrap().allocated, 0, "{}", case.0);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    // Floating-point operations, and tensors larger than any machine's memory.
    let region = Symbolic::enter(None).unwrap();
    region.take_flops();
    let y = conv(&[x(&[4, 3, 32, 32]).detach(), x(&[8, 3, 3, 3])], 1, 1);
    y.sum(Kind::Float).backward();
    assert_eq!(region.take_flops(), 2.0 * 2.0 * f64::from(4 * 8 * 32 * 32 * 27));
    let before = region.usage().unwrap().allocated;
    let huge = Tensor::zeros([1 << 20, 1 << 20], FLOAT);
    let product = huge.mm(&huge);
    assert_eq!(region.usage().unwrap().allocated - before, 8 << 40);
    assert_eq!(memory::usage(CPU).unwrap().allocated, 0, "no real memory");
    drop((huge, product, y));
    drop(region);
    assert!(
        bias(3).unwrap().abs().sum(Kind::Float).double_value(&[]) > 0.0,
        "outside the region values are computed"
    );
}
