//! The task of these trainings, configured by the recipe's `[custom]`:
//!
//! | Key | Meaning |
//! |---|---|
//! | `net` | the network: see [`Kind`] |
//! | `double` | computes in float64 |
//! | `samples` | samples of the training set |
//! | `ordered` | numbers samples in the order of the first epoch |
//! | `weighted` | gives samples different weights, some of them 0 |
//! | `scale` | multiplies every weight; 1 by default |
//! | `ids` | a path: every rank r writes the numbers of each training micro-batch as a line of `<ids>.<r>` |

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Arc;

use dtrain_common::env::WorkerEnv;
use dtrain_recipe::Recipe;
use dtrain_worker::tasks::{
    Batch, BuildContext, BuildTask, Facts, Loss, Mode, SurveyContext, Task, TaskError,
};
use tch::{Device, Kind as Dtype, TchError, Tensor};

use crate::data::NumberedSamples;
use crate::nets::{Kind, Net};

/// The task; the module describes its settings.
pub(crate) struct Subject {
    net: Net,
    dtype: Dtype,
    weighted: bool,
    scale: f64,
    facts: Facts,
    ids: Option<RefCell<File>>,
}

/// Weights of samples, by number.
const WEIGHTS: [f64; 7] = [0.0, 1.0, 2.0, 0.5, 3.0, 1.0, 0.0];

fn wrong(what: impl std::fmt::Display) -> TaskError {
    TaskError::Torch(TchError::Convert(what.to_string()))
}

impl BuildTask for Subject {
    type Survey = ();

    fn survey(_: &Recipe, _: &mut SurveyContext<'_>) -> Result<(), TaskError> {
        Ok(())
    }

    fn build(recipe: &Recipe, (): (), context: BuildContext<'_>) -> Result<Self, TaskError> {
        let is = |key: &str| recipe.custom.get(key).and_then(|value| value.as_bool()).unwrap_or(false);
        let text = |key: &str| recipe.custom.get(key).and_then(|value| value.as_str());
        let kind = text("net").and_then(Kind::parse).ok_or_else(|| wrong("custom.net"))?;
        let samples = recipe
            .custom
            .get("samples")
            .and_then(|value| value.as_integer())
            .ok_or_else(|| wrong("custom.samples"))?;
        let dtype = if is("double") { Dtype::Double } else { Dtype::Float };
        context.registry.kind = dtype;
        let ids = match text("ids") {
            Some(path) => {
                let rank = WorkerEnv::from_process().map_err(wrong)?.rank;
                let path = format!("{path}.{rank}");
                let file = OpenOptions::new().create(true).append(true).open(path);
                Some(RefCell::new(file.map_err(wrong)?))
            }
            None => None,
        };
        let order = is("ordered").then_some(recipe.train.seed);
        Ok(Self {
            net: Net::new(kind, context.registry)?,
            dtype,
            weighted: is("weighted"),
            scale: recipe.custom.get("scale").and_then(|value| value.as_float()).unwrap_or(1.0),
            facts: Facts::new(
                Arc::new(NumberedSamples::new(kind, samples as usize, order)),
                Arc::new(NumberedSamples::new(kind, 4, None)),
                "numbered samples",
            ),
            ids,
        })
    }
}

impl Task for Subject {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let numbers = Vec::<i64>::try_from(batch.field("number")?)?;
        if let (Mode::Train, Some(file), false) = (mode, &self.ids, batch.is_blank()) {
            let line: Vec<String> = numbers.iter().map(i64::to_string).collect();
            writeln!(file.borrow_mut(), "{}", line.join(" ")).map_err(wrong)?;
        }
        let (x, targets) = match batch.field("tokens") {
            Ok(tokens) => (tokens.shallow_clone(), batch.field("targets")?),
            Err(_) => (batch.field("image")?.f_to_kind(self.dtype)?, batch.field("label")?),
        };
        let losses = self.net.losses(&x, targets, &numbers, mode == Mode::Train)?;
        let weights: Vec<f64> = numbers
            .iter()
            .map(|&number| match self.weighted {
                true => WEIGHTS[number as usize % WEIGHTS.len()] * self.scale,
                false => self.scale,
            })
            .collect();
        let weights = Tensor::f_from_slice(&weights)?.f_mul(&batch.weights)?.f_to_kind(self.dtype)?;
        Ok(Loss {
            sum: losses.f_mul(&weights)?.f_sum(self.dtype)?,
            weight: weights.f_sum(Dtype::Double)?,
            sums: Tensor::f_zeros([0], (Dtype::Double, Device::Cpu))?,
        })
    }
}
