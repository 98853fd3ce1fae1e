//! The tensors that a file has for a model, and whether they suffice.

use std::collections::BTreeSet;

use dtrain_recipe::WeightsMode;

use super::{LoadReport, Values, View, check_ties, expected_tensor, fill, positions, without_repeated};
use crate::error::{ModelError, WeightsProblem};
use crate::mismatch::{Mismatch, ShapeDifference, compare, is_batch_counter};
use crate::registry::{Entry, Registry};
use crate::tensor_file::TensorFile;

/// What is asked of a file.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) mode: WeightsMode,
    /// The model's tensors that the file may lack, or have in another shape.
    pub(super) new: &'a BTreeSet<String>,
    pub(super) values: Values,
}

/// The tensors that a file has for a model.
pub(super) struct Fit {
    pub(super) mode: WeightsMode,
    /// The differences between file and model, as far as the mode forbids them.
    pub(super) mismatch: Mismatch,
    /// The tensors of the model.
    pub(super) wanted: usize,
    /// Those that the file has.
    pub(super) fitting: usize,
    /// Those of them that are no batch counters.
    values: usize,
    head_kept: Vec<ShapeDifference>,
    is_headless: bool,
    resampled: Vec<super::Resampled>,
    /// The differences that are allowed by name.
    new: Mismatch,
}

impl Fit {
    pub(super) fn of(registry: &Registry, file: &View<'_>, asked: Asked<'_>) -> Result<Self, ModelError> {
        let is_expected = |entry: &&Entry| {
            // Files of PyTorch lack buffers that are not persistent, and those of a base its adapters.
            let may_lack = entry.is_held()
                || match asked.values {
                    Values::Any => entry.is_base(),
                    Values::Finite => registry.is_adapter(entry.name()),
                };
            !may_lack || file.contains_key(entry.name())
        };
        let wanted = registry.state().iter().filter(is_expected);
        let wanted = wanted.map(expected_tensor).collect::<Result<Vec<_>, _>>()?;
        let mut mismatch = compare(&wanted, &without_repeated(registry, file));
        let has = |name: &str| file.contains_key(name);
        // Counters fit the file of any network.
        let counters =
            wanted.iter().filter(|wanted| is_batch_counter(wanted.name) && has(wanted.name)).count();
        let mut fitting = wanted.iter().filter(|wanted| has(wanted.name)).count();
        let mut new = Mismatch::default();
        if fitting > counters + mismatch.shapes.len() + mismatch.types.len() {
            new = mismatch.take_new(asked.new);
            if !asked.new.is_empty() && asked.mode == WeightsMode::FineTune {
                new.unexpected = std::mem::take(&mut mismatch.unexpected);
            }
        }
        let (mut head_kept, mut is_headless) = (Vec::new(), false);
        if asked.mode == WeightsMode::FineTune {
            head_kept = mismatch.take_head();
            is_headless = head_kept.is_empty() && mismatch.take_missing_head(&wanted);
        }
        // Positions of texts have no grid; models of images have convolutions.
        let is_of_images = registry.parameters().any(|entry| entry.tensor().dim() == 4);
        let resampled = match asked.mode != WeightsMode::Strict && is_of_images {
            true => positions::take(&mut mismatch),
            false => Vec::new(),
        };
        fitting -= mismatch.shapes.len() + mismatch.types.len() + new.shapes.len() + new.types.len();
        Ok(Self {
            mode: asked.mode,
            mismatch,
            wanted: wanted.len(),
            fitting,
            values: fitting.saturating_sub(counters),
            head_kept,
            is_headless,
            resampled,
            new,
        })
    }

    /// Returns whether changed names all fit where the names as they are do not: nothing that was loaded is lost.
    pub(super) fn is_better(&self, plain: &Self) -> bool {
        let uses_all = self.mismatch.unexpected.is_empty()
            && self.mismatch.shapes.is_empty()
            && self.mismatch.types.is_empty();
        let is_partial = self.mode == WeightsMode::Partial && plain.fitting == 0 && self.fitting > 0;
        self.mismatch.is_empty() || (is_partial && uses_all)
    }

    /// Returns how many tensors have a name of the model and another shape, if a part of the model is loaded and fewer fit: the file is of
    /// another variant of the network.
    pub(super) fn of_variant(&self) -> Option<usize> {
        let shapes = self.mismatch.shapes.len();
        (self.mode == WeightsMode::Partial && shapes > self.values).then_some(shapes)
    }

    pub(super) fn load(
        mut self,
        registry: &Registry,
        file: &TensorFile,
        asked: Asked<'_>,
    ) -> Result<LoadReport, ModelError> {
        if self.mode == WeightsMode::Partial && self.values > 0 && self.of_variant().is_none() {
            self.new = std::mem::take(&mut self.mismatch);
        }
        if !self.mismatch.is_empty() {
            return Err(file.error(WeightsProblem::Mismatch(Box::new(self.mismatch))).into());
        }
        let mut report = LoadReport {
            head_kept: self.head_kept,
            is_headless: self.is_headless,
            resampled: self.resampled,
            rest: (!self.new.is_empty()).then(|| Box::new(self.new)),
            ..LoadReport::default()
        };
        check_ties(registry, file, asked.values)?;
        fill(registry, file, &mut report, asked.values)?;
        Ok(report)
    }
}
