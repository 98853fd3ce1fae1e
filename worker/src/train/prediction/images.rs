//! Predictions of images and numbers: batches of samples, or of windows, which are put together.

use std::collections::HashMap;
use std::sync::Arc;

use dtrain_common::batch::batches_of;
use dtrain_torch_shim::rng::{self, BySample};
use rand_chacha::rand_core::Rng;
use tch::{Device, Kind, Tensor};

use super::made::{Maker, most_probable, numbers};
use super::rows::{Cell, Row};
use super::stitch::Stitch;
use super::{Done, Engine, Set, with_less_memory};
use crate::data::rng::{Domain, keyed};
use crate::data::{self, Loader, MicroBatch};
use crate::run::{Followers, TrainError};
use crate::setup::error::Result;
use crate::setup::predict_error::PredictError;
use crate::tasks::predict::Form;
use crate::tasks::{Batch, BatchSizes};

/// The predictions of a batch, on the CPU.
pub(super) enum Values {
    /// N x the form's shape.
    Form(Tensor),
    /// N x the shape of each requested output.
    Outputs(Vec<Tensor>),
}

/// A sample of the loader: an image, or a window of one.
#[derive(Clone, Copy)]
struct Item {
    image: u32,
    /// Its number in the data set.
    sample: u32,
    /// The corner of a window.
    corner: (u32, u32),
    is_last: bool,
}

/// The state of a pass over images.
struct Pass<'a> {
    maker: &'a mut Maker,
    stitch: Option<Stitch>,
    /// Why the present image cannot be read.
    error: Option<String>,
}

/// Predicts the inputs `todo` in order.
pub(super) fn run(
    mut engine: Engine<'_>,
    mut maker: Maker,
    todo: &[u32],
    batch: usize,
    followers: &mut Followers<'_>,
) -> Result<Done> {
    let BatchSizes { evaluation_least: least, evaluation_most: most, .. } = engine.facts.batches;
    let batch = engine.facts.batches.evaluated(batch);
    let set = Arc::clone(&engine.facts.test);
    // Where the windows of each image begin in the set.
    let starts: Vec<u32> = maker
        .corners
        .iter()
        .flatten()
        .scan(0, |next, corners| {
            let start = *next;
            *next += corners.len() as u32;
            Some(start)
        })
        .collect();
    let batch = with_less_memory(&mut engine, todo, (batch, least), |engine, todo, batch, done| {
        let items = items(&maker, &starts, todo);
        let mut pass = Pass { maker: &mut maker, stitch: None, error: None };
        pass.run(engine, &set, &items, (batch, least, most.is_some()), done, followers)
    })?;
    Ok(Done { inputs: todo.len(), tokens: 0, batch })
}

/// Returns the samples of the images `todo`.
fn items(maker: &Maker, starts: &[u32], todo: &[u32]) -> Vec<Item> {
    let of = |&image: &u32| match &maker.corners {
        None => vec![Item { image, sample: image, corner: (0, 0), is_last: true }],
        Some(corners) => {
            let (start, corners) = (starts[image as usize], &corners[image as usize]);
            let item = |(number, &corner): (usize, &(u32, u32))| Item {
                image,
                sample: start + number as u32,
                corner,
                is_last: number + 1 == corners.len(),
            };
            corners.iter().enumerate().map(item).collect()
        }
    };
    todo.iter().flat_map(of).collect()
}

impl Pass<'_> {
    fn run(
        &mut self,
        engine: &mut Engine<'_>,
        set: &Set,
        items: &[Item],
        (batch, least, has_most): (usize, usize, bool),
        done: &mut usize,
        followers: &mut Followers<'_>,
    ) -> Result<()> {
        // A network may need more samples than there are: the last one again, whose values nobody reads.
        let all: Vec<u32> = items.iter().map(|item| item.sample).collect();
        let filled = all.iter().copied().chain(all.last().copied().into_iter().cycle());
        // A rest would be put on top of the last batch, which a network with an upper limit does not take.
        let length = if has_most { all.len().next_multiple_of(batch) } else { all.len().max(least) };
        let filled: Vec<u32> = filled.take(length).collect();
        let cuts = batches_of(filled.len(), 1, 0, batch, least);
        let work: Vec<MicroBatch> =
            cuts.iter().map(|cut| MicroBatch::of(0, filled[cut.clone()].iter().copied())).collect();
        let mut loader =
            Loader::start(Arc::clone(set), engine.loader, work.into_iter()).map_err(TrainError::from)?;
        for cut in cuts {
            let Some(decoded) = loader.next() else { break };
            let decoded = decoded.map_err(TrainError::from)?;
            let samples = &filled[cut.clone()];
            let rows = self.batch(engine, &decoded, &items[cut.start.min(items.len())..], samples)?;
            loader.recycle(decoded);
            engine.part.add(&rows)?;
            *done += rows.len();
            engine.progress.add(rows.len() as u64);
            followers.advance();
        }
        Ok(())
    }

    /// Predicts a loaded batch, whose first samples are `items`. Returns the rows of images that are complete with it.
    fn batch(
        &mut self,
        engine: &Engine<'_>,
        decoded: &data::Batch,
        items: &[Item],
        samples: &[u32],
    ) -> Result<Vec<Row>> {
        let mut reasons: HashMap<usize, String> = HashMap::new();
        for bad in &decoded.bad {
            reasons.entry(bad.place).or_insert_with(|| bad.sample.reason.clone());
        }
        let values = match reasons.len() == decoded.weights.len() {
            true => None,
            false => Some(engine.values(decoded, samples, self.maker.corners.is_some())?),
        };
        let mut rows = Vec::new();
        for (place, item) in items.iter().enumerate().take(decoded.weights.len()) {
            if let Some(reason) = reasons.remove(&place) {
                self.error.get_or_insert(reason);
            }
            if let (Some(values), None) = (&values, &self.error) {
                self.add(values, place, *item)?;
            }
            if item.is_last {
                rows.push(self.finish(engine, values.as_ref(), place, *item)?);
            }
        }
        Ok(rows)
    }

    /// Adds a window to its image.
    fn add(&mut self, values: &Values, place: usize, item: Item) -> Result<()> {
        let (Values::Form(values), true) = (values, self.maker.corners.is_some()) else { return Ok(()) };
        let values = values.f_get(place as i64)?;
        let stitch = match &mut self.stitch {
            Some(stitch) => stitch,
            None => {
                let has_pixels = values.dim() >= 2;
                let size = self.maker.sizes[item.image as usize];
                self.stitch.insert(Stitch::new(size, has_pixels)?)
            }
        };
        Ok(stitch.add(&values, item.corner)?)
    }

    /// Makes the row of an image, whose last sample is at `place`.
    fn finish(
        &mut self,
        engine: &Engine<'_>,
        values: Option<&Values>,
        place: usize,
        item: Item,
    ) -> Result<Row> {
        let (error, stitch) = (self.error.take(), self.stitch.take());
        let whole = stitch.map(Stitch::mean).transpose()?.flatten();
        if let Some(reason) = engine.failed.get(&item.image).cloned().or(error) {
            return Ok(Row::failed(item.image, reason));
        }
        match (values, whole) {
            (_, Some(whole)) => self.maker.row(item.image, &whole, &engine.form),
            (Some(Values::Form(values)), None) => {
                self.maker.row(item.image, &values.f_get(place as i64)?, &engine.form)
            }
            (Some(Values::Outputs(outputs)), None) => {
                let (mut cells, mut shapes) = (Vec::new(), Vec::new());
                for output in outputs {
                    let values = output.f_get(place as i64)?;
                    cells.push(Cell::numbers(&numbers(&values)?));
                    shapes.push(values.size().iter().map(|&length| length as usize).collect::<Vec<_>>());
                }
                let is_flat = shapes.iter().all(|shape| shape.len() == 1);
                let shapes = if is_flat { Vec::new() } else { shapes };
                Ok(Row { shapes, ..Row::of(item.image, cells) })
            }
            (None, None) => Ok(Row::of(item.image, Vec::new())),
        }
    }
}

impl Engine<'_> {
    /// Computes the values of a loaded batch of these samples.
    pub(super) fn values(&self, decoded: &data::Batch, samples: &[u32], in_windows: bool) -> Result<Values> {
        let batch = Batch::new(decoded, self.device).map_err(TrainError::from)?;
        // Whatever was drawn before, a sample draws by its own number.
        let seed = self.loader.seed;
        rng::seed(keyed(Domain::Evaluate, seed, 0, 0).next_u64()).map_err(TrainError::from)?;
        let key = keyed(Domain::BySample, seed, 0, 1).next_u64();
        let first = samples.iter().min().map_or(0, |&first| first);
        let last = samples.iter().max().map_or(0, |&last| last as usize + 1);
        let places: Vec<i64> = samples.iter().map(|&sample| i64::from(sample - first)).collect();
        let _all = BySample::enter(key, &(first as usize..last)).map_err(TrainError::from)?;
        let _draws = BySample::select(&places).map_err(TrainError::from)?;
        if !self.outputs.is_empty() {
            return self.asked(&batch);
        }
        let of_pixels = matches!(self.form, Form::Masks { .. } | Form::Maps { .. });
        let passes = self.question.wanted.flips.passes();
        let mut sum: Option<Tensor> = None;
        for dims in passes {
            let values = self.forward(|| {
                let flipped = if dims.is_empty() { None } else { Some(batch.flipped(dims)?) };
                let values = self
                    .predict
                    .values(&self.predict.network().forward(flipped.as_ref().unwrap_or(&batch))?)?;
                // The pixels are where they were.
                Ok(if of_pixels && !dims.is_empty() { values.f_flip(*dims)? } else { values })
            })?;
            sum = Some(match sum {
                Some(sum) => sum.f_add(&values)?,
                None => values,
            });
        }
        // There is always a first pass.
        let mut mean = sum.ok_or(crate::tasks::TaskError::NoPrediction)?;
        if passes.len() > 1 {
            mean = mean.f_div_scalar(passes.len() as f64)?;
        }
        if matches!(self.form, Form::Masks { .. }) && !in_windows {
            mean = most_probable(&mean, 1)?;
        }
        Ok(Values::Form(mean.f_to_device(Device::Cpu)?))
    }

    /// Computes the outputs that are asked for.
    fn asked(&self, batch: &Batch) -> Result<Values> {
        let all = self.forward(|| self.predict.network().forward(batch))?;
        let mut outputs = Vec::new();
        for &at in &self.outputs {
            let output = all[at].f_to_kind(Kind::Float)?.f_to_device(Device::Cpu)?;
            if output.size().first() != Some(&(batch.samples() as i64)) {
                let name = self.predict.network().output_names()[at].to_owned();
                return Err(PredictError::NoRows { name, samples: batch.samples() }.into());
            }
            outputs.push(output);
        }
        Ok(Values::Outputs(outputs))
    }
}
