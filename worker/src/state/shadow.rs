//! A copy of trained rows in autocast's dtype, for products. A step casts it once, not once per micro-step,
//! at a fixed address, as graphs need. docs/decisions/0082-shadow-column.md

use std::collections::HashMap;

use tch::{Kind, TchError, Tensor};

use super::column::{ColumnSpec, Role};
use super::layout::{Part, narrow};
use super::table::Table;
use crate::models::Shadow;
use crate::out_of_memory::retry_on_oom;

/// Elements without a shadow that a part may have between two rows, such as those of norms: 32 KiB of bfloat16.
const GAP: i64 = 16 << 10;

impl Table {
    /// Creates a shadow of this dtype for the trained rows in `slots`, `(name, slot)`; None removes it.
    pub(crate) fn set_shadow<'a>(
        &mut self,
        kind: Option<Kind>,
        slots: impl Iterator<Item = (&'a str, &'a Shadow)>,
    ) -> Result<(), TchError> {
        self.remove_shadow();
        let Some(kind) = kind else { return Ok(()) };
        let numbers: HashMap<&str, usize> = self.names().zip(0..).collect();
        let slot = |(name, slot): (&str, &Shadow)| Some((*numbers.get(name)?, slot.clone()));
        self.shadow_slots = slots.filter_map(slot).collect();
        let role = Role::Shadow(kind);
        // Retries a failed allocation, because the other ranks wait for this one.
        let device = self.device();
        retry_on_oom(device, || self.add_column(ColumnSpec { name: "shadow", role }))?;
        let slots: HashMap<usize, &Shadow> =
            self.shadow_slots.iter().map(|(row, slot)| (*row, slot)).collect();
        for (part, held) in self.shadow_parts().iter().zip(self.shadow_tensors()) {
            for slot in &self.layout.blocks[part.block].slots {
                if let (Some(range), Some(shadow)) = (part.overlap(slot), slots.get(&slot.row)) {
                    shadow.set(Some(slot.reshape(&part.view(held, &range)?)?));
                }
            }
        }
        Ok(())
    }

    /// Makes the layers use the rows themselves, and frees the shadow's memory.
    pub(super) fn remove_shadow(&mut self) {
        self.shadow_slots.drain(..).for_each(|(_, slot)| slot.set(None));
        self.columns.retain(|column| column.spec.role.is_saved());
    }

    pub(crate) fn refresh_shadow(&self) -> Result<(), TchError> {
        let parts = self.shadow_parts();
        let mut pairs = parts.iter().zip(self.shadow_tensors());
        tch::no_grad(|| {
            pairs.try_for_each(|(part, held)| {
                let data = narrow(&self.data[part.block].flat, &part.range)?;
                held.shallow_clone().f_copy_(&data)
            })
        })
    }

    /// Returns the rows that have a shadow. Rows are one part if no more than [`GAP`] elements are between them: a part
    /// is one kernel.
    pub(super) fn shadow_parts(&self) -> Vec<Part> {
        let mut is_shadowed = vec![false; self.rows.len()];
        for (row, _) in &self.shadow_slots {
            is_shadowed[*row] = true;
        }
        let mut parts: Vec<Part> = Vec::new();
        for (block, of) in self.layout.blocks.iter().enumerate() {
            for slot in of.slots.iter().filter(|slot| is_shadowed[slot.row]) {
                match parts.last_mut() {
                    Some(part) if part.block == block && slot.offset - part.range.end <= GAP => {
                        part.range.end = slot.range().end
                    }
                    _ => parts.push(Part { block, range: slot.range() }),
                }
            }
        }
        parts
    }

    /// Returns the shadow's tensors, one for each part of [`Table::shadow_parts`].
    fn shadow_tensors(&self) -> &[Tensor] {
        let shadow = self.columns.iter().find(|column| !column.spec.role.is_saved());
        shadow.map_or(&[], |column| &column.held)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use dtrain_torch_shim::autocast::Autocast;
    use tch::Device;

    use super::*;
    use crate::collectives::Ranks;
    use crate::models::{Conv2d, ConvOptions, Gpt, GptConfig, Registry};
    use crate::state::Keep;
    use crate::tensors::bytes;

    /// Returns numbers between -1 and 1.
    fn wave(shape: &[i64], number: usize) -> Tensor {
        let at = Tensor::arange(shape.iter().product::<i64>(), (Kind::Float, Device::Cpu));
        (at * 0.7 + number as f64).sin().view(shape)
    }

    fn shadow_slots(registry: &Registry) -> impl Iterator<Item = (&str, &Shadow)> {
        let parameters = registry.parameters();
        parameters.filter_map(|entry| Some((entry.name(), entry.shadow()?)))
    }

    /// Returns the losses of three steps of two micro-batches, and the parameters after them.
    fn train(kind: Option<Kind>) -> (Vec<f64>, Vec<f64>) {
        let mut registry = Registry::new(Device::Cpu);
        registry.channels_last = true;
        let options = ConvOptions { bias: true, ..ConvOptions::kernel(3) };
        let conv = Conv2d::new(&mut registry.root().sub("conv"), (2, 4), options).unwrap();
        let model = Gpt::new(config(), &mut registry).unwrap();
        // Sets the weights by formula, because other tests draw from the same generator.
        for (number, entry) in registry.parameters().enumerate() {
            let values = wave(&entry.tensor().size(), number) * 0.2;
            tch::no_grad(|| entry.tensor().shallow_clone().copy_(&values));
        }
        let rows = registry.parameters().map(|entry| (entry.name(), entry.tensor()));
        let mut table = Table::of(rows).unwrap();
        let slots = || shadow_slots(&registry);
        table.set_shadow(kind, slots()).unwrap();
        let mut losses = Vec::new();
        for step in 0..3 {
            table.refresh_shadow().unwrap();
            for micro_step in 0..2 {
                let tokens = (wave(&[2, 8], step) * 5.0 + 5.5).to_kind(Kind::Int64);
                let image = wave(&[1, 2, 5, 5], 2 * step + micro_step);
                let region = Autocast::enter(Device::Cpu, Kind::BFloat16).unwrap();
                let sum = |x: Tensor| x.to_kind(Kind::Float).square().sum(Kind::Float);
                // One use per weight and region: with casts, two uses would add gradients in bfloat16.
                let loss = match micro_step {
                    0 => model.loss(&tokens, &tokens, true).unwrap(),
                    _ => sum(model.forward(&tokens, true).unwrap()),
                } + sum(conv.forward(&image, true).unwrap());
                drop(region);
                loss.backward();
                losses.push(loss.double_value(&[]));
            }
            tch::no_grad(|| {
                for (mut data, grad) in table.data().map(Tensor::shallow_clone).zip([table.grad(0)]) {
                    let _ = data.f_sub_(&(grad * 0.01)).unwrap();
                }
            });
            table.zero_grad().unwrap();
            if step == 0 {
                let order: Vec<usize> = (0..table.leaves().len()).collect();
                assert!(table.rearrange(&order, &Ranks::single()).unwrap());
                table.set_shadow(kind, slots()).unwrap();
            }
        }
        let flat = Tensor::cat(&table.data().collect::<Vec<_>>(), 0);
        (losses, Vec::try_from(flat.to_kind(Kind::Double)).unwrap())
    }

    #[test]
    fn shadows_give_the_same_bits_as_casts() {
        let (shadowed, cast) = (train(Some(Kind::BFloat16)), train(None));
        assert_eq!(shadowed.0, cast.0);
        assert!(shadowed.1 == cast.1);
    }

    #[test]
    fn shadows_are_not_saved() {
        let mut table = Table::of([("row", &Tensor::from_slice(&[1.0f32, 1.0 / 3.0]))]).unwrap();
        let slot = Shadow::default();
        let slots = || std::iter::once(("row", &slot));
        table.set_shadow(Some(Kind::BFloat16), slots()).unwrap();
        let held = table.shadow_tensors()[0].shallow_clone();
        assert_eq!(Vec::<f32>::try_from(held.to_kind(Kind::Float)).unwrap(), [1.0, 0.333_984_38]);
        assert_eq!(table.columns().count(), 0);
        assert!(slot.is_set());
        let keep = Keep { moments: true, average: true };
        table.leave_phase(keep).unwrap();
        // The memory is free before the next phase allocates.
        assert!(table.shadow_tensors().is_empty() && !slot.is_set());
    }

    fn config() -> GptConfig {
        GptConfig { vocabulary: 11, context: 8, width: 12, depth: 2, heads: 3 }
    }

    #[test]
    fn only_weights_of_products_have_shadows() {
        let mut registry = Registry::new(Device::Cpu);
        let _model = Gpt::new(config(), &mut registry).unwrap();
        let ones = Tensor::ones([64], (Kind::Float, Device::Cpu));
        let plain = registry.root().parameter("plain", &ones).unwrap();
        let rows = registry.parameters().map(|entry| (entry.name(), entry.tensor()));
        let mut table = Table::of(rows).unwrap();
        table.set_shadow(Some(Kind::BFloat16), shadow_slots(&registry)).unwrap();
        let (mut elements, mut rows) = (0, 0);
        for entry in registry.parameters() {
            let is_product = !["plain", "wpe", "ln_"].iter().any(|name| entry.name().contains(name));
            assert_eq!(entry.shadow().is_some_and(Shadow::is_set), is_product, "{}", entry.name());
            if is_product {
                (elements, rows) = (elements + entry.elements() as u64, rows + 1);
            }
        }
        let held: u64 = table.shadow_tensors().iter().map(bytes).sum();
        assert!((2 * elements..2 * (elements + 16 * rows)).contains(&held), "{held}");

        let mut table = Table::of([("plain", &plain)]).unwrap();
        table.set_shadow(Some(Kind::BFloat16), shadow_slots(&registry)).unwrap();
        assert!(table.shadow_tensors().is_empty());
    }
}
