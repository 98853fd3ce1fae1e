#![allow(clippy::unwrap_used)]
use tch::Kind;

use super::*;

const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

fn small() -> (Registry, Tensor) {
    let mut registry = Registry::new(Device::Cpu);
    let mut root = registry.root();
    let weight =
        root.sub("layer1").sub(0).parameter("weight", &Tensor::f_ones([2, 3], CPU).unwrap()).unwrap();
    let counter = Tensor::f_zeros([0i64; 0], (Kind::Int64, Device::Cpu)).unwrap();
    let _ = root.sub("bn").buffer("num_batches_tracked", &counter).unwrap();
    let _ = root.parameter("bias", &Tensor::f_zeros([3], CPU).unwrap()).unwrap();
    (registry, weight)
}

#[test]
fn tensors_are_listed_in_construction_order() {
    let (registry, _) = small();
    let names: Vec<_> = registry.state().iter().map(Entry::name).collect();
    assert_eq!(names, ["layer1.0.weight", "bn.num_batches_tracked", "bias"]);
    let parameters: Vec<_> = registry.parameters().map(Entry::name).collect();
    assert_eq!(parameters, ["layer1.0.weight", "bias"]);
    assert_eq!(registry.buffers().count(), 1);
    assert_eq!(registry.parameter_count(), 9);
    assert!(registry.parameters().all(|entry| entry.tensor().requires_grad()));
    assert!(registry.buffers().all(|entry| !entry.tensor().requires_grad()));
    assert_eq!(registry.get("bias").unwrap().role(), Role::Parameter);
    assert!(registry.get("layer1").is_none());
}

#[test]
fn a_name_can_be_used_once() {
    let (mut registry, _) = small();
    let again = registry.root().buffer("bias", &Tensor::f_zeros([3], CPU).unwrap());
    assert!(matches!(again, Err(ModelError::DuplicateName(name)) if name == "bias"));
    assert_eq!(registry.state().len(), 3);
}

#[test]
fn tensors_get_the_registrys_dtype_and_layout() {
    let mut registry = Registry::new(Device::Cpu);
    registry.kind = Kind::Double;
    registry.channels_last = true;
    let mut root = registry.root();
    let kernel = Tensor::f_arange(2 * 3 * 5 * 7, CPU).unwrap().view([2, 3, 5, 7]);
    let weight = root.parameter("weight", &kernel).unwrap();
    assert_eq!((weight.size(), weight.kind()), (vec![2, 3, 5, 7], Kind::Double));
    assert_eq!(weight.stride(), [105, 1, 21, 3]);
    assert!(weight.is_leaf() && weight.requires_grad() && weight.equal(&kernel.to_kind(Kind::Double)));
    // A 1 x 1 kernel has these strides too: libtorch chooses the convolution's kernel by them.
    let small = root.parameter("small", &kernel.narrow(2, 0, 1).narrow(3, 0, 1)).unwrap();
    assert_eq!(small.stride(), [3, 1, 3, 3]);
    let flat = root.parameter("flat", &kernel.view([6, 35])).unwrap();
    assert_eq!(flat.stride(), [35, 1]);
    let counter = Tensor::f_zeros([0i64; 0], (Kind::Int64, Device::Cpu)).unwrap();
    assert_eq!(root.buffer("counter", &counter).unwrap().kind(), Kind::Int64);
}

#[test]
fn data_replaced_through_the_registry_reaches_the_layer() {
    let (registry, weight) = small();
    let flat = Tensor::f_arange(6, CPU).unwrap();
    let mut registered = registry.get("layer1.0.weight").unwrap().tensor().shallow_clone();
    registered.f_set_data(&flat.f_view([2, 3]).unwrap()).unwrap();
    assert_eq!(weight.double_value(&[1, 2]), 5.0);
    assert!(weight.requires_grad());
    let _ = flat.shallow_clone().f_fill_(7.0).unwrap();
    assert_eq!(weight.double_value(&[0, 0]), 7.0);
}
