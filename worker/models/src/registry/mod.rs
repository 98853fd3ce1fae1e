//! The list of a model's tensors by name, in the order of construction.
//!
//! The registry holds a shallow clone of each tensor of a layer. If a parameter's data is replaced through
//! the registry (for example by a view into a flat buffer), the layer uses the new data.

mod base;
mod entry;

use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::batch_sync::{BatchGroups, BatchSync};
use super::error::ModelError;
use super::frozen::{FrozenAs, FrozenWeights};
use super::layout::channels_last;
use super::lora::{Adapted, Lora};
use super::recompute::{Recompute, Segment};
use super::weight::{Shadow, Weight};

pub use self::entry::{Entry, Role};

/// All tensors of a model on one device, and settings of all its layers.
#[derive(Debug)]
pub struct Registry {
    device: Device,
    /// The dtype of floating-point tensors that are built later. Initial values are always drawn in float32.
    pub kind: Kind,
    /// Whether convolution weights that are built later are channels-last (N x C x H x W with the strides of
    /// N x H x W x C), and with them the activations.
    pub channels_last: bool,
    /// Whether batch normalisation uses groups, which [`Registry::groups`] sets before each step.
    pub is_batch_grouped: bool,
    /// Whether batch normalisation in training normalises by the running statistics and leaves them.
    pub is_batch_frozen: bool,
    /// The probability of [`Dropout`](super::Dropout) in blocks and embeddings that are built later.
    pub dropout: f64,
    /// The probability of [`DropPath`](super::DropPath) in the last block of a network that is built later.
    pub drop_path: f64,
    /// The adapters of layers that are built later.
    pub lora: Option<Lora>,
    /// The weights of products that are built later and held in fewer bytes; they are part of the base.
    pub frozen: Option<FrozenWeights>,
    /// Whether an exported program has a batch normalisation with one value per channel and row.
    pub has_small_norms: bool,
    /// What the user must know of the model, in sentences.
    pub warnings: Vec<String>,
    sync: Option<Arc<dyn BatchSync>>,
    groups: BatchGroups,
    recompute: Recompute,
    /// The number of operations so far that draw random numbers.
    draws: u32,
    has_dropout: bool,
    pub(super) adapted: Vec<Adapted>,
    pub(super) entries: Vec<Entry>,
    tied: Vec<(String, String)>,
    /// The ties whose tensors checkpoints have under both names.
    repeated: Vec<(String, String)>,
}

impl Registry {
    /// Creates an empty registry on `device`, with float32 as floating-point dtype.
    pub fn new(device: Device) -> Self {
        Self {
            device,
            kind: Kind::Float,
            channels_last: false,
            is_batch_grouped: false,
            is_batch_frozen: false,
            dropout: 0.0,
            drop_path: 0.0,
            lora: None,
            frozen: None,
            has_small_norms: false,
            warnings: Vec::new(),
            sync: None,
            groups: BatchGroups::default(),
            recompute: Recompute::default(),
            draws: 0,
            has_dropout: false,
            adapted: Vec::new(),
            entries: Vec::new(),
            tied: Vec::new(),
            repeated: Vec::new(),
        }
    }

    /// Sets the participants of later batch normalisations. One participant is the same as None.
    pub fn set_batch_sync(&mut self, sync: Option<Arc<dyn BatchSync>>) {
        self.sync = sync.filter(|sync| sync.participants() > 1);
    }

    /// Returns the groups that batch normalisation normalises separately.
    pub fn groups(&self) -> &BatchGroups {
        &self.groups
    }

    /// Returns whether batch normalisation shares its statistics with other participants.
    pub fn is_batch_synced(&self) -> bool {
        self.sync.is_some()
    }

    /// Returns whether the model has batch normalisation with running statistics.
    pub fn has_batch_norms(&self) -> bool {
        self.buffers().any(|entry| entry.name().ends_with("running_mean"))
    }

    /// Returns the handle that selects the recomputed segments.
    pub fn recompute(&self) -> &Recompute {
        &self.recompute
    }

    /// Returns the device of the tensors.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the outermost scope, in which a model is built.
    pub fn root(&mut self) -> Scope<'_> {
        Scope { registry: self, prefix: String::new() }
    }

    /// Returns all tensors in construction order, which is the order of torchvision's `state_dict`.
    pub fn state(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the parameters in construction order.
    pub fn parameters(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.role == Role::Parameter)
    }

    /// Returns the buffers in construction order.
    pub fn buffers(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.role == Role::Buffer)
    }

    /// Returns the tensor with this full name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Returns the number of elements of all parameters.
    pub fn parameter_count(&self) -> usize {
        self.parameters().map(Entry::elements).sum()
    }

    /// Returns other names under which PyTorch's files may repeat a tensor, each with the tensor's own name.
    /// [`load_state`](super::load_state) skips them.
    pub fn tied(&self) -> &[(String, String)] {
        &self.tied
    }

    /// Makes layers a segment with a name and parameters, numbered after all earlier ones.
    pub(super) fn segment_of<T: Send + 'static>(
        &mut self,
        name: &str,
        layers: T,
        parameters: Vec<Tensor>,
    ) -> Segment<T> {
        let number = self.recompute.take_number();
        Segment::new(layers, name, number, parameters, self.recompute.clone())
    }

    /// Numbers an operation that draws random numbers: no other of the network has this number.
    pub(super) fn take_draw(&mut self) -> u32 {
        self.draws += 1;
        self.draws
    }

    /// Returns whether a layer of this crate draws random numbers in training.
    pub fn has_dropout(&self) -> bool {
        self.has_dropout
    }

    pub(super) fn sync(&self) -> Option<&Arc<dyn BatchSync>> {
        self.sync.as_ref()
    }

    /// Returns the second names that checkpoints repeat, each with the tensor's own name.
    pub fn repeated(&self) -> &[(String, String)] {
        &self.repeated
    }

    /// Returns the tensor with this full name, or with this second name of a tied weight.
    pub(super) fn get_tied(&self, name: &str) -> Option<&Entry> {
        let first = self.tied.iter().find(|(second, _)| second == name).map(|(_, first)| first.as_str());
        self.get(first.unwrap_or(name))
    }

    fn add(&mut self, name: String, tensor: &Tensor, role: Role) -> Result<(), ModelError> {
        if self.get(&name).is_some() {
            return Err(ModelError::DuplicateName(name));
        }
        self.entries.push(Entry {
            name,
            tensor: tensor.shallow_clone(),
            role,
            shadow: None,
            is_frozen: false,
            is_held: false,
            is_base: false,
            frozen: None,
            scale: None,
        });
        Ok(())
    }
}

/// A node in the tree of names, where a layer registers its tensors.
#[derive(Debug)]
pub struct Scope<'a> {
    registry: &'a mut Registry,
    prefix: String,
}

impl Scope<'_> {
    /// Returns the scope one level below: `sub("0")` of `layer1` is `layer1.0`.
    pub fn sub(&mut self, name: impl std::fmt::Display) -> Scope<'_> {
        let prefix = self.full_name(&name.to_string());
        Scope { registry: self.registry, prefix }
    }

    /// Returns the full name of this scope, such as `layer1.0`; empty at the root.
    pub fn name(&self) -> &str {
        &self.prefix
    }

    pub(super) fn registry(&self) -> &Registry {
        self.registry
    }

    pub(super) fn registry_mut(&mut self) -> &mut Registry {
        self.registry
    }

    /// Numbers a dropout.
    pub(super) fn take_dropout(&mut self) -> u32 {
        self.registry.has_dropout = true;
        self.registry.take_draw()
    }

    /// Declares that PyTorch's module has the tensor `of` also under `name` (full names): a tied weight.
    pub fn tie(&mut self, name: &str, of: &str) {
        self.registry.tied.push((name.to_owned(), of.to_owned()));
    }

    /// Like [`Scope::tie`]; checkpoints have the tensor under both names, as `load_state_dict` expects.
    pub(super) fn repeat(&mut self, name: &str, of: &str) {
        self.tie(name, of);
        self.registry.repeated.push((name.to_owned(), of.to_owned()));
    }

    /// Builds layers as a segment, which may be recomputed in backward. Build segments in the order of the
    /// forward pass. A segment has the scope's name, or at the root that of its first layer.
    pub fn segment<T: Send + 'static>(
        &mut self,
        build: impl FnOnce(&mut Scope<'_>) -> Result<T, ModelError>,
    ) -> Result<Segment<T>, ModelError> {
        let number = self.registry.recompute.take_number();
        let before = self.registry.entries.len();
        let layers = build(self)?;
        let own = &self.registry.entries[before..];
        let name = match own.first() {
            Some(first) if self.prefix.is_empty() => {
                first.name.rsplit_once('.').map_or(first.name(), |(layer, _)| layer)
            }
            _ => self.prefix.as_str(),
        };
        let parameters = own.iter().filter(|entry| entry.role == Role::Parameter);
        Ok(Segment::new(
            layers,
            name,
            number,
            parameters.map(|entry| entry.tensor.shallow_clone()).collect(),
            self.registry.recompute.clone(),
        ))
    }

    /// Registers a parameter with the values of `init` on the registry's device and in its dtype. Returns a
    /// leaf that requires a gradient: contiguous, or with four dimensions channels-last if the registry is.
    pub fn parameter(&mut self, name: &str, init: &Tensor) -> Result<Tensor, ModelError> {
        let mut tensor = self.to_registry(init)?;
        if self.registry.channels_last && tensor.dim() == 4 {
            tensor = channels_last(&tensor)?;
        }
        let tensor = tensor.f_set_requires_grad(true)?;
        self.registry.add(self.full_name(name), &tensor, Role::Parameter)?;
        Ok(tensor)
    }

    /// Like [`Scope::parameter`], for a layer that computes products.
    pub fn weight(&mut self, name: &str, init: &Tensor) -> Result<Weight, ModelError> {
        let leaf = self.parameter(name, init)?;
        let shadow = Shadow::default();
        if let Some(entry) = self.registry.entries.last_mut() {
            entry.shadow = Some(shadow.clone());
        }
        Ok(Weight { leaf, shadow, frozen: None })
    }

    /// Like [`Scope::weight`], for a layer whose weight may be held in fewer bytes.
    pub(super) fn product_weight(&mut self, name: &str, init: &Tensor) -> Result<Weight, ModelError> {
        let chosen = self.registry.frozen.as_ref().and_then(|frozen| frozen.of(&self.full_name(name)));
        match chosen {
            Some(frozen) => self.frozen(name, init, frozen),
            None => self.weight(name, init),
        }
    }

    /// Registers a weight that is never trained, in this form.
    pub(super) fn frozen(
        &mut self,
        name: &str,
        init: &Tensor,
        frozen: FrozenAs,
    ) -> Result<Weight, ModelError> {
        let (values, scale) = frozen.of(&init.f_detach()?)?;
        let device = self.registry.device;
        let leaf = values.f_to_device(device)?.f_contiguous()?;
        let scale = scale.map(|scale| scale.f_to_device(device)).transpose()?;
        self.registry.add(self.full_name(name), &leaf, Role::Parameter)?;
        if let Some(entry) = self.registry.entries.last_mut() {
            (entry.is_frozen, entry.is_base) = (true, true);
            entry.frozen = Some(frozen);
            entry.scale = scale.as_ref().map(Tensor::shallow_clone);
        }
        Ok(Weight { leaf, shadow: Shadow::default(), frozen: Some(scale) })
    }

    /// Like [`Scope::parameter`]; the model itself does not train it unless `is_trained`.
    pub(super) fn parameter_or_frozen(
        &mut self,
        name: &str,
        init: &Tensor,
        is_trained: bool,
    ) -> Result<Tensor, ModelError> {
        let tensor = self.parameter(name, init)?;
        if let Some(entry) = self.registry.entries.last_mut() {
            entry.is_frozen = !is_trained;
        }
        Ok(tensor)
    }

    /// Registers a buffer of any dtype. Returns the tensor to use, which requires no gradient.
    pub fn buffer(&mut self, name: &str, init: &Tensor) -> Result<Tensor, ModelError> {
        let tensor = self.to_registry(init)?;
        self.registry.add(self.full_name(name), &tensor, Role::Buffer)?;
        Ok(tensor)
    }

    /// Like [`Scope::buffer`], for a program that depends on dtypes: only float32 becomes the registry's dtype.
    pub(super) fn foreign_buffer(&mut self, name: &str, init: &Tensor) -> Result<Tensor, ModelError> {
        if init.f_kind()? == Kind::Float {
            return self.buffer(name, init);
        }
        let tensor = init.f_detach()?.f_to_device(self.registry.device)?.f_contiguous()?;
        self.registry.add(self.full_name(name), &tensor, Role::Buffer)?;
        Ok(tensor)
    }

    /// Registers a buffer that a program holds, unless it is registered under any name. The tensor and its dtype stay the same.
    pub(super) fn hold_buffer(&mut self, name: &str, tensor: &Tensor) -> Result<(), ModelError> {
        let is_same = |entry: &Entry| entry.tensor().f_is_set_to(tensor).unwrap_or(false);
        if self.registry.buffers().any(is_same) {
            return Ok(());
        }
        let mut tensor = tensor.shallow_clone();
        tensor.f_set_data(&tensor.f_detach()?.f_contiguous()?)?;
        self.registry.add(self.full_name(name), &tensor, Role::Buffer)?;
        if let Some(entry) = self.registry.entries.last_mut() {
            entry.is_held = true;
        }
        Ok(())
    }

    fn to_registry(&self, init: &Tensor) -> Result<Tensor, ModelError> {
        let tensor = init.f_detach()?;
        let tensor = match tensor.f_kind()? {
            Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16 => {
                tensor.f_to_kind(self.registry.kind)?
            }
            _ => tensor,
        };
        Ok(tensor.f_to_device(self.registry.device)?.f_contiguous()?)
    }

    pub(super) fn full_name(&self, name: &str) -> String {
        match self.prefix.as_str() {
            "" => name.to_owned(),
            prefix => format!("{prefix}.{name}"),
        }
    }
}

#[cfg(test)]
mod tests;
