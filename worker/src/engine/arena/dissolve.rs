//! The way out of an arena: every parameter gets storage of its own again.

use dtrain_torch_shim::tensor;

use super::{Arena, ArenaError, FlatBuffer, moving};

impl Arena {
    /// Frees the gradients, and then the flat buffers one after another; what the layers hold keeps its values, bit by bit, in
    /// storage of its own. Whoever else holds views of the buffers lets go of them before. Memory of the group is given back
    /// on this rank, without a word to the others.
    ///
    /// # Errors
    /// Where memory for a parameter is lacking; the parameters that were not reached stay in their buffers, and nothing is lost.
    pub fn dissolve(self) -> Result<(), ArenaError> {
        let Self { leaves, buffers, .. } = self;
        for leaf in &leaves {
            tensor::clear_grad(leaf).map_err(moving("gradients"))?;
        }
        let buffers: Vec<_> = buffers
            .into_iter()
            .map(|buffer| {
                let FlatBuffer {
                    data,
                    slots,
                    data_memory,
                    ..
                } = buffer;
                (data, data_memory, slots)
            })
            .collect();
        // The gradients are gone; each buffer goes with the end of its turn.
        for (data, memory, slots) in buffers {
            for slot in &slots {
                let view = slot.view(&data)?;
                let mut own = view.f_empty_like()?;
                tch::no_grad(|| own.f_copy_(&view))?;
                tensor::set_data(&leaves[slot.parameter], &own).map_err(moving(&slot.name))?;
            }
            drop((data, memory));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tch::{Device, Kind, Tensor};

    use super::super::{Arena, Slot};

    /// Channels-last, to see that strides stay.
    fn parameters() -> Vec<(&'static str, Tensor)> {
        let make = |shape: &[i64]| Tensor::rand(shape, (Kind::Float, Device::Cpu));
        let conv = make(&[2, 3, 4, 4]).permute([0, 3, 1, 2]);
        vec![
            ("conv", conv.set_requires_grad(true)),
            ("bias", make(&[5]).set_requires_grad(true)),
        ]
    }

    #[test]
    fn parameters_leave_with_their_values_and_without_gradients() {
        let parameters = parameters();
        let before: Vec<(Tensor, Vec<i64>)> = parameters
            .iter()
            .map(|(_, tensor)| (tensor.copy(), tensor.stride()))
            .collect();
        let arena = Arena::new(parameters.iter().map(|(name, tensor)| (*name, tensor))).unwrap();
        let slots: Vec<Slot> = arena.buffers()[0].slots.clone();
        let flat = arena.buffers()[0].data.shallow_clone();
        arena.dissolve().unwrap();
        let _ = tch::no_grad(|| flat.shallow_clone().fill_(7.0));
        for ((_, parameter), (value, strides)) in parameters.iter().zip(&before) {
            assert_eq!(parameter, value);
            assert_eq!(&parameter.stride(), strides);
            assert!(parameter.requires_grad() && parameter.is_leaf());
            assert!(!parameter.grad().defined());
        }
        // And they can come back.
        let arena = Arena::new(parameters.iter().map(|(name, tensor)| (*name, tensor))).unwrap();
        assert_eq!(arena.buffers()[0].slots, slots);
        assert_eq!(&slots[1].view(&arena.buffers()[0].data).unwrap(), &before[0].0);
    }
}
