//! The base of a model, which a run does not train, and the weights with adapters.

use super::{Entry, Registry, Role};
use crate::lora::{Adapted, Lora};

impl Registry {
    /// Makes parameters the base of the model, by their names: they are frozen, and checkpoints lack them.
    pub fn set_base(&mut self, is_base: impl Fn(&str) -> bool) {
        let parameters = self.entries.iter_mut().filter(|entry| entry.role() == Role::Parameter);
        for entry in parameters.filter(|entry| is_base(entry.name())) {
            (entry.is_base, entry.is_frozen) = (true, true);
        }
    }

    /// Returns whether there is a base: see [`Registry::set_base`].
    pub fn has_base(&self) -> bool {
        self.entries.iter().any(Entry::is_base)
    }

    /// Returns whether a parameter belongs to an adapter.
    pub fn is_adapter(&self, name: &str) -> bool {
        self.adapted.iter().any(|adapted| adapted.names().iter().any(|own| own == name))
    }

    /// Returns the weights with adapters, in the order of construction.
    pub fn adapted(&self) -> &[Adapted] {
        &self.adapted
    }

    /// Returns the settings of adapters if a weight gets one.
    pub(crate) fn lora_of(&self, weight: &str) -> Option<&Lora> {
        self.lora.as_ref().filter(|lora| (lora.chooses)(weight))
    }
}
