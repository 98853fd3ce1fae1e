//! A user's own loss.

use dtrain_parts::Outputs;
use dtrain_parts::losses::regression::Units;
use dtrain_recipe::Recipe;
use dtrain_recipe::sample_losses::Program as Settings;
use tch::{Device, Kind, TchError, Tensor};

use super::{Given, OwnProgram, counted, fields};
use crate::models::Port;
use crate::tasks::network::{OutputAt, Ports};
use crate::tasks::samples::Sets;
use crate::tasks::{Batch, Facts, Mode, TaskError};
use crate::tensors::is_floating;

/// The output with the loss, and that with its weight, of several.
const NAMES: [[&str; 2]; 2] = [["loss", "weight"], ["output_0", "output_1"]];

/// The programs of a user's own losses, by stage, before they are bound.
pub(in crate::tasks) struct OwnLosses(Vec<Option<(Settings, OwnProgram)>>);

impl OwnLosses {
    /// Loads those of a recipe; none in a prediction, which has no loss.
    pub(in crate::tasks) fn load(recipe: &Recipe, sets: &Sets, device: Device) -> Result<Self, TaskError> {
        let load = |number| {
            let program = recipe.of_stage(number).model.loss.program().filter(|_| !sets.predicts).cloned();
            let Some(program) = program else { return Ok(None) };
            let file = program.file.clone().unwrap_or_default();
            let key = format!("{}.program", recipe.loss_key(number));
            Ok(Some((program, OwnProgram::load(&key, &file, device)?)))
        };
        (0..recipe.stages()).map(load).collect::<Result<_, TaskError>>().map(Self)
    }

    /// Returns the names of the outputs of a network that they take by name.
    pub(in crate::tasks) fn takes(&self, outputs: &[Port]) -> Vec<String> {
        self.0.iter().flatten().flat_map(|(settings, own)| own.takes(outputs, &settings.inputs)).collect()
    }

    /// Takes the one of a stage.
    pub(in crate::tasks) fn take(&mut self, stage: usize) -> Option<(Settings, OwnProgram)> {
        self.0.get_mut(stage)?.take()
    }
}

/// The program of a loss, bound to a network and its data.
pub(in crate::tasks) struct OwnLoss {
    program: OwnProgram,
    /// The factor of the loss.
    weight: f64,
    /// The numbers of the outputs in training and in evaluation.
    train: Chosen,
    evaluate: Chosen,
}

/// Which output has the losses of the samples, and which their weights.
#[derive(Debug, Clone, Copy)]
struct Chosen {
    loss: usize,
    weight: Option<usize>,
}

/// A batch for which a loss is computed.
pub(in crate::tasks) struct OfBatch<'a> {
    /// The outputs of the network.
    pub(in crate::tasks) output: OutputAt<'a>,
    /// The number of the main one; it and those with the same loss, if the task has them.
    pub(in crate::tasks) at: usize,
    pub(in crate::tasks) main: Option<&'a Outputs>,
    /// The field that the main output predicts, and the unit in which it does.
    pub(in crate::tasks) goal: Option<(&'a str, &'a Units)>,
    pub(in crate::tasks) batch: &'a Batch,
    pub(in crate::tasks) mode: Mode,
}

impl OwnLoss {
    /// Binds a loaded program to a network and its data.
    ///
    /// # Errors
    /// As [`OwnProgram::bind`], and a loss that is not one number for each sample, with a gradient.
    pub(in crate::tasks) fn bind(
        (settings, program): (Settings, OwnProgram),
        ports: &Ports<'_>,
        sets: &Sets,
    ) -> Result<Self, TaskError> {
        let program = program.bind(ports, sets.train.fields(), &settings.inputs)?;
        let [train, evaluate] = [Mode::Train, Mode::Evaluate]
            .map(|mode| choose(program.ports(mode)).map_err(|reason| program.error(reason)));
        let own = Self { train: train?, evaluate: evaluate?, weight: settings.weight, program };
        // A step needs the derivative by the outputs of training.
        if !own.program.is_of_training() {
            return Err(own.program.error(
                "an output that it takes has another shape in training than in evaluation, or is not there; return it in both alike",
            ));
        }
        if !own.program.takes_output() || own.program.has_gradient(own.train.loss)? == Some(false) {
            return Err(own.program.error(
                "the loss has no derivative by an output of the network, so nothing would be trained; compute it from the outputs \
                 without argmax, round or detach",
            ));
        }
        own.program.check_sizes()?;
        Ok(own)
    }

    /// Returns the names of the outputs that it takes.
    pub(in crate::tasks) fn outputs(&self) -> Vec<&str> {
        self.program.outputs()
    }

    /// Adds what a run compares with its checkpoint.
    pub(in crate::tasks) fn add_to(&self, facts: &mut Facts) {
        self.program.add_to(facts);
        // Samples that do not count are left out, so the work depends on the batch.
        facts.is_capturable = false;
    }

    /// Returns the loss of each sample, N, with its factor, and the weights if the loss is alone and has some: then the loss of a step is
    /// the sum of the losses over that of the weights. Beside other losses, a loss is divided by its weight. Samples of weight 0 have 0.
    pub(in crate::tasks) fn losses(
        &self,
        of: &OfBatch<'_>,
        is_alone: bool,
    ) -> Result<(Tensor, Option<Tensor>), TaskError> {
        let batch = of.batch;
        if batch.weight == 0.0 {
            // No sample has a loss; backward needs a graph.
            let main = (of.output)(of.at)?;
            let nothing =
                main.f_masked_fill(&main.f_ones_like()?.f_to_kind(Kind::Bool)?, 0.0)?.f_sum(Kind::Float)?;
            let zeros = batch.weights.f_zeros_like()?;
            return Ok((zeros.f_add(&nothing)?, is_alone.then_some(zeros)));
        }
        let rows = counted(batch)?;
        let at = match of.mode {
            Mode::Train => self.train,
            Mode::Evaluate => self.evaluate,
        };
        let whole = |values: &Tensor| match &rows {
            Some(rows) => batch.weights.f_zeros_like()?.f_index_copy(0, rows, values),
            None => Ok(values.shallow_clone()),
        };
        // Output and target have the unit of the other losses.
        let field = |name: &str| match of.goal.filter(|(goal, _)| *goal == name) {
            Some((_, units)) if batch.field(name)?.kind() == Kind::Float => {
                Ok(units.goal(batch.field(name)?)?)
            }
            _ => fields(batch, name),
        };
        let run = |output: OutputAt<'_>| -> Result<(Tensor, Option<Tensor>), TaskError> {
            let given = Given { output, field: &field, mode: of.mode };
            let values = self.program.run(&given, rows.as_ref(), of.mode == Mode::Train)?;
            let number = |at: usize| values[at].f_to_kind(Kind::Float);
            let weights = at.weight.map(|at| number(at)?.f_detach()).transpose()?;
            let losses = number(at.loss)?.f_mul_scalar(self.weight)?;
            Ok(match weights {
                Some(weights) if is_alone => (whole(&losses)?, Some(whole(&weights)?)),
                Some(weights) => (whole(&quotients(&losses, &weights)?)?, None),
                None => (whole(&losses)?, None),
            })
        };
        let Some(Outputs { main, auxiliary }) = of.main else { return run(of.output) };
        let instead = |other: &Tensor| {
            let other = other.shallow_clone();
            move |at: usize| if at == of.at { Ok(other.shallow_clone()) } else { (of.output)(at) }
        };
        let (mut losses, weights) = run(&instead(main))?;
        let has_auxiliary = of.mode == Mode::Train && self.program.takes_in_training(of.at);
        for (output, factor) in auxiliary.iter().filter(|_| has_auxiliary) {
            losses = losses.f_add(&run(&instead(output))?.0.f_mul_scalar(*factor)?)?;
        }
        Ok((losses, weights))
    }
}

/// Returns the quotients; 0 where a weight is 0.
fn quotients(losses: &Tensor, weights: &Tensor) -> Result<Tensor, TchError> {
    let none = weights.f_eq(0.0)?;
    losses.f_div(&weights.f_masked_fill(&none, 1.0)?)?.f_masked_fill(&none, 0.0)
}

/// Chooses the outputs of a loss.
fn choose(ports: &[Port]) -> Result<Chosen, String> {
    let position = |name: &str| ports.iter().position(|port| port.name == name);
    let chosen = match ports {
        [_] => Some(Chosen { loss: 0, weight: None }),
        _ => NAMES.iter().find_map(|[loss, weight]| {
            let pair = position(loss).zip(position(weight)).filter(|_| ports.len() == 2);
            pair.map(|(loss, weight)| Chosen { loss, weight: Some(weight) })
        }),
    };
    let Some(chosen) = chosen else {
        let names = ports.iter().map(|port| format!("`{}`", port.name)).collect::<Vec<_>>().join(", ");
        return Err(format!(
            "it returns {names}; return the loss of each sample alone, or `loss` and `weight`"
        ));
    };
    for at in [Some(chosen.loss), chosen.weight].into_iter().flatten() {
        let port = &ports[at];
        let remedy = match port.shape[..] {
            [None] if is_floating(port.kind) => continue,
            [None] => "which is not of floating-point numbers; return float32",
            [] | [Some(1)] => {
                "which is one number for the whole batch; return one for each sample, as with reduction=\"none\": dtrain takes the mean \
                 over the step, however it is cut"
            }
            _ => {
                "which has more than one number for each sample; take the mean or the sum over all dimensions but the first"
            }
        };
        return Err(format!("it returns `{}`, {remedy}", port.name));
    }
    Ok(chosen)
}
