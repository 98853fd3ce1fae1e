#![allow(clippy::unwrap_used)]
use tch::{Device, Kind, Tensor};

use super::{Argument, Call, Frame, Operand, Operation, Output, Whole};
use crate::ErrorKind;

const NO_ARGUMENTS: [(&str, Argument); 0] = [];

fn operation(name: &str, overload: &str) -> Operation {
    Operation { name: name.to_owned(), overload: overload.to_owned() }
}

fn value(slot: usize) -> Argument {
    Argument::Value(Operand::Slot(slot))
}

fn call(of: &Operation, arguments: &[(&str, Argument)], outputs: &[Output]) -> Call {
    Call::new(of, arguments, &[], Device::Cpu, outputs, &[]).unwrap()
}

fn frame_with(values: usize, x: &Tensor) -> Frame {
    let mut frame = Frame::new(values).unwrap();
    frame.set(0, x).unwrap();
    frame
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    tensor.to_kind(Kind::Double).reshape([-1]).try_into().unwrap()
}

#[test]
fn calls_record_gradients_and_use_defaults_of_the_schema() {
    let x = Tensor::from_slice(&[1f32, 2.0]).set_requires_grad(true);
    let mut frame = frame_with(2, &x);
    // `alpha` has a default, and a number stands for a tensor.
    let add = operation("aten::add", "Tensor");
    let arguments = [("self", value(0)), ("other", Argument::Int(Whole::Number(3)))];
    call(&add, &arguments, &[Output::One(Some(1))]).run(&mut frame).unwrap();
    let y = frame.get(1).unwrap();
    assert_eq!((floats(&y), y.kind()), (vec![4.0, 5.0], Kind::Float), "a number does not change the dtype");
    y.square().sum(Kind::Float).backward();
    assert_eq!(floats(&x.grad()), [8.0, 10.0]);
}

#[test]
fn sizes_are_computed_and_used_in_lists() {
    let x = Tensor::arange(12, (Kind::Float, Device::Cpu)).reshape([3, 4]);
    let mut frame = frame_with(4, &x);
    let size = operation("aten::sym_size", "int");
    let of_dim = [("self", value(0)), ("dim", Argument::Int(Whole::Number(0)))];
    call(&size, &of_dim, &[Output::One(Some(1))]).run(&mut frame).unwrap();
    let product = [("a", Argument::Int(Whole::Slot(1))), ("b", Argument::Int(Whole::Number(2)))];
    call(&operation("_operator.mul", ""), &product, &[Output::One(Some(2))]).run(&mut frame).unwrap();
    let shape = [("self", value(0)), ("shape", Argument::Ints(vec![Whole::Slot(2), Whole::Number(-1)]))];
    call(&operation("aten::reshape", ""), &shape, &[Output::One(Some(3))]).run(&mut frame).unwrap();
    assert_eq!(frame.get(3).unwrap().size(), [6, 2]);
}

#[test]
fn operations_on_numbers_are_those_of_python() {
    let x = Tensor::zeros([1, 2], (Kind::Float, Device::Cpu));
    let compute = |name: &str, a: i64, b: i64| {
        let mut frame = frame_with(3, &x);
        let arguments = [("a", Argument::Int(Whole::Number(a))), ("b", Argument::Int(Whole::Number(b)))];
        call(&operation(name, ""), &arguments, &[Output::One(Some(1))]).run(&mut frame).unwrap();
        let full = [("size", Argument::Ints(Vec::new())), ("fill_value", value(1))];
        call(&operation("aten::full", ""), &full, &[Output::One(Some(2))]).run(&mut frame).unwrap();
        floats(&frame.get(2).unwrap())[0]
    };
    assert_eq!(compute("_operator.floordiv", -7, 2), -4.0);
    assert_eq!(compute("_operator.mod", -7, 4), 1.0);
    assert_eq!(compute("_operator.pow", 3, 4), 81.0);
    assert_eq!(compute("_operator.truediv", 7, 2), 3.5);
    assert_eq!(compute("_operator.ge", 7, 7), 1.0);
    assert_eq!(compute("torch.sym_max", 3, 5), 5.0);
}

#[test]
fn lists_of_tensors_and_fixed_tensors_are_arguments_and_results() {
    let x = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0]);
    let fixed = Tensor::from_slice(&[9f32]);
    let mut frame = frame_with(4, &x);
    let pieces = [("self", value(0)), ("split_size", Argument::Int(Whole::Number(2)))];
    let outputs = [Output::Many(vec![None, Some(1)])];
    call(&operation("aten::split", "Tensor"), &pieces, &outputs).run(&mut frame).unwrap();
    let list = Argument::Values(vec![Operand::Fixed(0), Operand::Slot(1), Operand::Fixed(0)]);
    let cat = operation("aten::cat", "");
    let joined = Call::new(
        &cat,
        &[("tensors", list)],
        std::slice::from_ref(&fixed),
        Device::Cpu,
        &[Output::One(Some(2))],
        &[1],
    )
    .unwrap();
    joined.run(&mut frame).unwrap();
    assert_eq!(floats(&frame.get(2).unwrap()), [9.0, 3.0, 4.0, 9.0]);
    assert!(frame.get(1).is_err(), "the call dropped its last use");
}

#[test]
fn wrong_calls_are_errors() {
    let unknown =
        Call::new(&operation("aten::no_such", ""), &NO_ARGUMENTS, &[], Device::Cpu, &[], &[]).unwrap_err();
    assert_eq!(unknown.kind, ErrorKind::NotImplemented);
    let relu = operation("aten::relu", "");
    let missing = Call::new(&relu, &NO_ARGUMENTS, &[], Device::Cpu, &[], &[]).unwrap_err();
    assert!(missing.message.contains("`self` is missing"), "{missing}");
    let extra = [("self", value(0)), ("no_such", Argument::Bool(true))];
    let extra = Call::new(&relu, &extra, &[], Device::Cpu, &[], &[]).unwrap_err();
    assert!(extra.message.contains("no argument `no_such`"), "{extra}");
    let twice = [("self", value(0)), ("self", value(0))];
    let twice = Call::new(&relu, &twice, &[], Device::Cpu, &[], &[]).unwrap_err();
    assert!(twice.message.contains("`self` is given twice"), "{twice}");
    let to = operation("aten::to", "dtype");
    for number in [Whole::Number(999), Whole::Number(-1), Whole::Slot(0)] {
        let dtype = [("self", value(0)), ("dtype", Argument::Int(number))];
        let dtype = Call::new(&to, &dtype, &[], Device::Cpu, &[], &[]).unwrap_err();
        assert!(dtype.message.contains("`dtype` has an unknown value"), "{dtype}");
    }
    let mut frame = Frame::new(1).unwrap();
    assert!(
        call(&relu, &[("self", value(0))], &[Output::One(None)]).run(&mut frame).is_err(),
        "an unset value"
    );
    assert!(
        frame.get(5).is_err() && frame.set(5, &Tensor::from(1f32)).is_err(),
        "a value that does not exist"
    );
}

#[test]
fn sizes_that_overflow_are_errors() {
    for (name, a, b) in [
        ("_operator.floordiv", i64::MIN, -1),
        ("_operator.floordiv", 1, 0),
        ("_operator.mod", 1, 0),
        ("_operator.mul", i64::MAX, 2),
        ("_operator.add", i64::MAX, 1),
        ("_operator.sub", i64::MIN, 1),
        ("_operator.pow", 3, i64::MAX),
    ] {
        let mut frame = Frame::new(1).unwrap();
        let arguments = [("a", Argument::Int(Whole::Number(a))), ("b", Argument::Int(Whole::Number(b)))];
        assert!(call(&operation(name, ""), &arguments, &[]).run(&mut frame).is_err(), "{name} {a} {b}");
    }
    let mut frame = Frame::new(1).unwrap();
    let infinite = [("a", Argument::Float(f64::INFINITY))];
    assert!(call(&operation("math.floor", ""), &infinite, &[]).run(&mut frame).is_err());
}

#[test]
fn one_size_stands_for_all_elements_of_a_list() {
    let x = Tensor::arange(32, (Kind::Float, Device::Cpu)).reshape([2, 1, 4, 4]);
    let mut frame = frame_with(3, &x);
    let of_dim = [("self", value(0)), ("dim", Argument::Int(Whole::Number(0)))];
    call(&operation("aten::sym_size", "int"), &of_dim, &[Output::One(Some(1))]).run(&mut frame).unwrap();
    let pool = [("self", value(0)), ("kernel_size", Argument::Int(Whole::Slot(1)))];
    call(&operation("aten::avg_pool2d", ""), &pool, &[Output::One(Some(2))]).run(&mut frame).unwrap();
    assert_eq!(frame.get(2).unwrap().size(), [2, 1, 2, 2]);
}

#[test]
fn traits_tell_of_random_numbers_writes_and_views() {
    let traits =
        |name: &str, overload: &str, argument: &str| operation(name, overload).traits(argument).unwrap();
    assert!(traits("aten::dropout", "", "").draws && !traits("aten::relu", "", "").draws);
    assert!(traits("aten::add_", "Tensor", "self").writes && !traits("aten::add_", "Tensor", "other").writes);
    assert!(
        traits("aten::add_", "Tensor", "self").returns_it
            && !traits("aten::add", "Tensor", "self").returns_it
    );
    for (name, overload) in
        [("ravel", ""), ("mT", ""), ("tensor_split", "sections"), ("moveaxis", "int"), ("view", "dtype")]
    {
        assert!(traits(&format!("aten::{name}"), overload, "self").shares, "{name}");
    }
    assert!(!traits("aten::add", "Tensor", "self").shares && !traits("aten::view_as", "", "other").shares);
}
