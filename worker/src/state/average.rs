//! Exponential moving average of the weights (Polyak and Juditsky 1992; Tarvainen and Valpola 2017, arXiv
//! 1703.01780) and of the running statistics, updated after every committed step.

use tch::{TchError, Tensor};

use super::column::AVERAGE;
use super::table::Table;
use crate::out_of_memory::retry_on_oom;
use crate::tensors::is_floating;

/// Elements that [`Average::swap`] exchanges at a time; its scratch space is 4 MiB of float32.
const CHUNK: i64 = 1 << 20;

/// Settings and counter of the moving average; its values are a column of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Average {
    decay: f64,
    warmup: bool,
    updates: u64,
}

impl Average {
    /// Creates an average. It averages rows of a floating dtype and copies other rows (counters, flags).
    ///
    /// With `warmup` the decay of update t, counted from 0, is min(decay, (1 + t) / (10 + t)), as in
    /// tf.train.ExponentialMovingAverage with `num_updates`: random first weights fade fast.
    pub fn new(decay: f64, warmup: bool) -> Self {
        Self { decay, warmup, updates: 0 }
    }

    /// Returns the decay of the next update: average <- decay x average + (1 - decay) x data.
    pub fn next_decay(&self) -> f64 {
        if !self.warmup {
            return self.decay;
        }
        let t = self.updates as f64;
        self.decay.min((1.0 + t) / (10.0 + t))
    }

    /// Moves the average towards the data.
    pub fn update(&mut self, table: &Table) -> Result<(), TchError> {
        let share = 1.0 - self.next_decay();
        let held = table.column(AVERAGE.name).unwrap_or_default();
        for (average, data) in held.iter().zip(table.data()) {
            let mut average = average.shallow_clone();
            retry_on_oom(data.device(), || {
                let is_averaged = is_floating(average.kind()) || average.is_complex();
                tch::no_grad(|| match is_averaged {
                    true => average.f_lerp_(data, share).map(drop),
                    false => average.f_copy_(data),
                })
            })?;
        }
        self.updates += 1;
        Ok(())
    }

    /// Exchanges the average with the data, bit by bit, to evaluate the model with the average. A second call
    /// restores both. Works in chunks, without a third copy.
    pub fn swap(&self, table: &Table) -> Result<(), TchError> {
        let held = table.column(AVERAGE.name).unwrap_or_default();
        let mut pairs = held.iter().zip(table.data());
        tch::no_grad(|| pairs.try_for_each(|(average, data)| exchange(average, data)))
    }

    /// Returns the number of updates.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Continues after `updates` updates. The caller has copied their values into the column.
    pub fn restore(&mut self, updates: u64) {
        self.updates = updates;
    }
}

fn exchange(a: &Tensor, b: &Tensor) -> Result<(), TchError> {
    let (a, b) = (a.f_view(-1)?, b.f_view(-1)?);
    let elements = a.size1()?;
    let scratch =
        retry_on_oom(a.device(), || Tensor::f_empty([CHUNK.min(elements)], (a.kind(), a.device())))?;
    for begin in (0..elements).step_by(CHUNK as usize) {
        let length = CHUNK.min(elements - begin);
        let (mut a, mut b) = (a.f_narrow(0, begin, length)?, b.f_narrow(0, begin, length)?);
        let mut kept = scratch.f_narrow(0, 0, length)?;
        kept.f_copy_(&a)?;
        a.f_copy_(&b)?;
        b.f_copy_(&kept)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::layout::{Group, LayoutOptions};
    use super::super::table::Parameter;
    use super::*;
    use tch::{Device, Kind};

    const DECAYS: [f64; 3] = [0.0, 0.5, 0.9999];

    /// Returns a value by step and element, without a pattern that an average would cancel.
    fn value(step: u64, index: usize) -> f64 {
        ((step * 37 + index as u64 * 11 + 3) % 101) as f64 / 7.0 - 5.0
    }

    fn values(step: u64) -> Tensor {
        Tensor::from_slice(&(0..13).map(|index| value(step, index)).collect::<Vec<_>>())
    }

    /// Returns a table of these tensors with an average, and the average row by row.
    fn table(tensors: &[&Tensor]) -> (Table, Vec<Tensor>) {
        let names = ["a", "b", "c"];
        let group = Group::Statistics;
        let parameter = |(name, tensor)| Parameter { name, tensor, group };
        let parameters: Vec<_> = names.into_iter().zip(tensors.iter().copied()).map(parameter).collect();
        let mut table = Table::new(&parameters, LayoutOptions::default(), 0).unwrap();
        table.add_column(AVERAGE).unwrap();
        let held = table.column(AVERAGE.name).unwrap();
        let averages =
            table.slots().into_iter().map(|(block, slot)| slot.view(&held[block]).unwrap()).collect();
        (table, averages)
    }

    #[test]
    fn averages_follow_the_formula() {
        for (decay, warmup) in DECAYS.into_iter().flat_map(|decay| [(decay, false), (decay, true)]) {
            let double = values(0);
            let (single, counter) = (double.to_kind(Kind::Float), Tensor::from_slice(&[0i64]));
            let (table, averages) = table(&[&single, &double, &counter]);
            let mut average = Average::new(decay, warmup);
            let mut wanted: Vec<f64> = (0..13).map(|index| value(0, index)).collect();
            for step in 1..=200 {
                double.shallow_clone().copy_(&values(step));
                single.shallow_clone().copy_(&values(step));
                let _ = counter.shallow_clone().fill_(step as i64);
                let t = (step - 1) as f64;
                let d = if warmup { decay.min((1.0 + t) / (10.0 + t)) } else { decay };
                for (index, wanted) in wanted.iter_mut().enumerate() {
                    *wanted = d * *wanted + (1.0 - d) * value(step, index);
                }
                average.update(&table).unwrap();
                let wanted = Tensor::from_slice(&wanted);
                for (flat, tolerance) in averages.iter().zip([2e-5, 1e-12]) {
                    let off = (flat - &wanted).abs().max().double_value(&[]);
                    assert!(off <= tolerance, "decay {decay}, step {step}: off by {off:e}");
                }
                assert_eq!(averages[2].int64_value(&[0]), step as i64);
            }
            assert_eq!(average.updates(), 200);
        }
    }

    #[test]
    fn warm_up_forgets_the_first_values() {
        let data = Tensor::from_slice(&[1000f64]);
        let (table, averages) = table(&[&data]);
        let mut average = Average::new(0.9999, true);
        assert_eq!(average.next_decay(), 0.1);
        let _ = data.shallow_clone().fill_(0.0);
        (0..50).for_each(|_| average.update(&table).unwrap());
        assert!(averages[0].double_value(&[0]) < 1e-6);
        average.restore(1_000_000);
        assert_eq!(average.next_decay(), 0.9999);
    }

    /// Returns bits, because a NaN differs from itself.
    fn bits(tensor: &Tensor) -> Vec<i32> {
        Vec::try_from(tensor.view_dtype(Kind::Int)).unwrap()
    }

    #[test]
    fn two_swaps_are_the_identity_bit_by_bit() {
        // More than two chunks; NaN and infinity are exchanged like other values.
        let large = Tensor::randn([CHUNK * 2 + 17], (Kind::Float, Device::Cpu));
        let odd = Tensor::from_slice(&[f32::NAN, -0.0, f32::NEG_INFINITY, 1e-42]);
        let none = Tensor::zeros([0], (Kind::Float, Device::Cpu));
        let live = [&large, &odd, &none];
        let (table, averages) = table(&live);
        for row in &averages {
            let _ = row.shallow_clone().neg_();
        }
        let mut average = Average::new(0.9, false);
        let (before, negative) = (live.map(bits), bits(&averages[0]));
        average.swap(&table).unwrap();
        assert_eq!((bits(live[0]), bits(&averages[0])), (negative, before[0].clone()));
        average.swap(&table).unwrap();
        assert_eq!(live.map(bits), before);
        assert!(average.update(&table).is_ok());
    }
}
