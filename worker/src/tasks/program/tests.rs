#![allow(clippy::unwrap_used)]
use super::*;

fn port(name: &str, kind: Kind, shape: &[Option<i64>]) -> Port {
    Port { name: name.into(), kind, shape: shape.to_vec() }
}

#[test]
fn a_mean_counts_as_often_as_its_samples() {
    let weights = Tensor::from_slice(&[1f32, 0.0, 1.0]);
    let value = |output: &Tensor, shape: &[Option<i64>], count| {
        sum_of(output, shape, &weights, count).unwrap().double_value(&[])
    };
    let mean = Tensor::from_slice(&[2.5f32]).set_requires_grad(true);
    assert_eq!(value(&mean, &[Some(1)], 4.0), 10.0);
    assert_eq!(value(&mean.squeeze(), &[], 4.0), 10.0);
    sum_of(&mean, &[Some(1)], &weights, 4.0).unwrap().backward();
    assert_eq!(mean.grad().double_value(&[0]), 4.0);
    assert_eq!(value(&Tensor::from(f32::NAN), &[], 0.0), 0.0, "no sample");
    let each = Tensor::from_slice(&[1f32, f32::NAN, 3.0]);
    assert_eq!(value(&each, &[None], 2.0), 4.0, "without the unreadable one");
}

#[test]
fn scalars_and_numbers_of_samples_are_figures() {
    let evaluate = [
        port("logits", Kind::Float, &[None, Some(3)]),
        port("accuracy", Kind::Float, &[None]),
        port("loss", Kind::Float, &[]),
        port("count", Kind::Int64, &[]),
        port("error", Kind::Half, &[Some(1)]),
    ];
    let found = figures(&evaluate, "loss");
    let found: Vec<_> = found.iter().map(|it| (it.name.as_str(), it.at)).collect();
    assert_eq!(found, [("accuracy", 1), ("error", 4)]);
}
