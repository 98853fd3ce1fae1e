//! A new order of the parameters in their buffers, and what is laid out like the buffers brought into it.

use tch::{Device, Kind, TchError, Tensor};

use super::{Arena, ArenaError, Layout, Slot, parts};

/// From one layout of the same parameters to another.
#[derive(Debug)]
pub struct Rearrangement {
    moves: Vec<Move>,
    /// Elements and dtype of the new buffers.
    buffers: Vec<(i64, Kind)>,
}

#[derive(Debug)]
struct Move {
    from: (usize, i64),
    to: (usize, i64),
    len: i64,
}

impl Rearrangement {
    fn new(old: &Layout, new: &Layout, parameters: usize) -> Self {
        let mut places: Vec<(usize, i64)> = vec![(0, 0); parameters];
        for (number, slot) in slots(old) {
            places[slot.parameter] = (number, slot.offset);
        }
        let moves = slots(new).map(|(number, slot)| Move {
            from: places[slot.parameter],
            to: (number, slot.offset),
            len: slot.len(),
        });
        Self {
            moves: moves.collect(),
            buffers: new.buffers.iter().map(|of| (of.len, of.kind)).collect(),
        }
    }

    /// Brings flat tensors that are laid out like the old buffers, one each, into the new order.
    ///
    /// # Errors
    /// Where memory runs out.
    pub fn apply(&self, old: &[Tensor]) -> Result<Vec<Tensor>, TchError> {
        let device = old.first().map_or(Device::Cpu, Tensor::device);
        let new = self
            .buffers
            .iter()
            .map(|&(len, kind)| Tensor::f_zeros([len], (kind, device)))
            .collect::<Result<Vec<_>, _>>()?;
        tch::no_grad(|| {
            for Move { from, to, len } in &self.moves {
                let source = old[from.0].f_narrow(0, from.1, *len)?;
                new[to.0].f_narrow(0, to.1, *len)?.f_copy_(&source)?;
            }
            Ok::<_, TchError>(())
        })?;
        Ok(new)
    }
}

fn slots(layout: &Layout) -> impl Iterator<Item = (usize, &Slot)> {
    layout
        .buffers
        .iter()
        .enumerate()
        .flat_map(|(number, buffer)| buffer.slots.iter().map(move |slot| (number, slot)))
}

impl Arena {
    /// Lays the parameters out in `order`, in which their gradients were seen to become ready; it names each of them once,
    /// by its number in the order of construction, and is the same on every rank. Gradients are zero afterwards. Returns
    /// what the optimizer's state must go through, or None where the layout stays.
    ///
    /// # Errors
    /// Where memory runs out.
    pub fn rearrange(&mut self, order: &[usize]) -> Result<Option<Rearrangement>, ArenaError> {
        let layout = Layout::new(&self.specs, order, self.layout.options);
        if layout == self.layout {
            return Ok(None);
        }
        let rearrangement = Rearrangement::new(&self.layout, &layout, self.specs.len());
        let old: Vec<Tensor> = self
            .buffers
            .iter()
            .map(|buffer| buffer.data.shallow_clone())
            .collect();
        let new = rearrangement.apply(&old)?;
        drop(old);

        let mut old_buffers = std::mem::take(&mut self.buffers);
        self.parts = parts(&layout, self.shard);
        self.layout = layout;
        for (of, data) in self.layout.buffers.iter().zip(new) {
            let position = old_buffers
                .iter()
                .position(|old| (old.kind, old.group) == (of.kind, of.group))
                .ok_or_else(|| TchError::Convert("a new order has other parameters".into()))?;
            let mut buffer = old_buffers.swap_remove(position);
            buffer.data = match &buffer.data_memory {
                Some(memory) => {
                    let mut shared = memory.f_narrow(0, 0, of.len)?;
                    tch::no_grad(|| shared.f_copy_(&data))?;
                    shared
                }
                None => data,
            };
            let memory = match &buffer.grad_memory {
                Some(memory) => memory.shallow_clone(),
                None if buffer.grad.numel() as i64 == of.len => buffer.grad.shallow_clone(),
                None => buffer.data.f_zeros_like()?,
            };
            buffer.grad = memory.f_narrow(0, 0, of.len)?;
            buffer.slots = of.slots.clone();
            self.buffers.push(buffer);
        }
        self.zero_grad()?;
        for number in 0..self.buffers.len() {
            self.point(number)?;
        }
        Ok(Some(rearrangement))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{LayoutOptions, Parameter};
    use super::*;

    #[test]
    fn parameters_and_states_keep_their_values_in_a_new_order() {
        let make = |shape: &[i64]| Tensor::rand(shape, (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let tensors = [make(&[40]), make(&[3, 5]), make(&[100]), make(&[7])];
        let before: Vec<Tensor> = tensors.iter().map(Tensor::copy).collect();
        let parameters: Vec<Parameter<'_>> = std::iter::zip(["a", "b", "c", "d"], &tensors)
            .zip([0, 1, 0, 1])
            .map(|((name, tensor), group)| Parameter { name, tensor, group })
            .collect();
        for shards in [1, 3] {
            let options = LayoutOptions {
                first_bucket_bytes: 64,
                bucket_bytes: 128,
                shards,
            };
            let mut arena = Arena::with_layout(&parameters, options, shards - 1).unwrap();
            let mut given = Vec::new();
            arena
                .share(|len, kind| {
                    given.push(Tensor::zeros([len as i64], (kind, Device::Cpu)));
                    Ok(given.last().map(Tensor::shallow_clone))
                })
                .unwrap();
            // A state that holds every parameter's own values.
            let state: Vec<Tensor> = arena.buffers().iter().map(|buffer| buffer.data.copy()).collect();
            let rearrangement = arena.rearrange(&[1, 2, 0, 3]).unwrap().unwrap();
            let state = rearrangement.apply(&state).unwrap();
            for (buffer, state) in arena.buffers().iter().zip(&state) {
                assert_eq!(&buffer.data, state);
                for slot in &buffer.slots {
                    assert_eq!(slot.view(state).unwrap(), before[slot.parameter]);
                }
            }
            for (tensor, before) in tensors.iter().zip(&before) {
                assert_eq!(tensor, before);
                assert!(tensor.is_leaf() && tensor.requires_grad());
            }
            // Gradients still arrive in the memory that was given.
            tensors[2].sum(Kind::Float).backward();
            // They were asked for first, for each buffer.
            let gradients = given.iter().step_by(if shards == 1 { 1 } else { 2 });
            let sum: f64 = gradients
                .map(|memory| memory.sum(Kind::Double).double_value(&[]))
                .sum();
            assert_eq!(sum, 100.0);
            assert_eq!(arena.buffers().iter().map(|b| b.slots.len()).sum::<usize>(), 4);
            assert!(arena.rearrange(&[1, 2, 0, 3]).unwrap().is_none());
        }
    }

    #[test]
    fn channels_last_weights_keep_their_strides() {
        let weight = Tensor::rand([4, 3, 2, 2], (Kind::Float, Device::Cpu))
            .permute([0, 2, 3, 1])
            .contiguous()
            .permute([0, 3, 1, 2])
            .set_requires_grad(true);
        let (before, strides) = (weight.detach().copy(), weight.stride());
        assert_eq!(strides, [12, 1, 6, 3]);
        let arena = Arena::new([("weight", &weight)]).unwrap();
        assert_eq!(
            (weight.stride(), weight.grad().stride()),
            (strides.clone(), strides)
        );
        assert_eq!(weight, before);
        (&weight * &before).sum(Kind::Float).backward();
        assert_eq!(weight.grad(), before);
        assert_eq!(
            arena.buffers()[0].slots[0]
                .view(&arena.buffers()[0].grad)
                .unwrap(),
            before
        );
    }
}
