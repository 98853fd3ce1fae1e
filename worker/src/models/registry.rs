//! The list of a model's tensors, by name, in the order of construction.
//!
//! The registry holds a shallow clone of the very tensor that a layer computes with. Whoever replaces a parameter's data
//! (by a view into a flat buffer, say) through the registry thereby replaces it for the layer.

use std::collections::HashSet;
use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::error::ModelError;
use super::layers::{BatchSync, SyncHandle, channels_last};

/// Whether a tensor is trained or only carried along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Trained: has a gradient and is changed by the optimizer.
    Parameter,
    /// Not trained, but part of the model's state: running statistics and counters.
    Buffer,
}

/// One named tensor of a model.
#[derive(Debug)]
pub struct Entry {
    name: String,
    tensor: Tensor,
    role: Role,
}

impl Entry {
    /// The full name in PyTorch's style, such as `layer1.0.conv1.weight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tensor that the layer computes with, not a copy of it.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Parameter or buffer.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.tensor.numel()
    }

    /// The size of the data in bytes.
    pub fn bytes(&self) -> usize {
        self.elements() * self.tensor.kind().elt_size_in_bytes()
    }
}

/// All tensors of one model on one device, and what holds for all its layers.
#[derive(Debug)]
pub struct Registry {
    device: Device,
    kind: Kind,
    channels_last: bool,
    sync: Option<SyncHandle>,
    entries: Vec<Entry>,
    names: HashSet<String>,
    tied: Vec<(String, String)>,
}

impl Registry {
    /// An empty registry, whose tensors will live on `device`, floating-point ones in float32.
    pub fn new(device: Device) -> Self {
        Self {
            device,
            kind: Kind::Float,
            channels_last: false,
            sync: None,
            entries: Vec::new(),
            names: HashSet::new(),
            tied: Vec::new(),
        }
    }

    /// Sets the type of the floating-point tensors built from now on. Initial values are drawn in float32 whatever it is.
    pub fn set_kind(&mut self, kind: Kind) {
        self.kind = kind;
    }

    /// Whether the weights of convolutions built from now on, and with them what the network computes, lie channels-last:
    /// N x C x H x W with the strides of N x H x W x C.
    pub fn channels_last(&mut self, on: bool) {
        self.channels_last = on;
    }

    /// Whether convolutions are built channels-last.
    pub fn is_channels_last(&self) -> bool {
        self.channels_last
    }

    /// Sets with whom the batch normalisations built from now on share their statistics in training. One participant is as
    /// none.
    pub fn set_batch_sync(&mut self, sync: Option<Arc<dyn BatchSync>>) {
        self.sync = sync.filter(|sync| sync.participants() > 1).map(SyncHandle);
    }

    /// Whether batch normalisations share their statistics with other participants.
    pub fn is_batch_synced(&self) -> bool {
        self.sync.is_some()
    }

    /// Where the tensors live.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The outermost scope, from which a model is built.
    pub fn root(&mut self) -> Scope<'_> {
        Scope {
            registry: self,
            prefix: String::new(),
        }
    }

    /// All tensors in construction order, which is the order of torchvision's `state_dict`.
    pub fn state(&self) -> &[Entry] {
        &self.entries
    }

    /// The parameters in construction order.
    pub fn parameters(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.role == Role::Parameter)
    }

    /// The buffers in construction order.
    pub fn buffers(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.role == Role::Buffer)
    }

    /// The tensor of this full name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The number of parameter elements: what is meant by "a model of 11.7 million parameters".
    pub fn parameter_count(&self) -> usize {
        self.parameters().map(Entry::elements).sum()
    }

    /// The bytes of all parameters.
    pub fn parameter_bytes(&self) -> usize {
        self.parameters().map(Entry::bytes).sum()
    }

    /// The bytes of all buffers.
    pub fn buffer_bytes(&self) -> usize {
        self.buffers().map(Entry::bytes).sum()
    }

    /// Names under which PyTorch's files may hold a tensor a second time, each with the name of the tensor it is.
    /// [`load_state`](super::load_state) passes over them.
    pub fn tied(&self) -> &[(String, String)] {
        &self.tied
    }

    fn add(&mut self, name: String, tensor: &Tensor, role: Role) -> Result<(), ModelError> {
        if !self.names.insert(name.clone()) {
            return Err(ModelError::DuplicateName { name });
        }
        self.entries.push(Entry {
            name,
            tensor: tensor.shallow_clone(),
            role,
        });
        Ok(())
    }
}

/// A place in the tree of names, where a layer registers its tensors.
#[derive(Debug)]
pub struct Scope<'a> {
    registry: &'a mut Registry,
    prefix: String,
}

impl Scope<'_> {
    /// The scope one level further in: `sub("0")` of `layer1` is `layer1.0`.
    pub fn sub(&mut self, name: impl std::fmt::Display) -> Scope<'_> {
        let prefix = self.full_name(&name.to_string());
        Scope {
            registry: self.registry,
            prefix,
        }
    }

    /// The full name of this scope, such as `layer1.0`; empty at the root.
    pub fn name(&self) -> &str {
        &self.prefix
    }

    /// With whom batch normalisations share their statistics.
    pub(super) fn sync(&self) -> Option<&SyncHandle> {
        self.registry.sync.as_ref()
    }

    /// Says that PyTorch's module has the tensor `of` under the name `name` too (full names): a tied weight.
    pub fn tie(&mut self, name: &str, of: &str) {
        self.registry.tied.push((name.to_owned(), of.to_owned()));
    }

    /// Registers a parameter and returns the tensor to compute with.
    ///
    /// The values of `init` are moved to the registry's device and type; what is returned is a leaf of the autograd graph
    /// that requires a gradient. It is contiguous, or channels-last where the registry says so and it has four dimensions.
    ///
    /// # Errors
    /// The name is taken, or libtorch cannot allocate on the device.
    pub fn parameter(&mut self, name: &str, init: &Tensor) -> Result<Tensor, ModelError> {
        let mut tensor = self.place(init)?;
        if self.registry.channels_last && tensor.dim() == 4 {
            tensor = channels_last(&tensor)?;
        }
        let tensor = tensor.f_set_requires_grad(true)?;
        self.registry
            .add(self.full_name(name), &tensor, Role::Parameter)?;
        Ok(tensor)
    }

    /// Registers a buffer of any type and returns the tensor to compute with, which requires no gradient.
    ///
    /// # Errors
    /// The name is taken, or libtorch cannot allocate on the device.
    pub fn buffer(&mut self, name: &str, init: &Tensor) -> Result<Tensor, ModelError> {
        let tensor = self.place(init)?;
        self.registry.add(self.full_name(name), &tensor, Role::Buffer)?;
        Ok(tensor)
    }

    /// Registers a leaf of the autograd graph that a module made elsewhere computes with. It stays that very tensor: its data is
    /// moved to the registry's device and type in place, so that the module sees it. A parameter requires a gradient afterwards,
    /// a buffer none.
    ///
    /// # Errors
    /// The name is taken, the tensor is no leaf, or libtorch cannot allocate on the device.
    pub fn adopt(&mut self, name: &str, tensor: &Tensor, role: Role) -> Result<(), ModelError> {
        let mut tensor = tensor.shallow_clone();
        tensor.f_set_data(&self.place(&tensor)?)?;
        let tensor = tensor.f_set_requires_grad(role == Role::Parameter)?;
        self.registry.add(self.full_name(name), &tensor, role)
    }

    fn place(&self, init: &Tensor) -> Result<Tensor, ModelError> {
        let tensor = init.f_detach()?;
        let tensor = match tensor.f_kind()? {
            Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16 => {
                tensor.f_to_kind(self.registry.kind)?
            }
            _ => tensor,
        };
        Ok(tensor.f_to_device(self.registry.device)?.f_contiguous()?)
    }

    fn full_name(&self, name: &str) -> String {
        if self.prefix.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.prefix)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tch::Kind;

    use super::*;

    const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

    fn small() -> (Registry, Tensor) {
        let mut registry = Registry::new(Device::Cpu);
        let mut root = registry.root();
        let weight = root
            .sub("layer1")
            .sub(0)
            .parameter("weight", &Tensor::f_ones([2, 3], CPU).unwrap())
            .unwrap();
        let counter = Tensor::f_zeros([0i64; 0], (Kind::Int64, Device::Cpu)).unwrap();
        let _ = root.sub("bn").buffer("num_batches_tracked", &counter).unwrap();
        let _ = root
            .parameter("bias", &Tensor::f_zeros([3], CPU).unwrap())
            .unwrap();
        (registry, weight)
    }

    #[test]
    fn names_roles_and_sizes_in_construction_order() {
        let (registry, _) = small();
        let names: Vec<_> = registry.state().iter().map(Entry::name).collect();
        assert_eq!(names, ["layer1.0.weight", "bn.num_batches_tracked", "bias"]);
        let parameters: Vec<_> = registry.parameters().map(Entry::name).collect();
        assert_eq!(parameters, ["layer1.0.weight", "bias"]);
        assert_eq!(registry.buffers().count(), 1);
        assert_eq!(registry.parameter_count(), 9);
        assert_eq!(registry.parameter_bytes(), 36);
        assert_eq!(registry.buffer_bytes(), 8);
        assert!(registry.parameters().all(|entry| entry.tensor().requires_grad()));
        assert!(registry.buffers().all(|entry| !entry.tensor().requires_grad()));
        assert_eq!(registry.get("bias").unwrap().role(), Role::Parameter);
        assert!(registry.get("layer1").is_none());
    }

    #[test]
    fn a_name_can_be_used_once() {
        let (mut registry, _) = small();
        let again = registry
            .root()
            .buffer("bias", &Tensor::f_zeros([3], CPU).unwrap());
        assert!(matches!(again, Err(ModelError::DuplicateName { name }) if name == "bias"));
        assert_eq!(registry.state().len(), 3);
    }

    #[test]
    fn type_and_layout_are_the_registrys() {
        let mut registry = Registry::new(Device::Cpu);
        registry.set_kind(Kind::Double);
        registry.channels_last(true);
        let mut root = registry.root();
        let kernel = Tensor::f_arange(2 * 3 * 5 * 7, CPU).unwrap().view([2, 3, 5, 7]);
        let weight = root.parameter("weight", &kernel).unwrap();
        assert_eq!((weight.size(), weight.kind()), (vec![2, 3, 5, 7], Kind::Double));
        assert_eq!(weight.stride(), [105, 1, 21, 3]);
        assert!(weight.is_leaf() && weight.requires_grad() && weight.equal(&kernel.to_kind(Kind::Double)));
        // A 1 x 1 kernel has its strides too: by them libtorch chooses the kernel of the convolution.
        let small = root
            .parameter("small", &kernel.narrow(2, 0, 1).narrow(3, 0, 1))
            .unwrap();
        assert_eq!(small.stride(), [3, 1, 3, 3]);
        let flat = root.parameter("flat", &kernel.view([6, 35])).unwrap();
        assert_eq!(flat.stride(), [35, 1]);
        let counter = Tensor::f_zeros([0i64; 0], (Kind::Int64, Device::Cpu)).unwrap();
        assert_eq!(root.buffer("counter", &counter).unwrap().kind(), Kind::Int64);
    }

    #[test]
    fn an_adopted_tensor_stays_the_one_that_a_module_holds() {
        let mut registry = Registry::new(Device::Cpu);
        let held = Tensor::f_arange(6, (Kind::Double, Device::Cpu))
            .unwrap()
            .view([2, 3])
            .tr();
        assert!(!held.is_contiguous() && !held.requires_grad());
        let mut root = registry.root();
        root.sub("layer").adopt("weight", &held, Role::Parameter).unwrap();
        let counter = Tensor::from(3i64);
        root.adopt("counter", &counter, Role::Buffer).unwrap();
        assert!(held.requires_grad() && held.is_contiguous() && held.kind() == Kind::Float);
        assert_eq!((held.size(), held.double_value(&[2, 1])), (vec![3, 2], 5.0));
        let mut registered = registry.get("layer.weight").unwrap().tensor().shallow_clone();
        registered.f_set_data(&Tensor::zeros([3, 2], CPU)).unwrap();
        assert_eq!(held.double_value(&[2, 1]), 0.0);
        assert_eq!(registry.get("counter").unwrap().tensor().kind(), Kind::Int64);
        assert_eq!((registry.parameter_count(), registry.buffers().count()), (6, 1));
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
}
