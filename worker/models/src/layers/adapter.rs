//! Low-rank adapters of layers.

use tch::{Device, Kind, TchError, Tensor};

use super::super::error::ModelError;
use super::super::lora::{Adapted, shapes};
use super::super::registry::{Registry, Scope};
use super::super::weight::Weight;
use super::{Dropout, Init};

/// Registers the adapter of a weight that exists. Returns A and B.
///
/// # Errors
/// The weight has an adapter already, or no two dimensions.
pub(crate) fn adapt(registry: &mut Registry, adapted: Adapted, rank: i64) -> Result<[Weight; 2], ModelError> {
    let shape = registry.get(&adapted.weight).map(|entry| entry.tensor().size()).unwrap_or_default();
    let Some([a, b]) = shapes(&shape, adapted.is_transposed, rank) else {
        let reason = format!("its shape {shape:?} is not that of a linear or convolution weight");
        return Err(ModelError::NotAdaptable { weight: adapted.weight, reason });
    };
    let [a_name, b_name] = adapted.names();
    let b = Tensor::f_zeros(b.as_slice(), (Kind::Float, Device::Cpu))?;
    let mut root = registry.root();
    let pair = [root.weight(&a_name, &Init::FanIn.weight(&a)?)?, root.weight(&b_name, &b)?];
    registry.adapted.push(adapted);
    Ok(pair)
}

/// The adapter of a layer of this crate.
#[derive(Debug)]
pub(super) struct Adapter {
    a: Weight,
    b: Weight,
    scale: f64,
    dropout: Dropout,
}

impl Adapter {
    /// Registers the adapter of the layer in this scope, if it gets one.
    pub(super) fn of_layer(scope: &mut Scope<'_>) -> Result<Option<Self>, ModelError> {
        let weight = scope.full_name("weight");
        let Some(lora) = scope.registry().lora_of(&weight).cloned() else { return Ok(None) };
        let dropout = Dropout::new(scope, lora.dropout);
        let [a, b] = adapt(scope.registry_mut(), Adapted { weight, is_transposed: false }, lora.rank)?;
        Ok(Some(Self { a, b, scale: lora.scale(), dropout }))
    }

    /// Adds the adapter's result for `x` to the layer's, `y`. `down` computes the layer with A as its weight and without a bias,
    /// and `up` the product with B.
    pub(super) fn add(
        &self,
        y: &Tensor,
        x: &Tensor,
        train: bool,
        down: impl Fn(&Tensor, &Tensor) -> Result<Tensor, TchError>,
        up: impl Fn(&Tensor, &Tensor) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, ModelError> {
        let low = down(&self.dropout.forward(x, train)?, &self.a.get()?)?;
        Ok(y.f_add(&up(&low, &self.b.get()?)?.f_mul_scalar(self.scale)?)?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use super::*;
    use crate::Lora;
    use crate::frozen::{FrozenAs, FrozenWeights};
    use crate::layers::{Conv2d, ConvOptions, Linear};

    fn registry(chooses: &'static str) -> Registry {
        let chooses = Arc::new(move |name: &str| name.starts_with(chooses));
        let mut registry = Registry::new(Device::Cpu);
        registry.lora = Some(Lora { rank: 2, alpha: 6.0, dropout: 0.0, chooses });
        registry
    }

    fn tensor(registry: &Registry, name: &str) -> Tensor {
        registry.get(name).unwrap().tensor().shallow_clone()
    }

    #[test]
    fn an_adapter_adds_its_product_to_that_of_the_layer() {
        let mut registry = registry("fc");
        let layer = Linear::new(&mut registry.root().sub("fc"), 5, 4).unwrap();
        let other = Linear::new(&mut registry.root().sub("other"), 5, 4).unwrap();
        assert_eq!(registry.adapted(), [Adapted { weight: "fc.weight".to_owned(), is_transposed: false }]);
        let x = Tensor::randn([3, 5], (Kind::Float, Device::Cpu));
        let plain = x.linear(&tensor(&registry, "fc.weight"), Some(tensor(&registry, "fc.bias")));
        assert_eq!(layer.forward(&x, true).unwrap(), plain, "B begins at zero");
        let (a, b) = (tensor(&registry, "fc.lora_A.weight"), tensor(&registry, "fc.lora_B.weight"));
        tch::no_grad(|| b.shallow_clone().copy_(&Tensor::randn([4, 2], (Kind::Float, Device::Cpu))));
        let merged = tensor(&registry, "fc.weight") + b.matmul(&a) * 3.0;
        let expected = x.linear(&merged, Some(tensor(&registry, "fc.bias")));
        assert!((layer.forward(&x, true).unwrap() - expected).abs().max().double_value(&[]) < 1e-5);
        assert!(other.forward(&x, true).is_ok() && registry.get("other.lora_A.weight").is_none());
        registry.set_base(|name| name != "other.bias");
        let of = |name: &str| registry.get(name).map(|entry| (entry.is_base(), entry.is_frozen())).unwrap();
        assert_eq!((of("fc.weight"), of("other.bias")), ((true, true), (false, false)));
    }

    #[test]
    fn a_convolution_has_an_adapter_of_its_kernel_also_beside_int8_values() {
        for is_narrow in [false, true] {
            let mut registry = registry("conv");
            let chooses = move |name: &str| (is_narrow && name == "conv.weight").then_some(FrozenAs::Int8);
            registry.frozen = Some(FrozenWeights(Arc::new(chooses)));
            let options = ConvOptions { padding: 1, stride: 2, bias: true, ..ConvOptions::kernel(3) };
            let conv = Conv2d::new(&mut registry.root().sub("conv"), (3, 4), options).unwrap();
            let entry = registry.get("conv.weight").unwrap();
            let weight = dtrain_torch_shim::frozen::widen(entry.tensor(), entry.scale()).unwrap();
            assert_eq!((entry.frozen().is_some(), entry.is_base()), (is_narrow, is_narrow));
            let (a, b) = (tensor(&registry, "conv.lora_A.weight"), tensor(&registry, "conv.lora_B.weight"));
            assert_eq!((a.size(), b.size()), (vec![2, 3, 3, 3], vec![4, 2, 1, 1]));
            tch::no_grad(|| {
                b.shallow_clone().copy_(&Tensor::randn([4, 2, 1, 1], (Kind::Float, Device::Cpu)))
            });
            let merged = weight + (b.flatten(1, -1).matmul(&a.flatten(1, -1)) * 3.0).view([4, 3, 3, 3]);
            let x = Tensor::randn([2, 3, 9, 9], (Kind::Float, Device::Cpu));
            let expected = x.conv2d(&merged, Some(tensor(&registry, "conv.bias")), [2, 2], [1, 1], [1, 1], 1);
            assert!((conv.forward(&x, false).unwrap() - expected).abs().max().double_value(&[]) < 1e-4);
        }
    }
}
