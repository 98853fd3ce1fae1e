//! A copy of the trained rows in autocast's dtype, for products: cast once in a step in place of once in every micro-step, and always at
//! the same place, as graphs need it. docs/decisions/0082-shadow-column.md

use tch::{Kind, TchError, Tensor};

use super::column::{ColumnSpec, Role};
use super::table::Table;
use crate::models::Shadow;

impl Table {
    /// Has a shadow of this dtype, or none. The places of the layers' shadows, `(name, place)`, get what is theirs of it.
    pub(crate) fn shadow<'a>(
        &mut self,
        kind: Option<Kind>,
        places: impl Iterator<Item = (&'a str, &'a Shadow)>,
    ) -> Result<(), TchError> {
        let wanted = kind.map(Role::Shadow);
        self.columns
            .retain(|column| column.spec.role.lasts() || Some(column.spec.role) == wanted);
        if let (Some(role), true) = (wanted, self.columns.iter().all(|column| column.spec.role.lasts())) {
            self.add(ColumnSpec { name: "shadow", role })?;
        }
        let held = self.shadow_held();
        for (name, place) in places {
            let slot = |(block, values): (usize, &Tensor)| {
                let slots = &self.layout.blocks[block].slots;
                Some((
                    slots.iter().find(|slot| slot.name == name)?,
                    values.shallow_clone(),
                ))
            };
            let found = held.iter().enumerate().find_map(slot);
            place.set(found.map(|(slot, values)| slot.view(&values)).transpose()?);
        }
        Ok(())
    }

    pub(crate) fn refresh(&self) -> Result<(), TchError> {
        let mut pairs = self.shadow_held().iter().zip(self.data());
        tch::no_grad(|| pairs.try_for_each(|(held, data)| held.shallow_clone().f_copy_(data)))
    }

    /// By trained block.
    fn shadow_held(&self) -> &[Tensor] {
        let shadow = self.columns.iter().find(|column| !column.spec.role.lasts());
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
    use crate::state::{Keep, bytes};

    /// Numbers between -1 and 1.
    fn wave(shape: &[i64], number: usize) -> Tensor {
        let at = Tensor::arange(shape.iter().product::<i64>(), (Kind::Float, Device::Cpu));
        (at * 0.7 + number as f64).sin().view(shape)
    }

    /// Losses of three steps of two micro-batches, and the parameters after them.
    fn train(kind: Option<Kind>) -> (Vec<f64>, Vec<f64>) {
        let mut registry = Registry::new(Device::Cpu);
        registry.channels_last = true;
        let options = ConvOptions {
            bias: true,
            ..ConvOptions::kernel(3)
        };
        let conv = Conv2d::new(&mut registry.root().sub("conv"), (2, 4), options).unwrap();
        let config = GptConfig {
            vocabulary: 11,
            context: 8,
            width: 12,
            depth: 2,
            heads: 3,
        };
        let model = Gpt::new(config, &mut registry).unwrap();
        // Other tests draw from the same generator.
        for (number, entry) in registry.parameters().enumerate() {
            let values = wave(&entry.tensor().size(), number) * 0.2;
            tch::no_grad(|| entry.tensor().shallow_clone().copy_(&values));
        }
        let rows = registry.parameters().map(|entry| (entry.name(), entry.tensor()));
        let mut table = Table::of(rows).unwrap();
        let places = || registry.parameters().map(|entry| (entry.name(), entry.shadow()));
        table.shadow(kind, places()).unwrap();
        let mut losses = Vec::new();
        for step in 0..3 {
            table.refresh().unwrap();
            for micro_step in 0..2 {
                let tokens = (wave(&[2, 8], step) * 5.0 + 5.5).to_kind(Kind::Int64);
                let image = wave(&[1, 2, 5, 5], 2 * step + micro_step);
                let region = Autocast::enter(Device::Cpu, Kind::BFloat16).unwrap();
                let sum = |x: Tensor| x.to_kind(Kind::Float).square().sum(Kind::Float);
                // A weight that is taken twice in a region would have its gradients added up in the shorter dtype where it is cast.
                let loss = match micro_step {
                    0 => model.loss(&tokens, &tokens).unwrap(),
                    _ => sum(model.forward(&tokens).unwrap()),
                } + sum(conv.forward(&image).unwrap());
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
                table.shadow(kind, places()).unwrap();
            }
        }
        let flat = Tensor::cat(&table.data().collect::<Vec<_>>(), 0);
        (losses, Vec::try_from(flat.to_kind(Kind::Double)).unwrap())
    }

    #[test]
    fn products_with_a_shadow_give_the_bits_of_those_that_cast() {
        let (shadowed, cast) = (train(Some(Kind::BFloat16)), train(None));
        assert_eq!(shadowed.0, cast.0);
        assert!(shadowed.1 == cast.1);
    }

    #[test]
    fn a_shadow_is_no_state() {
        let mut table = Table::of([("row", &Tensor::from_slice(&[1.0f32, 1.0 / 3.0]))]).unwrap();
        let place = Shadow::default();
        let places = || std::iter::once(("row", &place));
        table.shadow(Some(Kind::BFloat16), places()).unwrap();
        let held = table.shadow_held()[0].shallow_clone();
        assert_eq!(bytes(&held) * 2, table.bytes(|_| true));
        assert_eq!(
            Vec::<f32>::try_from(held.narrow(0, 0, 2).to_kind(Kind::Float)).unwrap(),
            [1.0, 0.333_984_38]
        );
        assert_eq!(table.columns().count(), 0);
        let keep = Keep {
            moments: true,
            average: true,
        };
        table.leave(keep).unwrap();
        assert!(table.shadow_held().is_empty());
    }
}
