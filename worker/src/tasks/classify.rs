//! Image classification: `model.loss` of the logits, and accuracy. By default the loss is cross-entropy, and of images with any
//! number of classes the binary cross-entropy of each class.

use dtrain_parts::losses::classes::{class_loss, set_loss};
use dtrain_recipe::figures::{Accuracy, LabelAccuracy};
use dtrain_recipe::{Figure, ModelName, Recipe, Target};
use tch::{Kind, Tensor};

use super::figures::{Figures, Ports};
use super::forward::Forward;
use super::mixed;
use super::network::{ImageNetwork, MAIN_OUTPUTS, Model, Network, Program};
use super::predict::{Form, class_names, probabilities};
use super::samples::{self, Sets, Survey};
use super::terms::Terms;
use super::{
    Batch, BuildContext, BuildTask, ByRows, Facts, Loss, Mode, Passed, Predict, RowFigures, StageView,
    SurveyContext, Task, TaskError, Totals, Unlabelled,
};
use crate::models::{self, Architecture, Port, VitConfig};

/// The task `classify`.
pub struct Classify {
    model: ImageNetwork,
    figures: Figures,
    facts: Facts,
    terms: Terms,
    /// Whether an image has any number of classes.
    has_sets: bool,
}

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
        let sets = samples::sets(recipe, survey, context.cache.clone(), length)?;
        let model = match program {
            Some(program) => ImageNetwork::Exported(Box::new(exported(recipe, &sets, program)?)),
            None => {
                let channels = recipe.data.channels;
                let model = models::build(architecture(recipe), channels, sets.classes, context.registry)?;
                ImageNetwork::Built(model)
            }
        };
        let terms = Terms::bind(recipe, &sets, device)?;
        let figures = figures(recipe, &model, &sets)?;
        let facts = Facts { sums: figures.sums(), ..sets.facts() };
        let facts = facts
            .with_model(&model, &figures.outputs(), |model| model.min_micro_batch(recipe.data.image_size));
        Ok(Self { model, figures, facts, terms, has_sets: has_sets(recipe) })
    }
}

fn has_sets(recipe: &Recipe) -> bool {
    recipe.target() == Some(Target::Classes)
}

fn exported(recipe: &Recipe, sets: &Sets, program: Program) -> Result<Network, TaskError> {
    let network = program.bind(recipe, sets.train.fields(), &MAIN_OUTPUTS)?;
    mixed::check(recipe, &network, sets.train.fields(), false)?;
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
fn figures(recipe: &Recipe, model: &ImageNetwork, sets: &Sets) -> Result<Figures, TaskError> {
    let mut own = vec![Figure::Accuracy(Accuracy::default())];
    if has_sets(recipe) {
        own.push(Figure::LabelAccuracy(LabelAccuracy::default()));
    }
    let listed = &recipe.model.figures;
    own.retain(|own| listed.iter().all(|figure| figure.label() != own.label()));
    let all = [own, listed.clone()].concat();
    match model {
        Model::Exported(network) => {
            Figures::bind(&all, &Ports::of(network, true), sets).map_err(|unfit| network.unfit(unfit))
        }
        Model::Built(_) => {
            let shape = vec![None, Some(sets.classes as i64)];
            let logits = [Port { name: "logits".to_owned(), kind: Kind::Float, shape }];
            let ports = Ports { train: &logits, evaluate: &logits, main: (0, 0), takes_main: true };
            Figures::bind(&all, &ports, sets).map_err(|unfit| TaskError::Figures(Box::new(unfit)))
        }
    }
}

impl Classify {
    fn of_outputs(&self, outputs: &[Tensor], batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let (logits, terms) = (self.model.logits(outputs, mode), &self.terms.current().terms);
        let sums = self.figures.add(&|at| Ok(outputs[at].shallow_clone()), batch, mode)?;
        mixed::loss(batch, mode, "label", |labels, weights| {
            let sums = sums.shallow_clone();
            Ok(match self.has_sets {
                true => set_loss(terms, &logits, labels, weights, sums)?,
                false => class_loss(terms, &logits, labels, weights, self.facts.classes, sums)?,
            })
        })
    }
}

impl RowFigures for Classify {
    fn figures(&self) -> Vec<(&str, &dyn ByRows)> {
        self.figures.by_rows()
    }

    fn forward(&self, batch: &Batch) -> Result<Passed, TaskError> {
        let outputs = self.model.run(batch, Mode::Evaluate)?;
        Ok(Passed {
            loss: self.of_outputs(&outputs, batch, Mode::Evaluate)?,
            values: Vec::new(),
            rows: self.figures.rows(&|at| Ok(outputs[at].shallow_clone()), batch)?,
        })
    }
}

impl Predict for Classify {
    fn form(&self) -> Form {
        let outputs = self.model.classes().unwrap_or(self.facts.classes);
        let names = class_names(&self.facts.class_names, outputs);
        // Each class of a set has its own probability.
        if self.has_sets { Form::Numbers(names) } else { Form::Classes(names) }
    }

    fn network(&self) -> &dyn Forward {
        &self.model
    }

    fn values(&self, outputs: &[Tensor]) -> Result<Tensor, TaskError> {
        let logits = self.model.logits(outputs, Mode::Evaluate).main;
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
        self.of_outputs(&self.model.run(batch, mode)?, batch, mode)
    }

    fn predict(&self) -> Option<&dyn Predict> {
        Some(self)
    }

    fn begin_stage(&mut self, stage: &StageView<'_>) -> Result<(), TaskError> {
        self.terms.begin(stage.number);
        Ok(())
    }

    fn row_figures(&self) -> Option<&dyn RowFigures> {
        self.figures.has_rows().then_some(self)
    }

    fn figures(&self, totals: &Totals) -> Vec<(&str, f64)> {
        self.figures.figures(&totals.sums)
    }
}
