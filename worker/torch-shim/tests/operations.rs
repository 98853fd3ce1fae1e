//! Common operations with symbolic tensors: their results have the shapes and dtypes of real ones, and forward and backward allocate
//! the same bytes. `operations.txt` has a call per line:
//!
//! `NAME[.OVERLOAD] ARGUMENT=VALUE ... [-> RESULTS]`, where RESULTS is a number of results, or `*` and the length of a list.
//!
//! A tensor is `KIND:SIZExSIZE`. KIND is empty (values of a normal distribution, with a gradient), or one of those of `tensor`.
#![allow(clippy::unwrap_used)]

use dtrain_torch_shim::ErrorKind;
use dtrain_torch_shim::memory::{self, Usage};
use dtrain_torch_shim::program::{Argument, Call, Frame, Operand, Operation, Output, Whole};
use dtrain_torch_shim::rng::BySample;
use dtrain_torch_shim::symbolic::Symbolic;
use tch::{Device, Kind, Tensor};

const CALLS: &str = include_str!("operations.txt");

/// Calls whose kernels are known for processors with AVX2 and without AVX-512 only.
const CALLS_WITH_AVX2: &str = "\
conv2d input=c:4x32x28x28 weight=32x1x7x7 padding=[4,4] dilation=[2,2] groups=32
conv2d input=c:4x32x28x28 weight=32x1x7x7 padding=[9,9] dilation=[3,3] groups=32
conv2d input=4x32x28x28 weight=32x1x13x13 padding=[6,6] groups=32
conv2d input=4x32x28x28 weight=32x1x15x15 padding=[4,4] groups=32
conv2d input=4x32x28x28 weight=32x1x31x31 padding=[15,15] groups=32
";

fn has_avx2_only() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx2") && !is_x86_feature_detected!("avx512bw");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

const CPU: Device = Device::Cpu;

/// Differences that need no rule: scalars and small scratch memory of kernels.
const SMALL: u64 = 12 << 10;

/// Operations whose bytes differ, and why.
const DIFFERENT: [(&str, &str); 1] = [("linalg_inv", "LAPACK solves on a copy")];

/// A call with the tensors of its arguments.
struct Prepared {
    call: Call,
    tensors: Vec<Tensor>,
    results: usize,
}

fn tensor(text: &str) -> Tensor {
    let (kind, shape) = text.rsplit_once(':').unwrap_or(("", text));
    let shape: Vec<i64> = shape.split('x').map(|size| size.parse().unwrap()).collect();
    let normal = || Tensor::randn(&*shape, (Kind::Float, CPU));
    let trained = |tensor: Tensor| tensor.set_requires_grad(true);
    let uniform = || Tensor::rand(&*shape, (Kind::Float, CPU));
    match kind {
        "" => trained(normal()),
        // Without a gradient.
        "n" => normal(),
        // In half precision.
        "h" => trained(normal().to_kind(Kind::BFloat16)),
        // From 0.5 to 1.5.
        "p" => trained(uniform() + 0.5),
        // From 0 to 1; without a gradient.
        "u" => trained(uniform()),
        "d" => uniform(),
        // With its first two dimensions exchanged, or channels-last.
        "t" => trained(normal()).transpose(0, 1),
        "c" => {
            let (n, c, h, w) = normal().size4().unwrap();
            trained(
                Tensor::empty_strided([n, c, h, w], [h * w * c, 1, w * c, c], (Kind::Float, CPU)).fill_(0.5),
            )
        }
        "b" => Tensor::zeros(&*shape, (Kind::Bool, CPU)),
        "i" => Tensor::zeros(&*shape, (Kind::Int64, CPU)),
        // Numbers in order.
        "o" => Tensor::arange(shape[0], (Kind::Float, CPU)),
        // A number everywhere.
        length => Tensor::full(
            &*shape,
            length.strip_prefix('l').unwrap().parse::<i64>().unwrap(),
            (Kind::Int64, CPU),
        ),
    }
}

fn is_tensor(text: &str) -> bool {
    text.contains(':') || (text.contains('x') && text.starts_with(|first: char| first.is_ascii_digit()))
}

fn argument(text: &str, tensors: &mut Vec<Tensor>) -> Argument {
    let mut keep = |text: &str| {
        tensors.push(tensor(text));
        Operand::Slot(tensors.len() - 1)
    };
    let parts = |open, close| Some(text.strip_prefix(open)?.strip_suffix(close)?.split(','));
    if let Some(list) = parts('(', ')') {
        return Argument::Values(list.map(keep).collect());
    }
    if let Some(list) = parts('[', ']') {
        return Argument::Ints(list.map(|number| Whole::Number(number.parse().unwrap())).collect());
    }
    if text.starts_with('\'') {
        return Argument::Text(text.trim_matches('\'').to_owned());
    }
    match text {
        "none" => Argument::None,
        "true" | "false" => Argument::Bool(text == "true"),
        _ if is_tensor(text) => Argument::Value(keep(text)),
        _ if text.contains('.') => Argument::Float(text.parse().unwrap()),
        _ => Argument::Int(Whole::Number(text.parse().unwrap())),
    }
}

fn prepare(line: &str) -> Prepared {
    let (line, results) = line.split_once(" -> ").unwrap_or((line, "1"));
    let mut words = line.split_whitespace();
    let name = words.next().unwrap();
    let (name, overload) = name.split_once('.').unwrap_or((name, ""));
    let name = if name.contains("::") { name.to_owned() } else { format!("aten::{name}") };
    let operation = Operation { name, overload: overload.to_owned() };
    let mut tensors = Vec::new();
    let arguments: Vec<(&str, Argument)> = words
        .map(|word| {
            let (name, value) = word.split_once('=').unwrap();
            (name, argument(value, &mut tensors))
        })
        .collect();
    let count: usize = results.trim_start_matches('*').parse().unwrap();
    let slots = (tensors.len()..tensors.len() + count).map(Some);
    let outputs = match results.starts_with('*') {
        true => vec![Output::Many(slots.collect())],
        false => slots.map(Output::One).collect(),
    };
    let call = Call::new(&operation, &arguments, &[], CPU, &outputs, &[]).unwrap();
    Prepared { call, tensors, results: count }
}

/// Shapes and dtypes of results.
type Shapes = Vec<(Vec<i64>, Kind)>;

/// Runs a call forward, then backward. Returns the allocated and peak bytes of each, and the results' shapes.
fn measure(
    line: &str,
    usage: &dyn Fn() -> Usage,
) -> Result<(Vec<u64>, Shapes), dtrain_torch_shim::ShimError> {
    let Prepared { call, tensors, results } = prepare(line);
    let mut frame = Frame::new(tensors.len() + results)?;
    for (slot, tensor) in tensors.iter().enumerate() {
        frame.set(slot, tensor)?;
    }
    let start = usage().allocated;
    call.run(&mut frame)?;
    let forward = usage();
    let found = (tensors.len()..tensors.len() + results).map(|slot| frame.get(slot));
    let found: Vec<Tensor> = found.collect::<Result<_, _>>()?;
    let shapes = found.iter().map(|result| (result.size(), result.kind())).collect();
    let losses =
        found.iter().filter(|result| result.requires_grad()).map(|result| result.square().sum(Kind::Float));
    if let Some(loss) = losses.reduce(|all, loss| all + loss) {
        loss.f_backward()?;
    }
    let backward = usage();
    let bytes = [forward.allocated, forward.peak, backward.allocated, backward.peak];
    Ok((bytes.iter().map(|bytes| bytes.wrapping_sub(start)).collect(), shapes))
}

/// One test, because memory stats are process-wide.
#[test]
fn common_operations_are_predicted() {
    memory::enable_stats().unwrap();
    tch::set_num_threads(1);
    // Those of `dtrain::` draw by sample.
    let _samples = BySample::enter(1, &(0..8)).unwrap();
    let mut wrong = Vec::new();
    let more = if has_avx2_only() { CALLS_WITH_AVX2 } else { "" };
    let calls: Vec<&str> = CALLS.lines().chain(more.lines()).collect();
    for line in &calls {
        let real = measure(line, &|| {
            let usage = memory::usage(CPU).unwrap();
            memory::reset_peak(CPU).unwrap();
            usage
        });
        let real = real.unwrap_or_else(|error| panic!("{line}: {error}"));
        let region = Symbolic::enter(None).unwrap();
        let symbolic = measure(line, &|| {
            let usage = region.usage().unwrap();
            region.reset_peak().unwrap();
            usage
        });
        let name = line.split([' ', '.']).next().unwrap();
        let near = |(real, symbolic): (&u64, &u64)| real.abs_diff(*symbolic) <= SMALL + real * 3 / 100;
        match symbolic {
            Err(error) => wrong.push(format!("{line}: {error}")),
            Ok((_, shapes)) if shapes != real.1 => {
                wrong.push(format!("{line}: real {:?}, symbolic {shapes:?}", real.1))
            }
            Ok((bytes, _)) => {
                let alike = real.0.iter().zip(&bytes).all(near);
                let is_listed = DIFFERENT.iter().any(|(different, _)| *different == name);
                if alike == is_listed {
                    wrong.push(format!("{line}: real {:?}, symbolic {bytes:?}", real.0));
                }
            }
        }
        assert_eq!(region.usage().unwrap().allocated, 0, "{line}");
    }
    assert!(calls.len() >= 150);
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), calls.len(), wrong.join("\n"));

    // Operations without a prediction are named.
    let _region = Symbolic::enter(None).unwrap();
    for name in ["nonzero", "masked_select", "unique", "index"] {
        let line = match name {
            "nonzero" => "nonzero self=n:8x16",
            "masked_select" => "masked_select self=n:8x16 mask=b:8x16",
            "unique" => "_unique2 self=n:8x16 -> 3",
            _ => "index.Tensor self=n:8x16 indices=(b:8x16)",
        };
        let error = measure(line, &Usage::default).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotImplemented, "{error}");
        assert!(error.message.contains("no prediction of ") && error.message.contains(name), "{error}");
    }
}
