//! The list of a model's tensors, by name, in the order of construction.
//!
//! The registry holds a shallow clone of the very tensor that a layer computes with. Whoever replaces a parameter's data
//! (by a view into a flat buffer, say) through the registry thereby replaces it for the layer.

use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::error::ModelError;
use super::layers::{BatchGroups, BatchSync, Shadow, Weight, channels_last};
use super::recompute::{Recompute, Segment};

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
    shadow: Option<Shadow>,
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

    /// Where its values in autocast's dtype go, which the layer computes with then; none where it does not: see [`Scope::weight`].
    pub fn shadow(&self) -> Option<&Shadow> {
        self.shadow.as_ref()
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.tensor.numel()
    }
}

/// All tensors of one model on one device, and what holds for all its layers.
#[derive(Debug)]
pub struct Registry {
    device: Device,
    /// The type of the floating-point tensors built from now on. Initial values are drawn in float32 whatever it is.
    pub kind: Kind,
    /// Whether the weights of convolutions built from now on, and with them what the network computes, lie channels-last:
    /// N x C x H x W with the strides of N x H x W x C.
    pub channels_last: bool,
    /// Whether batch normalisations take their statistics over groups of a fixed size, as [`Registry::groups`] says before each step.
    pub is_batch_grouped: bool,
    sync: Option<Arc<dyn BatchSync>>,
    groups: BatchGroups,
    recompute: Recompute,
    entries: Vec<Entry>,
    tied: Vec<(String, String)>,
}

impl Registry {
    /// An empty registry, whose tensors will live on `device`, floating-point ones in float32.
    pub fn new(device: Device) -> Self {
        Self {
            device,
            kind: Kind::Float,
            channels_last: false,
            is_batch_grouped: false,
            sync: None,
            groups: BatchGroups::default(),
            recompute: Recompute::default(),
            entries: Vec::new(),
            tied: Vec::new(),
        }
    }

    /// Sets with whom the batch normalisations built from now on share their statistics in training. One participant is as
    /// none.
    pub fn set_batch_sync(&mut self, sync: Option<Arc<dyn BatchSync>>) {
        self.sync = sync.filter(|sync| sync.participants() > 1);
    }

    /// The groups that batch normalisations normalise apart.
    pub fn groups(&self) -> &BatchGroups {
        &self.groups
    }

    /// Whether batch normalisations share their statistics with other participants.
    pub fn is_batch_synced(&self) -> bool {
        self.sync.is_some()
    }

    /// Which segments of the model are computed again in backward. A clone of it works on the same model.
    pub fn recompute(&self) -> &Recompute {
        &self.recompute
    }

    /// Where the tensors live.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The outermost scope, from which a model is built.
    pub fn root(&mut self) -> Scope<'_> {
        Scope { registry: self, prefix: String::new() }
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

    /// Names under which PyTorch's files may hold a tensor a second time, each with the name of the tensor it is.
    /// [`load_state`](super::load_state) passes over them.
    pub fn tied(&self) -> &[(String, String)] {
        &self.tied
    }

    fn add(&mut self, name: String, tensor: &Tensor, role: Role) -> Result<(), ModelError> {
        if self.get(&name).is_some() {
            return Err(ModelError::DuplicateName(name));
        }
        self.entries.push(Entry { name, tensor: tensor.shallow_clone(), role, shadow: None });
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
        Scope { registry: self.registry, prefix }
    }

    /// The full name of this scope, such as `layer1.0`; empty at the root.
    pub fn name(&self) -> &str {
        &self.prefix
    }

    /// The groups that batch normalisations normalise apart.
    pub(super) fn groups(&self) -> &BatchGroups {
        &self.registry.groups
    }

    /// With whom batch normalisations share their statistics.
    pub(super) fn sync(&self) -> Option<&Arc<dyn BatchSync>> {
        self.registry.sync.as_ref()
    }

    /// PyTorch's module has the tensor `of` under the name `name` too (full names): a tied weight.
    pub fn tie(&mut self, name: &str, of: &str) {
        self.registry.tied.push((name.to_owned(), of.to_owned()));
    }

    /// Builds layers as a segment of the model, which may be computed again in backward. Segments are built in the order in which the
    /// forward pass runs them. A segment has the scope's name, or at the root that of its first layer.
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

    /// Registers a parameter with the values of `init` on the registry's device and in its type, and returns the tensor to compute with:
    /// a leaf that requires a gradient, contiguous, or channels-last where the registry says so and it has four dimensions.
    pub fn parameter(&mut self, name: &str, init: &Tensor) -> Result<Tensor, ModelError> {
        let mut tensor = self.place(init)?;
        if self.registry.channels_last && tensor.dim() == 4 {
            tensor = channels_last(&tensor)?;
        }
        let tensor = tensor.f_set_requires_grad(true)?;
        self.registry.add(self.full_name(name), &tensor, Role::Parameter)?;
        Ok(tensor)
    }

    /// As [`Scope::parameter`], for a layer that computes products with it.
    pub fn weight(&mut self, name: &str, init: &Tensor) -> Result<Weight, ModelError> {
        let leaf = self.parameter(name, init)?;
        let shadow = Shadow::default();
        if let Some(entry) = self.registry.entries.last_mut() {
            entry.shadow = Some(shadow.clone());
        }
        Ok(Weight { leaf, shadow })
    }

    /// Registers a buffer of any type and returns the tensor to compute with, which requires no gradient.
    pub fn buffer(&mut self, name: &str, init: &Tensor) -> Result<Tensor, ModelError> {
        let tensor = self.place(init)?;
        self.registry.add(self.full_name(name), &tensor, Role::Buffer)?;
        Ok(tensor)
    }

    /// Registers a leaf that a module made elsewhere computes with. It stays that very tensor: its data is moved to the registry's device
    /// and type in place. A parameter requires a gradient afterwards, a buffer none.
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
        match self.prefix.as_str() {
            "" => name.to_owned(),
            prefix => format!("{prefix}.{name}"),
        }
    }
}

#[cfg(test)]
mod tests;
