//! Predictions of queries by labelled images: each sample of the network is an episode of the same support images and of several queries.

use std::ops::Range;
use std::sync::Arc;

use dtrain_common::batch::batches_of;

use super::images::Values;
use super::made::Maker;
use super::rows::Row;
use super::{Done, Engine, with_less_memory};
use crate::data::{self, BadPlace, Loader, MicroBatch, Place};
use crate::run::{Followers, TrainError};
use crate::setup::error::Result;
use crate::tasks::{BatchSizes, TaskError};

/// Predicts the queries `todo` in order, `batch` episodes at a time. `support` are the support images, class by class, by their numbers
/// in the data set.
pub(super) fn run(
    mut engine: Engine<'_>,
    (mut maker, support): (Maker, &[u32]),
    todo: &[u32],
    batch: usize,
    followers: &mut Followers<'_>,
) -> Result<Done> {
    let BatchSizes { evaluation_least: least, evaluation_most: most, .. } = engine.facts.batches;
    let batch = engine.facts.batches.evaluated(batch);
    let set = Arc::clone(&engine.facts.test);
    let width = set.groups().ok_or(TaskError::NoPrediction)?.width();
    let queries = width - support.len();
    let batch = with_less_memory(&mut engine, todo, (batch, least), |engine, todo, batch, done| {
        let asked: Vec<&[u32]> = todo.chunks(queries).collect();
        // A network may need more episodes than there are: the last one again, whose values nobody reads.
        let length =
            if most.is_some() { asked.len().next_multiple_of(batch) } else { asked.len().max(least) };
        let filled = asked.iter().copied().chain(asked.last().copied().into_iter().cycle());
        let filled: Vec<&[u32]> = filled.take(length).collect();
        let cuts = batches_of(filled.len(), 1, 0, batch, least);
        let request = |cut: &Range<usize>| {
            let episodes = filled[cut.clone()].iter().flat_map(|asked| episode(support, asked, queries));
            MicroBatch { width, places: episodes.map(Place::first).collect(), ..MicroBatch::of(0, []) }
        };
        let work: Vec<MicroBatch> = cuts.iter().map(request).collect();
        let mut loader =
            Loader::start(Arc::clone(&set), engine.loader, work.into_iter()).map_err(TrainError::from)?;
        for cut in cuts {
            let Some(decoded) = loader.next() else { break };
            let decoded = decoded.map_err(TrainError::from)?;
            let own = &asked[cut.start.min(asked.len())..cut.end.min(asked.len())];
            let rows = rows(engine, &mut maker, &decoded, (&filled[cut], own, support))?;
            loader.recycle(decoded);
            engine.part.add(&rows)?;
            *done += rows.len();
            engine.progress.add(rows.len() as u64);
            followers.advance();
        }
        Ok(())
    })?;
    Ok(Done { inputs: todo.len(), tokens: 0, batch })
}

/// Returns the members of an episode. One of fewer queries asks the last one again.
fn episode(support: &[u32], asked: &[u32], queries: usize) -> Vec<u32> {
    let last = asked.last().copied();
    let asked = asked.iter().copied().chain(last.into_iter().cycle()).take(queries);
    support.iter().copied().chain(asked).collect()
}

/// Predicts a loaded batch of the episodes `filled`, of which the first ones are `own`. Returns a row for each query of these.
fn rows(
    engine: &Engine<'_>,
    maker: &mut Maker,
    decoded: &data::Batch,
    (filled, own, support): (&[&[u32]], &[&[u32]], &[u32]),
) -> Result<Vec<Row>> {
    let firsts: Vec<u32> = filled.iter().map(|asked| asked[0]).collect();
    let Values::Form(values) = engine.values(decoded, &firsts, false)? else {
        return Err(TaskError::NoPrediction.into());
    };
    let mut rows = Vec::new();
    for (place, asked) in own.iter().enumerate() {
        let bad: Vec<&BadPlace> = decoded.bad.iter().filter(|bad| bad.place == place).collect();
        let is_support = |bad: &&&BadPlace| support.contains(&(bad.sample.index as u32));
        let of_all = bad.iter().find(is_support).or(bad.first().filter(|_| !has_values(decoded, place)));
        let values = values.f_get(place as i64)?;
        for (at, &query) in asked.iter().enumerate() {
            let own = bad.iter().find(|bad| bad.sample.index == query as usize);
            rows.push(match (own, of_all) {
                (Some(own), _) => Row::failed(query, own.sample.reason.clone()),
                (None, Some(bad)) => {
                    let reason = format!("{} cannot be read: {}", bad.sample.path, bad.sample.reason);
                    Row::failed(query, reason)
                }
                (None, None) => maker.row(query, &values.f_get(at as i64)?, &engine.form)?,
            });
        }
    }
    Ok(rows)
}

/// Returns whether an episode has values: during an outage it is not loaded, and then its last support image is of class 0.
fn has_values(decoded: &data::Batch, place: usize) -> bool {
    let labels = decoded.column("support_label").and_then(data::Column::as_i64).unwrap_or_default();
    let each = labels.len() / decoded.weights.len().max(1);
    labels.get(place * each..(place + 1) * each).and_then(<[i64]>::last).is_some_and(|last| *last > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_episode_asks_its_last_query_again() {
        assert_eq!(episode(&[7, 8], &[0, 1, 2], 3), [7, 8, 0, 1, 2]);
        assert_eq!(episode(&[7, 8], &[3], 3), [7, 8, 3, 3, 3]);
    }
}
