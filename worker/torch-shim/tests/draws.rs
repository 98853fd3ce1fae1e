//! Dropout and other random numbers by sample: the same for every cut of a step.
#![allow(clippy::unwrap_used)]

use std::ops::Range;

use dtrain_torch_shim::program::{Argument, Call, Frame, Operand, Operation, Output, Whole};
use dtrain_torch_shim::recompute::recompute;
use dtrain_torch_shim::rng::{BySample, dropout};
use proptest::prelude::*;
use tch::{Device, Kind, Tensor};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

fn ones(shape: &[i64]) -> Tensor {
    Tensor::ones(shape, FLOAT)
}

/// Returns the factors of a dropout of the samples at `places` in a tensor of this shape but for its dimension `dim`.
fn factors(key: u64, places: Range<usize>, shape: &[i64], dim: usize, operation: u32) -> Tensor {
    let _samples = BySample::enter(key, &places).unwrap();
    let mut shape = shape.to_vec();
    shape[dim] *= places.len() as i64;
    dropout(&ones(&shape), 0.3, operation, dim).unwrap()
}

/// Runs an operation of six samples or of those at `places`: on a part of the value of [`value`].
fn of(
    (operation, overload): (&str, &str),
    mut arguments: Vec<(&str, Argument)>,
    (kind, dim): (Kind, i64),
    places: Range<i64>,
) -> Tensor {
    for (name, number) in [("number", 7), ("dim", dim)] {
        arguments.push((name, Argument::Int(Whole::Number(number))));
    }
    let operation = Operation { name: format!("dtrain::{operation}"), overload: overload.to_owned() };
    let result = [Output::One(Some(1))];
    let call = Call::new(&operation, &arguments, &[], Device::Cpu, &result, &[]).unwrap();
    let mut frame = Frame::new(2).unwrap();
    let length = if dim < 0 { 6 } else { places.end - places.start };
    frame.set(0, &Tensor::full([length, 5, 40], 0.25, (kind, Device::Cpu))).unwrap();
    call.run(&mut frame).unwrap();
    frame.get(1).unwrap()
}

/// The value of the frame on which [`of`] runs an operation, of six samples.
fn value() -> Argument {
    Argument::Value(Operand::Slot(0))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Parts of a step, wherever its samples lie, draw what the whole draws.
    #[test]
    fn parts_draw_as_the_whole(
        key: u64, samples in 1usize..7, cut in 0usize..7, dim in 0usize..3, rows in 1i64..4, width in 1i64..700,
    ) {
        let cut = cut.min(samples);
        let mut shape = [2, 3, width];
        shape[dim] = rows;
        let whole = factors(key, 0..samples, &shape, dim, 5);
        let parts = [0..cut, cut..samples].into_iter().filter(|places| !places.is_empty());
        let parts: Vec<Tensor> = parts.map(|places| factors(key, places, &shape, dim, 5)).collect();
        prop_assert!(Tensor::cat(&parts, dim as i64).equal(&whole));
    }
}

#[test]
fn draws_differ_by_key_place_operation_and_element() {
    let one = |key, place, operation| factors(key, place..place + 1, &[1, 4096], 0, operation).view([4096]);
    let first = one(3, 0, 1);
    for other in [one(4, 0, 1), one(3, 1, 1), one(3, 0, 2), one(3 + (1 << 32), 0, 1), first.roll(1, 0)] {
        let same = first.eq_tensor(&other).to_kind(Kind::Float).mean(Kind::Float).double_value(&[]);
        // 0.3 x 0.3 + 0.7 x 0.7, with a deviation of 0.008.
        assert!((same - 0.58).abs() < 0.04, "{same}");
    }
    let dropped = factors(3, 0..64, &[1, 4096], 0, 1).eq(0.0).to_kind(Kind::Float).mean(Kind::Float);
    assert!((dropped.double_value(&[]) - 0.3).abs() < 0.005, "{dropped:?}");
}

/// Samples that are left out, as those that cannot be read, leave the draws of the others.
#[test]
fn selected_samples_draw_as_among_all() {
    let whole = factors(3, 2..8, &[2, 900], 0, 1);
    let _samples = BySample::enter(3, &(2..8)).unwrap();
    let _left = BySample::select(&[0, 3, 4]).unwrap();
    let x = ones(&[6, 900]).set_requires_grad(true);
    let found = dropout(&x, 0.3, 1, 0).unwrap();
    let rows = Tensor::from_slice(&[0i64, 1, 6, 7, 8, 9]);
    assert!(found.equal(&whole.index_select(0, &rows)));
    found.sum(Kind::Float).backward();
    assert!(x.grad().equal(&found));
    let _none = BySample::select(&[]).unwrap();
    assert!(dropout(&ones(&[7]), 0.5, 1, 0).is_ok(), "libtorch draws");
    let _outside = BySample::off().unwrap();
    let _still = BySample::select(&[5]).unwrap();
    assert!(dropout(&ones(&[7]), 0.5, 1, 0).is_ok(), "libtorch draws");
}

#[test]
fn backward_draws_the_same_again() {
    let _samples = BySample::enter(9, &(2..6)).unwrap();
    for shape in [[4, 3, 50].as_slice(), &[8, 3000]] {
        let x = Tensor::rand(shape, FLOAT).set_requires_grad(true);
        let y = dropout(&x, 0.5, 1, 0).unwrap();
        let factors = dropout(&ones(shape), 0.5, 1, 0).unwrap();
        assert!(y.equal(&(&x * &factors)));
        // Not the samples of now, but those of the forward pass.
        {
            let _other = BySample::enter(1, &(0..1)).unwrap();
            y.sum(Kind::Float).backward();
        }
        assert!(x.grad().equal(&factors));
        let again = x.detach().set_requires_grad(true);
        let segment = |inputs: &[Tensor], _| dropout(&inputs[0], 0.5, 1, 0);
        let z = recompute(&[&again], segment).unwrap();
        assert!(z.equal(&y));
        let _other = BySample::off().unwrap();
        z.sum(Kind::Float).backward();
        assert!(again.grad().equal(&factors), "a recomputed segment draws other numbers");
    }
}

#[test]
fn layouts_and_dtypes_have_the_same_draws() {
    let _samples = BySample::enter(9, &(0..2)).unwrap();
    let x = ones(&[2, 3, 4, 5]);
    let expected = dropout(&x, 0.5, 1, 0).unwrap();
    let last = x.permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2]);
    let found = dropout(&last, 0.5, 1, 0).unwrap();
    assert!(found.equal(&expected));
    assert_eq!(found.stride(), last.stride());
    let second = dropout(&x.transpose(0, 1).contiguous(), 0.5, 1, 1).unwrap();
    assert!(second.transpose(0, 1).equal(&expected));
    for kind in [Kind::Double, Kind::Half, Kind::BFloat16] {
        let found = dropout(&x.to_kind(kind), 0.5, 1, 0).unwrap();
        assert!(found.kind() == kind && found.to_kind(Kind::Float).equal(&expected), "{kind:?}");
    }
    // Threads share the work.
    let large = |threads| {
        tch::set_num_threads(threads);
        dropout(&ones(&[2, 100_000]), 0.5, 1, 0).unwrap()
    };
    assert!(large(1).equal(&large(2)));
}

#[test]
fn without_samples_libtorch_draws() {
    let x = ones(&[4, 100]);
    let drawn = |seed| {
        tch::manual_seed(seed);
        dropout(&x, 0.5, 1, 0).unwrap()
    };
    tch::manual_seed(1);
    let expected = x.dropout(0.5, true);
    assert!(drawn(1).equal(&expected) && !drawn(2).equal(&expected));
    let _samples = BySample::enter(9, &(0..4)).unwrap();
    assert!(drawn(1).equal(&drawn(2)));
    let _off = BySample::off().unwrap();
    assert!(drawn(1).equal(&expected));
}

#[test]
fn limits_of_probabilities_and_wrong_shapes() {
    let _samples = BySample::enter(9, &(0..4)).unwrap();
    let x = ones(&[4, 100]);
    assert!(dropout(&x, 0.0, 1, 0).unwrap().equal(&x));
    assert_eq!(dropout(&x, 1.0, 1, 0).unwrap().abs().sum(Kind::Float).double_value(&[]), 0.0);
    assert!(dropout(&x, 1.5, 1, 0).is_err() && dropout(&x, f64::NAN, 1, 0).is_err());
    assert_eq!(dropout(&ones(&[0, 3]), 0.5, 1, 0).unwrap().size(), [0, 3]);
    let error = dropout(&ones(&[6, 3]), 0.5, 1, 0).unwrap_err();
    assert!(error.message.contains("dimension 0 is not that of the 4 samples"), "{error}");
    assert!(dropout(&x, 0.5, 1, 2).is_err());
}

/// The other operations: their distributions, that they draw by sample, and in which dtypes.
#[test]
fn every_operation_has_its_distribution_and_draws_by_sample() {
    let real = Argument::Float;
    let probability = || vec![("self", value()), ("p", real(0.3))];
    let dropped =
        |name: &'static str| vec![(name, value()), ("p", real(0.3)), ("train", Argument::Bool(true))];
    let own = || vec![("self", value())];
    let of_two = |names: [&'static str; 2], numbers: [f64; 2]| {
        let numbers = names.into_iter().zip(numbers.map(real));
        own().into_iter().chain(numbers).collect::<Vec<_>>()
    };
    // Mean, and standard deviation.
    let cases = [
        ("dropout", "", dropped("input"), 0.25, 0.1637),
        ("dropout_", "", dropped("self"), 0.25, 0.1637),
        ("feature_dropout", "", dropped("input"), 0.25, 0.1637),
        ("feature_dropout_", "", dropped("self"), 0.25, 0.1637),
        ("bernoulli", "", own(), 0.25, 0.433),
        ("bernoulli", "p", probability(), 0.3, 0.4583),
        ("bernoulli_", "float", probability(), 0.3, 0.4583),
        ("uniform", "", of_two(["from", "to"], [1.0, 3.0]), 2.0, 0.5774),
        ("uniform_", "", of_two(["from", "to"], [1.0, 3.0]), 2.0, 0.5774),
        ("normal_functional", "", of_two(["mean", "std"], [1.0, 2.0]), 1.0, 2.0),
        ("normal_", "", of_two(["mean", "std"], [1.0, 2.0]), 1.0, 2.0),
        ("exponential_", "", vec![("self", value()), ("lambd", real(2.0))], 0.5, 0.5),
        ("rand", "", Vec::new(), 0.5, 0.2887),
        ("randn", "", Vec::new(), 0.0, 1.0),
        ("rand_like", "", own(), 0.5, 0.2887),
        ("randn_like", "", own(), 0.0, 1.0),
    ];
    for (name, overload, arguments, mean, deviation) in cases {
        let draw = |key, kind, dim, places: Range<i64>| {
            let _samples = BySample::enter(key, &(places.start as usize..places.end as usize)).unwrap();
            let mut arguments = arguments.clone();
            if arguments.is_empty() {
                let length = if dim < 0 { 6 } else { places.end - places.start };
                let size = [length, 5, 40].map(Whole::Number);
                arguments.push(("size", Argument::Ints(size.to_vec())));
            }
            of((name, overload), arguments, (kind, dim), places)
        };
        for kind in [Kind::Float, Kind::Half, Kind::BFloat16] {
            let all: Vec<Tensor> = (0..50).map(|key| draw(key, kind, 0, 0..6)).collect();
            let all = Tensor::stack(&all, 0).to_kind(Kind::Float);
            // Of features there are 1,500, of other elements 60,000.
            let tolerance = if name.starts_with("feature") { 0.1 } else { 0.02 };
            let found = [all.mean(Kind::Double), all.std(true)].map(|figure| figure.double_value(&[]));
            for (found, expected) in found.into_iter().zip([mean, deviation]) {
                let difference = (found - expected).abs();
                assert!(
                    difference < tolerance * deviation.max(0.5),
                    "{name}.{overload} {kind:?}: {found}, not {expected}"
                );
            }
            if name == "exponential_" {
                assert!(all.min().double_value(&[]) > 0.0, "{kind:?}: its logarithm is infinite");
            }
        }
        let whole = draw(1, Kind::Float, 0, 0..6);
        assert!(!whole.equal(&draw(2, Kind::Float, 0, 0..6)), "{name}.{overload}");
        let parts = [draw(1, Kind::Float, 0, 0..2), draw(1, Kind::Float, 0, 2..6)];
        assert!(Tensor::cat(&parts, 0).equal(&whole), "{name}.{overload}");
        // All samples share it: another micro-batch draws the same.
        let shared = draw(1, Kind::Float, -1, 0..6);
        assert!(draw(1, Kind::Float, -1, 4..6).equal(&shared), "{name}.{overload}");
    }
}

#[test]
fn wrong_arguments_of_other_operations_are_errors() {
    let _samples = BySample::enter(1, &(0..6)).unwrap();
    let run = |operation: (&str, &str), arguments: Vec<(&str, Argument)>, x: &Tensor| {
        let extra =
            [("number", 7), ("dim", 0)].map(|(name, number)| (name, Argument::Int(Whole::Number(number))));
        let arguments: Vec<_> = arguments.into_iter().chain(extra).collect();
        let (name, overload) = (format!("dtrain::{}", operation.0), operation.1.to_owned());
        let call = Call::new(
            &Operation { name, overload },
            &arguments,
            &[],
            Device::Cpu,
            &[Output::One(Some(1))],
            &[],
        );
        let mut frame = Frame::new(2).unwrap();
        frame.set(0, x).unwrap();
        call.unwrap().run(&mut frame)
    };
    let x = ones(&[6]);
    for p in [-0.1, 1.1, f64::NAN] {
        let arguments = vec![("self", value()), ("p", Argument::Float(p))];
        assert!(run(("bernoulli_", "float"), arguments, &x).is_err(), "{p}");
    }
    let train = ("train", Argument::Bool(true));
    let arguments = vec![("input", value()), ("p", Argument::Float(0.5)), train];
    let error = run(("feature_dropout", ""), arguments, &x).unwrap_err();
    assert!(error.message.contains("at least 2 dimensions"), "{error}");
}

#[test]
fn an_order_is_that_of_the_step() {
    let order = |places: Range<usize>| {
        let _samples = BySample::enter(4, &places).unwrap();
        let arguments = [("n", 50), ("number", 7), ("dim", -1)];
        let arguments = arguments.map(|(name, number)| (name, Argument::Int(Whole::Number(number))));
        let operation = Operation { name: "dtrain::randperm".to_owned(), overload: String::new() };
        let call = Call::new(&operation, &arguments, &[], Device::Cpu, &[Output::One(Some(0))], &[]).unwrap();
        let mut frame = Frame::new(1).unwrap();
        call.run(&mut frame).unwrap();
        Vec::<i64>::try_from(frame.get(0).unwrap()).unwrap()
    };
    let first = order(0..2);
    assert_eq!(first, order(2..6));
    let mut sorted = first.clone();
    sorted.sort_unstable();
    assert!(sorted != first && sorted == (0..50).collect::<Vec<_>>(), "{first:?}");
}
