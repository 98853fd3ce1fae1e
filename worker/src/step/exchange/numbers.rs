//! Numbers that ranks name, such as those of unreadable samples.

use tch::{Device, Tensor};

use crate::collectives::{Ranks, ReduceOp};
use crate::step::error::Result;
use crate::step::recover::retry_on_oom;

/// Returns the numbers of all ranks, those of rank 0 first. Every rank calls it.
pub(crate) fn gather_numbers(ranks: &Ranks, own: &[u32]) -> Result<Vec<u32>> {
    let mut counts = vec![0; ranks.size()];
    counts[ranks.rank()] = own.len() as i64;
    let counts = sum(ranks, &counts)?;
    let total: i64 = counts.iter().sum();
    // A place belongs to one rank, so a sum keeps its number.
    let mut all = vec![0; total as usize];
    let first: i64 = counts[..ranks.rank()].iter().sum();
    all[first as usize..][..own.len()].iter_mut().zip(own).for_each(|(to, number)| *to = i64::from(*number));
    Ok(sum(ranks, &all)?.into_iter().map(|number| number as u32).collect())
}

fn sum(ranks: &Ranks, values: &[i64]) -> Result<Vec<i64>> {
    let all = retry_on_oom(Device::Cpu, || Tensor::f_from_slice(values))?;
    if !values.is_empty() {
        ranks.all_reduce(&all, ReduceOp::Sum)?.wait()?;
    }
    Ok(Vec::try_from(&all)?)
}
