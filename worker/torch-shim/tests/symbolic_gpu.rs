//! Symbolic tensors that simulate a GPU: known facts of CUDA's kernels and allocator, in bytes computed by
//! hand. No GPU is needed; `cargo xtask gpu-test` compares predictions with a GPU.
#![allow(clippy::unwrap_used)]

use dtrain_torch_shim::autocast::Autocast;
use dtrain_torch_shim::memory::{self, Usage};
use dtrain_torch_shim::symbolic::{SimulatedGpu, Symbolic};
use tch::{Device, Kind, Tensor};

const HALF: (Kind, Device) = (Kind::BFloat16, Device::Cpu);
const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// An A100, by default with libtorch's attention.
const A100: SimulatedGpu = SimulatedGpu { multiprocessors: 108, ..SimulatedGpu::LARGE };

/// Returns a channels-last tensor.
fn last(shape: [i64; 4]) -> Tensor {
    let [_, c, h, w] = shape;
    Tensor::empty_strided(shape, [h * w * c, 1, w * c, c], HALF)
}

fn conv(x: &Tensor, weight: &Tensor) -> Tensor {
    x.conv2d(weight, None::<Tensor>, [1, 1], [1, 1], [1, 1], 1)
}

/// Returns the bytes that `body` leaves allocated and their peak, above the start.
fn measure<T>(region: &Symbolic, body: impl FnOnce() -> T) -> (u64, u64, T) {
    region.reset_peak().unwrap();
    let before = region.usage().unwrap().allocated;
    let value = body();
    let Usage { allocated, peak, .. } = region.usage().unwrap();
    (allocated - before, peak - before, value)
}

/// Autocast of a GPU computes norms, sums and powers in float32; the CPU's keeps their dtype.
fn check_autocast() {
    let _autocast = Autocast::enter(Device::Cpu, Kind::BFloat16).unwrap();
    let x = Tensor::empty([4, 8, 3], HALF);
    for (name, y) in [
        ("layer_norm", x.layer_norm([3], None::<Tensor>, None::<Tensor>, 1e-5, false)),
        ("group_norm", x.group_norm(2, None::<Tensor>, None::<Tensor>, 1e-5, false)),
        ("sum", x.sum_dim_intlist([2i64].as_slice(), true, None)),
        ("pow", x.pow_tensor_scalar(3)),
        ("exp", x.exp()),
    ] {
        assert_eq!(y.kind(), Kind::Float, "{name}");
    }
    assert_eq!(x.sum_dim_intlist([2i64].as_slice(), true, Kind::BFloat16).kind(), Kind::BFloat16);
    assert_eq!(x.gelu("none").kind(), Kind::BFloat16);
}

/// One test, because memory stats are process-wide.
#[test]
fn symbolic_operations_allocate_as_on_a_gpu() {
    memory::enable_stats().unwrap();
    let region = Symbolic::enter(Some(A100)).unwrap();

    // The caching allocator rounds blocks to 512 bytes.
    for (bytes, block) in [(1, 512), (512, 512), (513, 1024), (100_000, 100_352)] {
        let (kept, ..) = measure(&region, || Tensor::empty([bytes], (Kind::Uint8, Device::Cpu)));
        assert_eq!(kept, block);
    }

    check_sums(&region);
    check_autocast();

    // In channels-last, cuDNN needs only its result; otherwise its workspace has all three tensors too.
    let (x, weight) = (last([4, 8, 32, 32]), last([16, 8, 3, 3]));
    let y_bytes = 4 * 16 * 32 * 32 * 2;
    let (kept, most, y) = measure(&region, || conv(&x, &weight));
    assert_eq!((kept, most), (y_bytes, y_bytes));
    assert_eq!(y.stride(), [16 * 32 * 32, 1, 32 * 16, 16]);
    let (plain_x, plain_weight) = (Tensor::empty([4, 8, 32, 32], FLOAT), Tensor::empty([16, 8, 3, 3], FLOAT));
    let (kept, most, _) = measure(&region, || conv(&plain_x, &plain_weight));
    let all = (4 * 8 + 4 * 16) * 32 * 32 * 4 + 16 * 8 * 9 * 4;
    assert_eq!((kept, most), (2 * y_bytes, 2 * y_bytes + all));
    // The gradient of a half-precision weight is summed in float32.
    let trained = last([16, 8, 3, 3]).set_requires_grad(true);
    let loss = conv(&x, &trained).sum(Kind::Float);
    let (kept, most, ()) = measure(&region, || loss.backward());
    let weight_bytes = 2560; // 16 * 8 * 9 * 2, rounded
    assert_eq!(kept, weight_bytes);
    assert!(most >= weight_bytes + 4 * 16 * 8 * 9, "{most}");
    drop((x, y, weight, trained, loss, plain_x, plain_weight));

    // A GPU's autocast computes log-probabilities in float32, and their gradient returns in half precision.
    let logits = Tensor::empty([64, 1000], HALF).set_requires_grad(true);
    let (kept, most, logs) = measure(&region, || logits.log_softmax(1, None::<Kind>));
    let full = 64 * 1000 * 4;
    assert_eq!(logs.kind(), Kind::Float);
    assert_eq!((kept, most), (full, 2 * full));
    logs.sum(Kind::Float).backward();
    assert_eq!(logits.grad().kind(), Kind::BFloat16);
    let usage = region.usage().unwrap().allocated;
    drop(logs);
    assert_eq!(usage - region.usage().unwrap().allocated, full);
    drop(logits);

    // Flash attention: forward its result and a sum per query, backward the queries' float32 gradient too.
    let part = || Tensor::empty([2, 12, 256, 64], HALF).set_requires_grad(true);
    let (q, k, v) = (part(), part(), part());
    let attend = || Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, true, None, false);
    let (kept, most, y) = measure(&region, attend);
    let (one, sums) = (2 * 12 * 256 * 64 * 2, 2 * 12 * 256 * 4);
    assert_eq!((kept, most), (one + sums, one + sums));
    let loss = y.sum(Kind::Float);
    let (kept, most, ()) = measure(&region, || loss.backward());
    assert_eq!(kept, 3 * one - sums, "three gradients, and the sums are freed");
    let queries_in_float = 2 * one;
    assert!(most >= 4 * one + queries_in_float, "{most}");
    drop((q, k, v, y, loss));
    assert_eq!(region.usage().unwrap().allocated, 0);
    // With dropout, which the CPU computes by products of all queries and keys, a GPU's kernels take no more. The memory-efficient kernel
    // takes float32, and masks, whose gradient has rows of multiples of 16.
    for (kind, mask) in [(HALF, false), (FLOAT, false), (HALF, true), (FLOAT, true)] {
        let began = std::time::Instant::now();
        let part = || Tensor::empty([8, 12, 2048, 64], kind).set_requires_grad(true);
        let (q, k, v) = (part(), part(), part());
        let mask = mask.then(|| Tensor::empty([1, 12, 2048, 2040], kind).set_requires_grad(true));
        let (k, v) = match &mask {
            Some(_) => (k.narrow(2, 0, 2040), v.narrow(2, 0, 2040)),
            None => (k, v),
        };
        let attend =
            || Tensor::scaled_dot_product_attention(&q, &k, &v, mask.as_ref(), 0.1, false, None, false);
        let (kept, most, y) = measure(&region, attend);
        let width = if kind.0 == Kind::Float { 4 } else { 2 };
        let (one, sums) = (8 * 12 * 2048 * 64 * width, 8 * 12 * 2048 * 4);
        // The empty mask takes one block.
        assert!(kept.abs_diff(one + sums) <= 512 && most.abs_diff(kept) <= 512, "{kind:?}: {kept} {most}");
        let loss = y.sum(Kind::Float);
        let (_, most, ()) = measure(&region, || loss.backward());
        let grad_mask = mask.as_ref().map_or(0, |_| 8 * 12 * 2048 * 2048 * width);
        assert!(most >= 3 * one + grad_mask && most <= 9 * one + 2 * grad_mask, "{kind:?}: {most}");
        drop((q, k, v, y, loss, mask));
        assert!(began.elapsed().as_secs() < 20, "nothing is computed");
    }
    assert_eq!(region.usage().unwrap().allocated, 0);

    // For a ViT's 197 tokens, flash attention pads its sums and gradients to 256; cuDNN does not pad. Wide
    // and odd heads, which cuDNN does not support, use flash attention.
    drop(region);
    let scratch = |gpu, kind, width: i64| {
        let region = Symbolic::enter(Some(gpu)).unwrap();
        let part = || Tensor::empty([2, 12, 197, width], kind).set_requires_grad(true);
        let (q, k, v) = (part(), part(), part());
        let y = Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, false, None, false);
        // Its gradient has the heads last, which no kernel copies.
        let factor = Tensor::empty([2, 197, 12, width], kind).transpose(1, 2);
        let loss = (&y * &factor).sum(kind.0);
        // Less may stay than before: padded heads are freed.
        region.reset_peak().unwrap();
        let before = region.usage().unwrap().allocated;
        loss.backward();
        let most = region.usage().unwrap().peak - before;
        drop((q, k, v, y, factor, loss));
        assert_eq!(region.usage().unwrap().allocated, 0);
        most
    };
    let by_cudnn = SimulatedGpu { cudnn_attention_width: 128, ..A100 };
    let differ = |kind, width| scratch(A100, kind, width) - scratch(by_cudnn, kind, width);
    let rounding = 2 * 12 * (256 - 197) * (64 + 1) * 4;
    assert!(differ(HALF, 64).abs_diff(rounding) <= 512, "{}", differ(HALF, 64));
    for (kind, width) in [(FLOAT, 64), (HALF, 160), (HALF, 36)] {
        assert_eq!(differ(kind, width), 0, "{kind:?} {width}");
    }
    // cuDNN takes masks of two and of four dimensions; the memory-efficient kernel keeps sums of 32 queries.
    let kept = |gpu, shape: &[i64]| {
        let region = Symbolic::enter(Some(gpu)).unwrap();
        let part = || Tensor::empty([2, 4, 100, 64], HALF).set_requires_grad(true);
        let (q, k, v, mask) = (part(), part(), part(), Tensor::empty(shape, HALF));
        let attention =
            || Tensor::scaled_dot_product_attention(&q, &k, &v, Some(&mask), 0.0, false, None, false);
        measure(&region, attention).0
    };
    for (shape, takes) in [(&[100, 100][..], true), (&[4, 100, 100], false), (&[2, 1, 100, 100], true)] {
        assert_eq!(kept(by_cudnn, shape) != kept(A100, shape), takes, "{shape:?}");
    }

    // A T4 has no kernel for bfloat16: products keep the softmax of the scores.
    let kept = |gpu, kind| {
        let region = Symbolic::enter(Some(gpu)).unwrap();
        let part = || Tensor::empty([2, 12, 197, 64], kind).set_requires_grad(true);
        let (q, k, v) = (part(), part(), part());
        let attention =
            || Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, false, None, false);
        measure(&region, attention).0
    };
    let t4 = SimulatedGpu {
        multiprocessors: 40,
        threads_per_multiprocessor: 1024,
        has_bf16_attention: false,
        ..A100
    };
    assert!(kept(t4, HALF) > kept(A100, HALF) + 2 * 12 * 197 * 197);
    assert_eq!(kept(t4, FLOAT), kept(A100, FLOAT));

    check_attention_scratch(A100, t4);
    check_libraries();

    // A CPU region does not round.
    let region = Symbolic::enter(None).unwrap();
    let (kept, ..) = measure(&region, || Tensor::empty([513], (Kind::Uint8, Device::Cpu)));
    assert_eq!(kept, 513);
}

/// The scratch memory of attention in backward, as libtorch 2.11 allocated it on fake GPUs, with the sums that forward keeps and a
/// padded mask, which are freed.
fn check_attention_scratch(a100: SimulatedGpu, t4: SimulatedGpu) {
    const FP16: (Kind, Device) = (Kind::Half, Device::Cpu);
    let rtx3090 = SimulatedGpu { multiprocessors: 82, threads_per_multiprocessor: 1536, ..a100 };
    let tokens = [16, 32, 32, 70, 70];
    for (gpu, kind, [samples, heads, shared, queries, keys], width, mask, heads_last, expected) in [
        (a100, FLOAT, [16, 32, 32, 16, 16], 8, false, true, 8_495_104),
        (a100, FLOAT, tokens, 128, false, true, 33_910_784),
        (a100, FLOAT, tokens, 256, false, true, 67_481_600),
        (a100, FLOAT, tokens, 64, false, false, 26_308_608),
        (t4, FLOAT, tokens, 50, false, true, 17_133_568),
        (t4, FLOAT, tokens, 128, false, true, 33_927_168),
        (t4, FP16, tokens, 64, false, true, 17_133_568),
        (t4, FP16, [4, 4, 4, 300, 200], 160, false, true, 13_149_696),
        (a100, HALF, tokens, 128, true, true, 34_063_872),
        (a100, HALF, tokens, 160, true, true, 117_966_336),
        (a100, HALF, [16, 40, 40, 1024, 1024], 160, true, true, 592_691_200),
        (a100, HALF, [2, 8, 8, 513, 1025], 160, true, true, 35_219_968),
        (a100, HALF, tokens, 160, false, true, 50_738_176),
        (a100, HALF, [4, 32, 8, 512, 512], 64, false, true, 34_079_744),
        (rtx3090, HALF, tokens, 128, true, true, 67_642_880),
        (rtx3090, HALF, tokens, 200, false, true, 134_590_464),
    ] {
        let region = Symbolic::enter(Some(gpu)).unwrap();
        let part =
            |heads, length| Tensor::empty([samples, heads, length, width], kind).set_requires_grad(true);
        let (q, k, v) = (part(heads, queries), part(shared, keys), part(shared, keys));
        let mask = mask.then(|| Tensor::empty([samples, 1, queries, keys], kind));
        let grouped = heads != shared;
        let y = Tensor::scaled_dot_product_attention(&q, &k, &v, mask.as_ref(), 0.0, false, None, grouped);
        let factor = match heads_last {
            true => Tensor::empty([samples, queries, heads, width], kind).transpose(1, 2),
            false => Tensor::empty([samples, heads, queries, width], kind),
        };
        let loss = (&y * &factor).sum(kind.0);
        let (kept, most, ()) = measure(&region, || loss.backward());
        // The gradient of the result is the factor times that of the loss.
        let size = if kind.0 == Kind::Float { 4 } else { 2 };
        let scratch = most - kept - (samples * heads * queries * width * size) as u64;
        assert!(scratch.abs_diff(expected) <= 2048, "{gpu:?} {kind:?} {width}: {scratch}, not {expected}");
        drop((q, k, v, y, factor, loss, mask));
    }
    // Rows that are not dense, and heads that no kernel takes, are computed by products.
    let kept = |gpu, kind, width: i64, dense| {
        let region = Symbolic::enter(Some(gpu)).unwrap();
        let part = || match dense {
            true => Tensor::empty([2, 4, 256, width], kind).set_requires_grad(true),
            false => Tensor::empty([2, 4, width, 256], kind).set_requires_grad(true).transpose(2, 3),
        };
        let (q, k, v) = (part(), part(), part());
        let attention =
            || Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, false, None, false);
        measure(&region, attention).0
    };
    let scores = 2 * 4 * 256 * 256 * 4;
    for (gpu, kind, width, dense, by_products) in [
        (a100, FLOAT, 64, true, false),
        (a100, FLOAT, 64, false, true),
        (a100, FLOAT, 50, true, true),
        (t4, FLOAT, 50, true, false),
        (t4, FP16, 36, true, true),
        (a100, HALF, 36, true, false),
    ] {
        assert_eq!(kept(gpu, kind, width, dense) > scores, by_products, "{gpu:?} {kind:?} {width} {dense}");
    }
}

/// cuBLAS keeps a workspace in each thread that multiplies, cuBLASLt in each that adds a bias.
fn check_libraries() {
    let region = Symbolic::enter(Some(A100)).unwrap();
    let part = |shape: [i64; 2]| Tensor::empty(shape, FLOAT).set_requires_grad(true);
    let _ = region.take_library_bytes(0);
    let image = Tensor::empty([2, 3, 8, 8], FLOAT);
    let weight = Tensor::empty([4, 3, 3, 3], FLOAT).set_requires_grad(true);
    let y = image.conv2d(&weight, None::<&Tensor>, 1, 1, 1, 1);
    y.sum(Kind::Float).backward();
    assert_eq!(region.take_library_bytes(100), 0, "a convolution is cuDNN's");
    let (x, weight) = (part([4, 8]), part([8, 6]));
    let _ = tch::no_grad(|| x.mm(&weight));
    assert_eq!(region.take_library_bytes(100), 100);
    x.mm(&weight).sum(Kind::Float).backward();
    assert_eq!(region.take_library_bytes(100), 200);
    let bias = Tensor::empty([6], FLOAT);
    bias.addmm(&x, &weight).sum(Kind::Float).backward();
    assert_eq!(region.take_library_bytes(100), 200 + (1 << 20));
}

/// The scratch memory of long sums, from Reduce.cuh of libtorch 2.11 by hand.
fn check_sums(region: &Symbolic) {
    let scratch = |rows: i64, columns: i64| {
        let x = Tensor::empty([rows, columns], FLOAT);
        let (kept, most, _) = measure(region, || x.sum_dim_intlist([0i64].as_slice(), true, Kind::Float));
        most - kept
    };
    // 2 blocks of 128 columns; 64 rows for each of 64 parts. A counter for each of 2 blocks takes one block of memory.
    assert_eq!(scratch(4096, 256), 4 * 256 * 64 * 128 + 512);
    // 16 blocks of threads on each of 108 multiprocessors are enough for many rows: 864 parts.
    assert_eq!(scratch(1 << 18, 256), 4 * 256 * 864 * 128 + 512);
    // A thread adds fewer than 256 values by itself.
    assert_eq!(scratch(1020, 256), 0);
    // Along rows a block adds up its values, so that a part has one value.
    let x = Tensor::empty([1 << 20], FLOAT);
    let (kept, most, _) = measure(region, || x.sum(Kind::Float));
    assert_eq!(most - kept, 1024);
}
