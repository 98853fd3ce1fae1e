#![allow(clippy::unwrap_used)]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tch::{Device, Kind};

use super::*;
use crate::ErrorKind;
use crate::hooks::GradientHook;
use crate::kind_of;

const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Returns varied values without a random generator.
fn values(shape: &[i64]) -> Tensor {
    let count: i64 = shape.iter().product();
    (Tensor::arange_start(1, count + 1, CPU).square() * 0.7).sin().view(shape)
}

fn leaf(shape: &[i64]) -> Tensor {
    values(shape).set_requires_grad(true)
}

#[test]
fn parameters_alone_suffice_and_their_hooks_run_once() {
    let (x, w) = (values(&[3, 4]), leaf(&[4, 4]));
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let _hook = GradientHook::set(&w, &w.zeros_like(), move || {
        count.fetch_add(1, Ordering::SeqCst);
    })
    .unwrap();
    let held = Mutex::new(w.shallow_clone());
    let y = recompute(&[&x], move |inputs, _| Ok(inputs[0].mm(&held.lock().unwrap()))).unwrap();
    y.sum(Kind::Float).backward();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    let expected = x.tr().mm(&Tensor::ones([3, 4], CPU));
    assert!(w.grad().equal(&expected), "{} {expected}", w.grad());
    assert!(!x.requires_grad() && !x.grad().defined());
}

#[test]
fn segments_take_several_inputs_used_or_not() {
    let (a, b, c) = (leaf(&[5]), leaf(&[5]), Tensor::ones([5], CPU));
    let out = recompute(&[&a, &b, &c], |inputs, _| {
        let [a, b, c] = inputs else { panic!("three inputs") };
        let _ = (b.exp(), a.argmax(0, false));
        Ok((a * b + c) * 2.0 + a.sin())
    })
    .unwrap();
    assert!(out.requires_grad());
    out.sum(Kind::Float).backward();
    assert!(a.grad().allclose(&(&b * 2.0 + a.cos()), 1e-6, 1e-6, false));
    assert!(b.grad().allclose(&(&a * 2.0), 1e-6, 1e-6, false));

    // An output that is an input unchanged, and inputs without gradient.
    let same =
        |index: usize| recompute(&[&a, &c], move |inputs, _| Ok(inputs[index].shallow_clone())).unwrap();
    let _ = a.grad().zero_();
    same(0).sum(Kind::Float).backward();
    assert!(a.grad().equal(&Tensor::ones([5], CPU)));
    same(1).sum(Kind::Float).backward();
}

#[test]
fn a_segment_inside_a_segment_is_recomputed() {
    let x = leaf(&[6]);
    let times = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&times);
    let y = recompute(&[&x], move |inputs, _| {
        let counted = Arc::clone(&counted);
        let inner = recompute(&[&inputs[0].sin()], move |inputs, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(inputs[0].exp())
        })?;
        Ok(inner.square())
    })
    .unwrap();
    y.sum(Kind::Float).backward();
    // Once without a graph, once in the outer segment's second pass, once in its own.
    assert_eq!(times.load(Ordering::SeqCst), 3);
    let expected = x.sin().exp().square() * x.cos() * 2.0;
    assert!(x.grad().allclose(&expected, 1e-5, 1e-6, false));
}

#[test]
fn a_segment_lives_as_long_as_the_graph_and_runs_once_without_gradients() {
    let alive = Arc::new(());
    let x = leaf(&[4]);
    let run = || {
        let held = Arc::clone(&alive);
        recompute(&[&x], move |inputs, _| {
            let _held = &held;
            Ok(&inputs[0] * 3.0)
        })
        .unwrap()
    };
    assert!(grad_enabled());
    let y = run();
    assert_eq!(Arc::strong_count(&alive), 2);
    y.sum(Kind::Float).backward();
    drop(y);
    assert_eq!(Arc::strong_count(&alive), 1);
    let y = tch::no_grad(|| {
        assert!(!grad_enabled());
        run()
    });
    assert!(!y.requires_grad());
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn errors_keep_their_kind() {
    let x = leaf(&[4]);
    for kind in [ErrorKind::OutOfMemory, ErrorKind::Network, ErrorKind::NotImplemented, ErrorKind::Other] {
        let fail = move |pass| {
            move |inputs: &[Tensor], now: Pass| match now == pass {
                true => Err(ShimError::new("test", kind, "on purpose")),
                false => Ok(&inputs[0] * 3.0),
            }
        };
        let error = recompute(&[&x], fail(Pass::Forward)).unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.message.contains("on purpose"), "{error}");
        let y = recompute(&[&x], fail(Pass::Recompute)).unwrap();
        let error = y.sum(Kind::Float).f_backward().unwrap_err();
        assert!(error.to_string().contains("on purpose"), "{error}");
        assert_eq!(kind_of(&error) == ErrorKind::OutOfMemory, kind == ErrorKind::OutOfMemory);
    }
    let panicking = |_: &[Tensor], _| panic!("on purpose");
    let error = recompute(&[&x], panicking).unwrap_err();
    assert_eq!(error.message, "a Rust closure in the graph panicked");
    // Autocast is restored, also after an error in backward.
    assert_eq!(x.view([1, 4]).mm(&x.view([4, 1])).kind(), Kind::Float);
}

#[test]
fn incorrect_uses_are_errors() {
    let x = leaf(&[4]);
    let h = &x * 1.0;
    let in_place = recompute(&[&h], |inputs, _| {
        let mut input = inputs[0].shallow_clone();
        Ok(input.f_relu_()?)
    });
    let error = in_place.unwrap_err();
    assert!(error.message.contains("changed its input 0 in place"), "{error}");

    // An input that changes between the two passes.
    let h = &x * 1.0;
    let y = recompute(&[&h], |inputs, _| Ok(inputs[0].sin())).unwrap();
    let _ = tch::no_grad(|| h.shallow_clone().g_add_scalar_(1.0));
    let error = y.sum(Kind::Float).f_backward().unwrap_err();
    assert!(error.to_string().contains("inplace operation"), "{error}");

    // Another shape.
    let y = recompute(&[&x], |inputs, pass| {
        let length = if pass == Pass::Forward { 4 } else { 3 };
        Ok(inputs[0].narrow(0, 0, length))
    })
    .unwrap();
    assert!(y.sum(Kind::Float).f_backward().is_err());
}

#[test]
fn fingerprints_depend_on_bits_and_positions() {
    for (kind, by_loop) in [Kind::Float, Kind::BFloat16, Kind::Double, Kind::Uint8, Kind::Int64, Kind::Bool]
        .into_iter()
        .flat_map(|kind| [(kind, true), (kind, false)])
    {
        let print = |tensor: &Tensor| fingerprint_by(tensor, by_loop).unwrap();
        let x = (values(&[7, 5]) * 20.0).to_kind(Kind::Int64).abs().to_kind(kind);
        let before = x.copy();
        assert_eq!(print(&x), print(&x.copy()), "{kind:?}");
        assert!(x.equal(&before), "{kind:?} is only read");
        let other = x.copy();
        let _ = other.get(3).get(2).logical_not_();
        assert_ne!(print(&x), print(&other), "{kind:?}");
        let exchanged = x.flip([0]);
        assert!(x.equal(&exchanged) || print(&x) != print(&exchanged), "{kind:?}");
        // A part that is not contiguous has the fingerprint of its copy.
        let piece = x.narrow(1, 1, 3);
        assert_eq!(print(&piece), print(&piece.contiguous()), "{kind:?}");
    }
    // More than one piece of the GPU's method.
    let print = |tensor: &Tensor| fingerprint_by(tensor, false).unwrap();
    let long = Tensor::zeros([(1 << 20) + 9], (Kind::Float, Device::Cpu));
    let before = print(&long);
    let _ = long.get((1 << 20) + 3).fill_(1.0);
    assert_ne!(print(&long), before);
    let zeros = [0.0f32, -0.0].map(|zero| fingerprint(&Tensor::from_slice(&[zero])).unwrap());
    assert_ne!(zeros[0], zeros[1], "the bits, not the values");
    assert_eq!(fingerprint(&Tensor::zeros([0], CPU)).unwrap(), 0);
}
