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

#[allow(dead_code)]
fn conv(t: &[Tensor], stride: i64, padding: i64) -> Tensor {
    t[0].conv2d(&t[1], t.get(2), [stride, stride], [padding, padding], [1, 1], 1)
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
    (
        "dw3 c1024 2x2 last",
        || vec![x(&[4, 4, 1024]), x(&[1024, 1, 3, 3])],
        |t| {
            t[0].transpose(1, 2).reshape([4, 1024, 2, 2]).conv2d(
                &t[1],
                None::<&Tensor>,
                [1, 1],
                [1, 1],
                [1, 1],
                1024,
            )
        },
    ),
    (
        "dw3 c1024 2x2",
        || vec![x(&[4, 1024, 2, 2]), x(&[1024, 1, 3, 3])],
        |t| t[0].conv2d(&t[1], None::<&Tensor>, [1, 1], [1, 1], [1, 1], 1024),
    ),
    (
        "dw3 c1280 4x4 last",
        || vec![x(&[4, 16, 1280]), x(&[1280, 1, 3, 3])],
        |t| {
            t[0].transpose(1, 2).reshape([4, 1280, 4, 4]).conv2d(
                &t[1],
                None::<&Tensor>,
                [1, 1],
                [1, 1],
                [1, 1],
                1280,
            )
        },
    ),
    (
        "dw3 c1280 4x4",
        || vec![x(&[4, 1280, 4, 4]), x(&[1280, 1, 3, 3])],
        |t| t[0].conv2d(&t[1], None::<&Tensor>, [1, 1], [1, 1], [1, 1], 1280),
    ),
    (
        "dw3 c512 8x8 last",
        || vec![x(&[4, 64, 512]), x(&[512, 1, 3, 3])],
        |t| {
            t[0].transpose(1, 2).reshape([4, 512, 8, 8]).conv2d(
                &t[1],
                None::<&Tensor>,
                [1, 1],
                [1, 1],
                [1, 1],
                512,
            )
        },
    ),
    (
        "dw3 c512 8x8",
        || vec![x(&[4, 512, 8, 8]), x(&[512, 1, 3, 3])],
        |t| t[0].conv2d(&t[1], None::<&Tensor>, [1, 1], [1, 1], [1, 1], 512),
    ),
    (
        "dw3 c256 16x16 last",
        || vec![x(&[4, 256, 256]), x(&[256, 1, 3, 3])],
        |t| {
            t[0].transpose(1, 2).reshape([4, 256, 16, 16]).conv2d(
                &t[1],
                None::<&Tensor>,
                [1, 1],
                [1, 1],
                [1, 1],
                256,
            )
        },
    ),
    (
        "dw3 c256 16x16",
        || vec![x(&[4, 256, 16, 16]), x(&[256, 1, 3, 3])],
        |t| t[0].conv2d(&t[1], None::<&Tensor>, [1, 1], [1, 1], [1, 1], 256),
    ),
    (
        "dw3 c1024 1x1 last",
        || vec![x(&[4, 1, 1024]), x(&[1024, 1, 3, 3])],
        |t| {
            t[0].transpose(1, 2).reshape([4, 1024, 1, 1]).conv2d(
                &t[1],
                None::<&Tensor>,
                [1, 1],
                [1, 1],
                [1, 1],
                1024,
            )
        },
    ),
    (
        "dw3 c1024 1x1",
        || vec![x(&[4, 1024, 1, 1]), x(&[1024, 1, 3, 3])],
        |t| t[0].conv2d(&t[1], None::<&Tensor>, [1, 1], [1, 1], [1, 1], 1024),
    ),
    (
        "dw9 c160 2x2 last",
        || vec![x(&[4, 4, 160]), x(&[160, 1, 9, 9])],
        |t| {
            t[0].transpose(1, 2).reshape([4, 160, 2, 2]).conv2d(
                &t[1],
                None::<&Tensor>,
                [1, 1],
                [4, 4],
                [1, 1],
                160,
            )
        },
    ),
    (
        "dw9 c160 1x1 last",
        || vec![x(&[4, 1, 160]), x(&[160, 1, 9, 9])],
        |t| {
            t[0].transpose(1, 2).reshape([4, 160, 1, 1]).conv2d(
                &t[1],
                None::<&Tensor>,
                [1, 1],
                [4, 4],
                [1, 1],
                160,
            )
        },
    ),
    (
        "dw9 c160 3x3 last",
        || vec![x(&[4, 9, 160]), x(&[160, 1, 9, 9])],
        |t| {
            t[0].transpose(1, 2).reshape([4, 160, 3, 3]).conv2d(
                &t[1],
                None::<&Tensor>,
                [1, 1],
                [4, 4],
                [1, 1],
                160,
            )
        },
    ),
    (
        "dw7 c96 4x4 last",
        || vec![x(&[4, 16, 96]), x(&[96, 1, 7, 7])],
        |t| {
            t[0].transpose(1, 2).reshape([4, 96, 4, 4]).conv2d(
                &t[1],
                None::<&Tensor>,
                [1, 1],
                [3, 3],
                [1, 1],
                96,
            )
        },
    ),
    (
        "dw7 c96 2x2 last",
        || vec![x(&[4, 4, 96]), x(&[96, 1, 7, 7])],
        |t| {
            t[0].transpose(1, 2).reshape([4, 96, 2, 2]).conv2d(
                &t[1],
                None::<&Tensor>,
                [1, 1],
                [3, 3],
                [1, 1],
                96,
            )
        },
    ),
    (
        "dw7 c96 3x3 last",
        || vec![x(&[4, 9, 96]), x(&[96, 1, 7, 7])],
        |t| {
            t[0].transpose(1, 2).reshape([4, 96, 3, 3]).conv2d(
                &t[1],
                None::<&Tensor>,
                [1, 1],
                [3, 3],
                [1, 1],
                96,
            )
        },
    ),
    (
        "dw5 c96 2x2 last",
        || vec![x(&[4, 4, 96]), x(&[96, 1, 5, 5])],
        |t| {
            t[0].transpose(1, 2).reshape([4, 96, 2, 2]).conv2d(
                &t[1],
                None::<&Tensor>,
                [1, 1],
                [2, 2],
                [1, 1],
                96,
            )
        },
    ),
    (
        "dw5 c96 4x4 last",
        || vec![x(&[4, 16, 96]), x(&[96, 1, 5, 5])],
        |t| {
            t[0].transpose(1, 2).reshape([4, 96, 4, 4]).conv2d(
                &t[1],
                None::<&Tensor>,
                [1, 1],
                [2, 2],
                [1, 1],
                96,
            )
        },
    ),
    (
        "dw9 c160 2x2",
        || vec![x(&[4, 160, 2, 2]), x(&[160, 1, 9, 9])],
        |t| t[0].conv2d(&t[1], None::<&Tensor>, [1, 1], [4, 4], [1, 1], 160),
    ),
    (
        "dw9 c160 1x1",
        || vec![x(&[4, 160, 1, 1]), x(&[160, 1, 9, 9])],
        |t| t[0].conv2d(&t[1], None::<&Tensor>, [1, 1], [4, 4], [1, 1], 160),
    ),
    (
        "dw9 c160 3x3",
        || vec![x(&[4, 160, 3, 3]), x(&[160, 1, 9, 9])],
        |t| t[0].conv2d(&t[1], None::<&Tensor>, [1, 1], [4, 4], [1, 1], 160),
    ),
    (
        "dw7 c96 4x4",
        || vec![x(&[4, 96, 4, 4]), x(&[96, 1, 7, 7])],
        |t| t[0].conv2d(&t[1], None::<&Tensor>, [1, 1], [3, 3], [1, 1], 96),
    ),
    (
        "dw7 c96 2x2",
        || vec![x(&[4, 96, 2, 2]), x(&[96, 1, 7, 7])],
        |t| t[0].conv2d(&t[1], None::<&Tensor>, [1, 1], [3, 3], [1, 1], 96),
    ),
    (
        "dw7 c96 3x3",
        || vec![x(&[4, 96, 3, 3]), x(&[96, 1, 7, 7])],
        |t| t[0].conv2d(&t[1], None::<&Tensor>, [1, 1], [3, 3], [1, 1], 96),
    ),
    (
        "dw5 c96 2x2",
        || vec![x(&[4, 96, 2, 2]), x(&[96, 1, 5, 5])],
        |t| t[0].conv2d(&t[1], None::<&Tensor>, [1, 1], [2, 2], [1, 1], 96),
    ),
    (
        "dw5 c96 4x4",
        || vec![x(&[4, 96, 4, 4]), x(&[96, 1, 5, 5])],
        |t| t[0].conv2d(&t[1], None::<&Tensor>, [1, 1], [2, 2], [1, 1], 96),
    ),
];
/// Kernel scratch memory that needs no rule.
const SMALL: u64 = 160 << 10;

/// Runs forward, then backward. Returns allocated and peak bytes of each, and the result's shape.
fn measure((_, inputs, operation): &Case, usage: &dyn Fn(bool) -> Usage) -> (Vec<u64>, Vec<i64>) {
    let inputs = inputs();
    let start = usage(true).allocated;
    let y = operation(&inputs);
    let forward = usage(true);
    y.square().sum(Kind::Float).backward();
    let backward = usage(true);
    let bytes = [forward.allocated, forward.peak, backward.allocated, backward.peak];
    (bytes.iter().map(|bytes| bytes.wrapping_sub(start)).collect(), y.size())
}

/// One test, because memory stats are process-wide.
#[test]
fn symbolic_operations_allocate_as_real_ones() {
    memory::enable_stats().unwrap();
    let mut wrong = Vec::new();
    for case in CASES {
        let real = measure(case, &|_| {
            let usage = memory::usage(CPU).unwrap();
            memory::reset_peak(CPU).unwrap();
            usage
        });
        let region = Symbolic::enter(None).unwrap();
        let symbolic = std::panic::catch_unwind(|| {
            measure(case, &|_| {
                let usage = region.usage().unwrap();
                region.reset_peak().unwrap();
                usage
            })
        })
        .unwrap_or_default();
        // In half precision each processor generation has other kernels, which copy more or less.
        let part = if case.0.contains("bf16") { 3 } else { 100 };
        let near = |(real, symbolic): (&u64, &u64)| real.abs_diff(*symbolic) <= SMALL + real / part;
        let alike = real.0.len() == symbolic.0.len()
            && real.0.iter().zip(&symbolic.0).all(near)
            && real.1 == symbolic.1
            && (real.0[0], real.0[2]) == (symbolic.0[0], symbolic.0[2]);
        if true {
            println!("{} {}", alike, format!("{}: real {real:?}, symbolic {symbolic:?}", case.0));
        }
        assert_eq!(region.usage().unwrap().allocated, 0, "{}", case.0);
    }
    let _ = (
        &mut wrong as &mut Vec<String>,
        bias(1),
        classes(&[1]),
        norm as fn(&[Tensor]) -> Tensor,
        attend as fn(&[Tensor]) -> Tensor,
        Reduction::Sum,
        Autocast::enter,
    );
}
