//! The arena's views, order and gradients.
#![allow(clippy::unwrap_used)]
use super::*;
use tch::Device;

fn parameters() -> Vec<(&'static str, Tensor)> {
    let make = |shape: &[i64], kind| Tensor::rand(shape, (kind, Device::Cpu)).set_requires_grad(true);
    vec![
        ("first.weight", make(&[3, 5], Kind::Float)),
        ("first.bias", make(&[3], Kind::Float)),
        ("double", make(&[2], Kind::Double)),
        ("last", make(&[7], Kind::Float)),
    ]
}

/// The sum of the squares of the gradients.
fn squares(arena: &Arena) -> f64 {
    let norms = arena.own_norms().unwrap();
    norms.iter().map(|norm| norm.double_value(&[]).powi(2)).sum()
}

#[test]
fn parameters_keep_their_values_and_become_aligned_views() {
    let parameters = parameters();
    let before: Vec<Tensor> = parameters.iter().map(|(_, tensor)| tensor.copy()).collect();
    let arena = Arena::new(parameters.iter().map(|(name, tensor)| (*name, tensor))).unwrap();
    assert_eq!(arena.parameters(), 15 + 3 + 2 + 7);
    assert_eq!(arena.buffers().len(), 2);
    let floats = &arena.buffers()[0];
    let names: Vec<&str> = floats.slots.iter().map(|slot| slot.name.as_str()).collect();
    assert_eq!(names, ["last", "first.bias", "first.weight"]);
    assert!(floats.slots.iter().all(|slot| slot.offset * 4 % 64 == 0));
    for ((_, parameter), before) in parameters.iter().zip(&before) {
        assert_eq!(parameter, before);
        assert!(parameter.requires_grad() && parameter.is_leaf());
    }
    let _ = tch::no_grad(|| floats.data.shallow_clone().fill_(2.0));
    assert_eq!(parameters[0].1.double_value(&[2, 4]), 2.0);
}

#[test]
fn gradients_accumulate_into_the_buffer() {
    let parameters = parameters();
    let arena = Arena::new(parameters.iter().map(|(name, tensor)| (*name, tensor))).unwrap();
    let loss = || {
        parameters.iter().fold(Tensor::from(0f64), |sum, (_, p)| {
            sum + (p * 2.0).sum(Kind::Double)
        })
    };
    loss().backward();
    loss().backward();
    // 27 parameters with a gradient of 4 each; the gaps between them stay zero.
    assert!((squares(&arena) - 27.0 * 16.0).abs() < 1e-3);
    arena.scale_grad(0.5).unwrap();
    assert_eq!(parameters[3].1.grad().double_value(&[6]), 2.0);
    arena.zero_grad().unwrap();
    assert_eq!(squares(&arena), 0.0);
    let _ = tch::no_grad(|| parameters[1].1.grad().fill_(f64::NAN));
    assert!(!squares(&arena).is_finite());
}
