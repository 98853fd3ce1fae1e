//! Element-wise kernels: over contiguous tensors, with casts, and with strides.

use std::sync::Arc;

use super::functor::{Functor, Operation};
use super::values::Type;
use super::{Args, Computation, Program, inside, is_large};
use crate::check::Use;
use crate::memory::{self, View};

/// The dimensions of an offset calculator, which libtorch fixes.
pub(super) const DIMENSIONS: usize = 25;

/// Kernels `(int n, FUNCTOR, std::array<char*, k>)`; `rest` begins with the functor.
pub(super) fn contiguous(rest: &str) -> Option<Program> {
    let (functor, arrays) = parts(rest)?;
    let known = Functor::of(functor);
    Some(Box::new(move |args| match &known {
        Some(functor) => {
            let operation = functor.operation(args.parameter(1));
            let types = (operation.inputs.clone(), operation.output);
            launch(args, arrays, operation, types)
        }
        None => Ok(Computation { uses: uses(args, arrays, &[]), work: None }),
    }))
}

/// Kernels `(int n, FUNCTOR, std::array<char*, k>, calculators, LOADER, STORER)`.
pub(super) fn unrolled(rest: &str) -> Option<Program> {
    let (functor, arrays) = parts(rest)?;
    let is_strided = !rest.contains("TrivialOffsetCalculator<") || rest.contains(", OffsetCalculator<");
    let known = Functor::of(functor).filter(|_| !is_strided);
    let (casts_inputs, casts_output) =
        (rest.contains("memory::LoadWithCast<"), rest.contains("memory::StoreWithCast<"));
    Some(Box::new(move |args| {
        let Some(functor) = &known else {
            return Ok(Computation { uses: uses(args, arrays, &[]), work: None });
        };
        let operation = functor.operation(args.parameter(1));
        let mut types = (operation.inputs.clone(), operation.output);
        if casts_inputs {
            for (index, input) in types.0.iter_mut().enumerate() {
                *input = Type::numbered(args.parameter(5).read::<1>(index)[0])?;
            }
        }
        if casts_output {
            types.1 = Type::numbered(args.parameter(6).read::<1>(0)[0])?;
        }
        launch(args, arrays, operation, types)
    }))
}

/// Returns the functor's name and the number of tensors.
fn parts(rest: &str) -> Option<(&str, usize)> {
    let (functor, after) = rest.split_once(", std::array<char*, ")?;
    let digits = after.find(|c: char| !c.is_ascii_digit())?;
    Some((functor, after[..digits].parse().ok()?))
}

fn pointer(from: View, index: usize) -> usize {
    usize::from_ne_bytes(from.read(8 * index))
}

/// Returns the memory of the tensors: the first is written. Without types, only their beginnings are known.
fn uses(args: &Args, arrays: usize, sizes: &[usize]) -> Vec<Use> {
    let tensor = |index| Use {
        at: pointer(args.parameter(2), index),
        size: sizes.get(index).copied().unwrap_or(1),
        writes: index == 0,
    };
    (0..arrays).map(tensor).filter(|used| used.at != 0).collect()
}

fn launch(
    args: &Args,
    arrays: usize,
    operation: Operation,
    (inputs, output): (Vec<Type>, Type),
) -> Result<Computation, String> {
    let n = i32::from_ne_bytes(args.parameter(0).read(0)).max(0) as usize;
    if arrays != inputs.len() + 1 {
        return Err(format!("{arrays} tensors, expected {}", inputs.len() + 1));
    }
    let types: Vec<Type> = std::iter::once(output).chain(inputs).collect();
    let sizes: Vec<usize> = types.iter().map(|t| n * t.size()).collect();
    let uses = uses(args, arrays, &sizes);
    if is_large(n) {
        return Ok(Computation { uses, work: None });
    }
    let views: Vec<View> =
        (0..arrays).filter_map(|i| view(pointer(args.parameter(2), i), sizes[i])).collect();
    if views.len() != arrays {
        return Err("a tensor is outside of its memory".into());
    }
    let work = move || {
        let mut values = [0.; 4];
        for i in 0..n {
            for (k, t) in types.iter().enumerate().skip(1) {
                values[k - 1] = t.load(views[k], i * t.size());
            }
            types[0].store(views[0], i * types[0].size(), (operation.apply)(&values));
        }
    };
    Ok(Computation { uses, work: Some(Arc::new(work)) })
}

/// Returns live memory that a kernel may use: of a device, or pinned memory of the host.
fn view(at: usize, size: usize) -> Option<View> {
    // SAFETY: allocations keep their addresses.
    memory::covers(at, size).then(|| unsafe { View::trusted(at, size) })
}

/// Kernels `elementwise_kernel<t, v, gpu_kernel_impl_nocast<FUNCTOR>(...)::{lambda(int)#1}>(int, lambda)`: the lambda has
/// the offset calculator (dimensions, divisors, strides), the pointers and the functor.
pub(super) fn strided(native: &str) -> Option<Program> {
    let (_, rest) = native.split_once("gpu_kernel_impl_nocast")?;
    let functor = Functor::of(inside(rest, '<')?)?;
    let tensors = functor.inputs.len() + 1;
    Some(Box::new(move |args| {
        let n = i32::from_ne_bytes(args.parameter(0).read(0)).max(0) as usize;
        let lambda = args.parameter(1);
        let word = |offset: usize| u32::from_ne_bytes(lambda.read(offset)) as usize;
        let dimensions = word(0);
        if dimensions > DIMENSIONS {
            return Err(format!("{dimensions} dimensions"));
        }
        let sizes: Vec<usize> = (0..dimensions).map(|d| word(4 + 12 * d)).collect();
        let strides_at = 4 + DIMENSIONS * 12;
        let stride = |d: usize, k: usize| word(strides_at + 4 * (d * tensors + k));
        let strides: Vec<Vec<usize>> =
            (0..tensors).map(|k| (0..dimensions).map(|d| stride(d, k)).collect()).collect();
        let pointers = (strides_at + DIMENSIONS * tensors * 4).next_multiple_of(8);
        let data: Vec<usize> =
            (0..tensors).map(|k| usize::from_ne_bytes(lambda.read(pointers + 8 * k))).collect();
        // SAFETY: the functor is a part of the parameter.
        let operation = functor.operation(unsafe { View::trusted(lambda.at + pointers + 8 * tensors, 256) });
        let types: Vec<Type> =
            std::iter::once(operation.output).chain(operation.inputs.iter().copied()).collect();
        let reach = |k: usize| {
            let last = sizes
                .iter()
                .zip(&strides[k])
                .map(|(size, stride)| size.saturating_sub(1) * stride)
                .sum::<usize>();
            last + types[k].size()
        };
        let views: Vec<View> = (0..tensors).filter_map(|k| view(data[k], reach(k))).collect();
        if views.len() != tensors {
            return Err("a tensor is outside of its memory, or the lambda has another layout".into());
        }
        let uses = (0..tensors).map(|k| Use { at: data[k], size: 1, writes: k == 0 }).collect();
        if is_large(n) {
            return Ok(Computation { uses, work: None });
        }
        let sizes = sizes.clone();
        let work = move || {
            let (mut values, mut offsets) = ([0.; 4], vec![0; tensors]);
            for i in 0..n {
                offsets.fill(0);
                let mut rest = i;
                for (d, size) in sizes.iter().enumerate() {
                    let at = rest % size;
                    rest /= size;
                    offsets.iter_mut().zip(&strides).for_each(|(offset, strides)| *offset += at * strides[d]);
                }
                for k in 1..tensors {
                    values[k - 1] = types[k].load(views[k], offsets[k]);
                }
                types[0].store(views[0], offsets[0], (operation.apply)(&values));
            }
        };
        Ok(Computation { uses, work: Some(Arc::new(work)) })
    }))
}
