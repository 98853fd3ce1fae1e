//! A custom trainer: fits z = sin(3x) cos(2y) to points, some measured precisely and others not.

mod points;

use std::process::ExitCode;
use std::sync::Arc;

use dtrain_worker::common::recipe::keys::Section;
use dtrain_worker::common::recipe::kinds::{COUNT, Key, RATE};
use dtrain_worker::common::section;
use dtrain_worker::models::{Linear, Segment};
use dtrain_worker::recipe::Recipe;
use dtrain_worker::tasks::{
    Batch, BuildContext, BuildTask, Facts, Loss, Mode, SurveyContext, Task, TaskError, Totals,
};
use dtrain_worker::tch::{Kind, Tensor};
use points::Points;

section! {
    /// The recipe's section `[custom]`.
    Settings "custom" {
        /// Points to learn from.
        points: usize = 1000, COUNT;
        /// Width of the network's layers.
        width: i64 = 32, COUNT;
        /// Noise of the points that are not precise.
        noise: f32 = 0.1, RATE;
    }
}

/// A network of three layers. The middle layer may be recomputed in backward.
struct Surface {
    first: Linear,
    second: Segment<Linear>,
    last: Linear,
    facts: Facts,
}

impl BuildTask for Surface {
    /// No survey: every rank knows the data.
    type Survey = ();

    const SETTINGS: Option<&'static [Key]> = Some(Settings::KEYS);

    fn survey(_: &Recipe, _: &mut SurveyContext<'_>) -> Result<(), TaskError> {
        Ok(())
    }

    fn build(recipe: &Recipe, (): (), context: BuildContext<'_>) -> Result<Self, TaskError> {
        let Settings { points, width, noise } = recipe.custom_as()?;
        let mut scope = context.registry.root();
        let train = Arc::new(Points::new(0..points, noise));
        let test = Arc::new(Points::new(points..points + points / 4, 0.0));
        let facts = Facts {
            sums: 2,
            // Dividing by the average weight of a point keeps gradients at their usual size.
            weight_per_sample: train.mean_precision(),
            ..Facts::new(train, test, format!("{points} points of a surface"))
        };
        Ok(Self {
            first: Linear::new(&mut scope.sub("first"), 2, width)?,
            second: scope.sub("second").segment(|scope| Linear::new(scope, width, width))?,
            last: Linear::new(&mut scope.sub("last"), width, 1)?,
            facts,
        })
    }
}

impl Task for Surface {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let train = mode == Mode::Train;
        let x = self.first.forward(batch.field("position")?, train)?.f_tanh()?;
        let x = self.second.run(&x, move |layer, x| Ok(layer.forward(x, train)?.f_tanh()?))?;
        let error = self.last.forward(&x, train)?.f_squeeze_dim(1)?.f_sub(batch.field("height")?)?;
        let squares = error.f_square()?;
        // Points count by their precision. The engine divides the sum by the weight, over all micro-batches
        // of all ranks.
        let weights = batch.field("precision")?.f_mul(&batch.weights)?;
        let close = error.f_abs()?.f_le(0.1)?.f_to_kind(Kind::Double)?.f_mul(&batch.weights)?;
        Ok(Loss {
            sum: squares.f_mul(&weights)?.f_sum(Kind::Float)?,
            weight: weights.f_sum(Kind::Double)?,
            sums: Tensor::f_stack(&[close.f_sum(Kind::Double)?, batch.weights.f_sum(Kind::Double)?], 0)?,
        })
    }

    /// Returns the share of points with an error of at most 0.1.
    fn figures(&self, totals: &Totals) -> Vec<(&'static str, f64)> {
        vec![("close", totals.sums[0] / totals.sums[1])]
    }
}

fn main() -> ExitCode {
    dtrain_worker::program::<Surface>()
}
