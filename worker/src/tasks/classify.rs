//! Image classification: `model.loss` of the logits, and accuracy. By default the loss is cross-entropy, and of images with any
//! number of classes the binary cross-entropy of each class.

use dtrain_parts::losses::classes::{class_loss, set_loss};
use dtrain_parts::losses::ordinal::log_probabilities;
use dtrain_parts::losses::regression::Units;
use dtrain_recipe::figures::{Accuracy, LabelAccuracy};
use dtrain_recipe::{Figure, ModelName, Recipe, Target};
use tch::{Kind, Tensor};

use super::figures::{Figures, Given, Of};
use super::forward::Forward;
use super::mixed;
use super::network::{ImageNetwork, MAIN_OUTPUTS, Network, Ports, Program, logits};
use super::output_losses::{Binding, OutputLosses};
use super::own::{OwnChange, with_change};
use super::predict::{Form, class_names, probabilities};
use super::samples::{self, Sets, Survey, mask_rule};
use super::terms::Terms;
use super::{
    Batch, BuildContext, BuildTask, ByRows, BySums, Facts, Loss, Mode, Passed, Predict, RowFigures,
    StageView, SurveyContext, Task, TaskError, Unlabelled,
};
use crate::models::{self, Architecture, VitConfig};

/// The task `classify`.
pub struct Classify {
    model: ImageNetwork,
    /// The user's own change of images.
    change: Option<OwnChange>,
    figures: Figures,
    facts: Facts,
    terms: Terms,
    outputs: OutputLosses,
    /// The ranks of the classes, if the loss is of their order.
    order: Option<Order>,
    /// Whether an image has any number of classes.
    has_sets: bool,
}

/// By class: its rank; None if that is its number.
struct Order(Option<Tensor>);

impl BuildTask for Classify {
    type Survey = Survey;
    const DRAWS_ONLY_WEIGHTS: bool = true;

    fn survey(recipe: &Recipe, context: &mut SurveyContext<'_>) -> Result<Survey, TaskError> {
        /// One class teaches nothing.
        const LEAST_CLASSES: usize = 2;
        samples::survey(recipe, LEAST_CLASSES, context)
    }

    fn inputs(inputs: Unlabelled) -> Result<Survey, TaskError> {
        Ok(Survey::Unlabelled(Box::new(inputs)))
    }

    fn build(recipe: &Recipe, survey: Survey, context: BuildContext<'_>) -> Result<Self, TaskError> {
        let device = context.registry.device();
        let program = recipe.program().map(|_| Program::load(recipe, context.registry)).transpose()?;
        let length = || program.as_ref().map_or(Ok(0), |program| program.context(recipe));
        let mut sets = samples::sets(recipe, survey, context.cache.clone(), length)?;
        let change = OwnChange::of(recipe, &mut sets, device)?;
        let model = match program {
            Some(program) => ImageNetwork::Exported(Box::new(exported(recipe, &sets, program)?)),
            None => {
                let channels = recipe.data.channels;
                let outputs = sets.classes - usize::from(is_ordinal(recipe));
                let model = models::build(architecture(recipe), channels, outputs, context.registry)?;
                ImageNetwork::Built(model)
            }
        };
        let terms = Terms::bind(recipe, &sets, device)?;
        let logits = logits(vec![None, Some(sets.classes as i64)]);
        let ports = model.ports(&logits, device);
        let field = Some("label");
        let outputs = OutputLosses::bind(&Binding { recipe, ports, sets: &sets, field, size: 1.0 })?;
        let order = match recipe.of_stage(0).model.loss.ordinal() {
            Some(ordinal) => {
                let ranks = ordinal.ranks(sets.classes, &sets.class_names, &recipe.loss_key(0))?;
                let on_device = |ranks: Vec<i64>| Tensor::f_from_slice(&ranks)?.f_to_device(device);
                Some(Order(ranks.map(on_device).transpose()?))
            }
            None => None,
        };
        let figures = figures(recipe, ports, &sets)?;
        let used = [figures.outputs(), outputs.outputs()].concat();
        let mut facts =
            sets.facts().with_model(&model, &used, |model| model.min_micro_batch(recipe.data.image_size));
        outputs.add_to(&mut facts);
        change.iter().for_each(|change| change.add_to(&mut facts));
        Ok(Self { model, change, figures, facts, terms, outputs, order, has_sets: has_sets(recipe) })
    }
}

fn has_sets(recipe: &Recipe) -> bool {
    recipe.target() == Some(Target::Classes)
}

/// Returns whether the network has one output less than classes.
fn is_ordinal(recipe: &Recipe) -> bool {
    recipe.of_stage(0).model.loss.ordinal().is_some()
}

fn exported(recipe: &Recipe, sets: &Sets, program: Program) -> Result<Network, TaskError> {
    let network = program.bind(recipe, sets.train.fields(), &MAIN_OUTPUTS)?;
    mixed::check(recipe, &network, sets.train.fields(), false)?;
    if is_ordinal(recipe) {
        let (classes, least) = (sets.classes, sets.classes as i64 - 1);
        let expected = format!(
            "the loss \"ordinal\" needs N x {least}, one output less than the {classes} classes of the data; set model.output to \
             another output, or import the model again with {least} classes"
        );
        network
            .check_outputs(&expected, &|shape| matches!(shape, &[None, k] if k.is_none_or(|k| k == least)))?;
        return Ok(network);
    }
    let (classes, is_exact) = (sets.classes as i64, has_sets(recipe));
    // The softmax of further classes goes to 0; each of a set of classes has its own loss.
    let least = if is_exact { "" } else { "at least " };
    let expected = format!(
        "task = \"classify\" needs logits, N x K with K {least}the {classes} classes of the data; set model.output to another \
         output, or import the model again with this number of classes"
    );
    let enough = |k: Option<i64>| k.is_none_or(|k| if is_exact { k == classes } else { k >= classes });
    network.check_outputs(&expected, &|shape| matches!(shape, &[None, k] if enough(k)))?;
    Ok(network)
}

/// Returns the model of a loaded recipe, which has a name and sizes that fit its task.
fn architecture(recipe: &Recipe) -> Architecture {
    let model = &recipe.model;
    match model.name {
        Some(ModelName::Resnet34) => Architecture::ResNet34,
        Some(ModelName::Resnet50) => Architecture::ResNet50,
        Some(ModelName::Resnet101) => Architecture::ResNet101,
        Some(ModelName::Resnet152) => Architecture::ResNet152,
        Some(ModelName::Vit) => Architecture::Vit(VitConfig {
            image_size: recipe.data.image_size,
            patch: model.patch.unwrap_or(16),
            width: model.width.unwrap_or(192),
            depth: model.depth.unwrap_or(12),
            heads: model.heads.unwrap_or(3),
        }),
        Some(ModelName::Resnet18 | ModelName::Unet | ModelName::Gpt) | None => Architecture::ResNet18,
    }
}

/// Returns the usual figures, and those of the recipe, which may have others of their names.
fn figures(recipe: &Recipe, ports: Ports<'_>, sets: &Sets) -> Result<Figures, TaskError> {
    let mut own =
        vec![Figure::Accuracy(Accuracy { classes: Some("label".to_owned()), ..Accuracy::default() })];
    if has_sets(recipe) {
        own.push(Figure::LabelAccuracy(LabelAccuracy {
            classes: Some("label".to_owned()),
            ..LabelAccuracy::default()
        }));
    }
    let listed = &recipe.model.figures;
    own.retain(|own| listed.iter().all(|figure| figure.label() != own.label()));
    let mut outputs = ports.evaluate.to_vec();
    if is_ordinal(recipe) {
        // They take the classes in place of what the network returns.
        outputs[ports.main_at(Mode::Evaluate)].shape[1] = Some(sets.classes as i64);
    }
    let ports = Ports { evaluate: &outputs, ..ports };
    Figures::bind(&[own, listed.clone()].concat(), &Given::of(ports, sets, mask_rule(recipe).ignore))
}

impl Classify {
    fn of_outputs(
        &self,
        outputs: &[Tensor],
        batch: &Batch,
        mode: Mode,
        sums: &Tensor,
    ) -> Result<Loss, TaskError> {
        let (logits, terms) = (self.model.logits(outputs, mode), &self.terms.current().terms);
        let main = (Some(&logits), &Units::of_targets(1));
        if let Some(loss) = self.outputs.loss(&|at| Ok(outputs[at].shallow_clone()), main, batch, mode)? {
            return Ok(Loss { sums: sums.shallow_clone(), ..loss });
        }
        mixed::loss(batch, mode, "label", |labels, weights| {
            let sums = sums.shallow_clone();
            Ok(match self.has_sets {
                true => set_loss(terms, &logits, labels, weights, sums)?,
                false => class_loss(terms, &logits, labels, weights, self.facts.classes, sums)?,
            })
        })
    }
}

impl Classify {
    /// Returns an output as figures and predictions take it: of a loss of ranks the logarithms of the classes' probabilities.
    fn scores(&self, outputs: &[Tensor], at: usize, mode: Mode) -> Result<Tensor, TaskError> {
        match &self.order {
            Some(Order(ranks)) if at == self.model.main_at(mode) => {
                Ok(log_probabilities(&outputs[at], ranks.as_ref())?)
            }
            _ => Ok(outputs[at].shallow_clone()),
        }
    }
}

impl RowFigures for Classify {
    fn figures(&self) -> Vec<(&str, &dyn ByRows)> {
        self.figures.by_rows()
    }

    fn forward(&self, batch: &Batch) -> Result<Passed, TaskError> {
        let outputs = self.model.run(batch, Mode::Evaluate)?;
        let of =
            Of { output: &|at| self.scores(&outputs, at, Mode::Evaluate), in_unit: None, nats: None, batch };
        let loss = self.of_outputs(&outputs, batch, Mode::Evaluate, &self.figures.add(&of)?)?;
        Ok(Passed { loss, values: Vec::new(), rows: self.figures.rows(&of)? })
    }

    fn by_sums(&self) -> Option<BySums<'_>> {
        Some(BySums(&self.figures))
    }
}

impl Predict for Classify {
    fn form(&self) -> Form {
        let outputs = self.model.classes().filter(|_| self.order.is_none()).unwrap_or(self.facts.classes);
        let names = class_names(&self.facts.class_names, outputs);
        // Each class of a set has its own probability.
        if self.has_sets { Form::Numbers(names) } else { Form::Classes(names) }
    }

    fn network(&self) -> &dyn Forward {
        &self.model
    }

    fn output(&self) -> usize {
        self.model.main_at(Mode::Evaluate)
    }

    fn values(&self, outputs: &[Tensor]) -> Result<Tensor, TaskError> {
        let logits = self.scores(outputs, self.output(), Mode::Evaluate)?;
        match self.has_sets {
            true => Ok(logits.f_to_kind(Kind::Float)?.f_sigmoid()?),
            false => Ok(probabilities(&logits)?),
        }
    }
}

impl Task for Classify {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let sums = Loss::no_sums(batch.weights.device())?;
        let batch = &with_change(self.change.as_ref(), batch, mode)?;
        self.of_outputs(&self.model.run(batch, mode)?, batch, mode, &sums)
    }

    fn predict(&self) -> Option<&dyn Predict> {
        Some(self)
    }

    fn begin_stage(&mut self, stage: &StageView<'_>) -> Result<(), TaskError> {
        self.terms.begin(stage.number);
        self.outputs.begin(stage.number);
        Ok(())
    }

    fn row_figures(&self) -> Option<&dyn RowFigures> {
        Some(self)
    }
}
