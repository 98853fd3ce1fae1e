//! The samples of any target, for programs that return their loss.

use std::sync::Arc;

use dtrain_recipe::{Recipe, Target};
use serde::{Deserialize, Serialize};

use super::lm::{self, Text};
use super::{SurveyContext, TaskError, images, numbers, segment};
use crate::data::{Dataset, Vocabulary};

/// The samples as found by rank 0.
#[derive(Debug, Serialize, Deserialize)]
pub enum Survey {
    /// Images in class folders.
    Classes(Box<images::Survey>),
    /// Images and masks.
    Masks(Box<segment::MaskSurvey>),
    /// Images with numbers or maps.
    Numbers(numbers::Survey),
    /// A text.
    Text(Text),
}

/// The data sets of a run.
pub(super) struct Samples {
    pub(super) train: Arc<dyn Dataset>,
    pub(super) test: Arc<dyn Dataset>,
    /// 0 without classes.
    pub(super) classes: usize,
    pub(super) class_names: Vec<String>,
    /// Of a text.
    pub(super) vocabulary: Option<Vocabulary>,
    pub(super) description: String,
}

pub(super) fn survey(recipe: &Recipe, context: &mut SurveyContext<'_>) -> Result<Survey, TaskError> {
    Ok(match recipe.target() {
        Some(Target::Mask) => Survey::Masks(segment::survey_masks(recipe, context)?.into()),
        Some(Target::Vector | Target::Map) => Survey::Numbers(numbers::survey(recipe, context)?),
        Some(Target::Tokens) => Survey::Text(lm::survey_text(recipe)?),
        Some(Target::Class) | None => Survey::Classes(images::survey(recipe, false, context)?.into()),
    })
}

/// Builds the sets; `context` returns the tokens of a sample.
pub(super) fn sets(
    recipe: &Recipe,
    survey: Survey,
    local_ranks: usize,
    context: impl FnOnce() -> Result<usize, TaskError>,
) -> Result<Samples, TaskError> {
    let plain = |train, test, classes, description| Samples {
        train,
        test,
        classes,
        class_names: Vec::new(),
        vocabulary: None,
        description,
    };
    Ok(match survey {
        Survey::Classes(survey) => {
            let sets = images::sets(recipe, *survey, local_ranks);
            let description = format!("{} classes", sets.classes);
            let class_names = sets.class_names;
            Samples { class_names, ..plain(sets.train, sets.test, sets.classes, description) }
        }
        Survey::Masks(survey) => {
            let (train, test, size) = segment::sets(recipe, *survey, local_ranks);
            let classes = recipe.data.classes;
            let description = format!("{classes} classes of pixels, {} x {} images", size.0, size.1);
            plain(train, test, classes, description)
        }
        Survey::Numbers(survey) => {
            let sets = numbers::sets(recipe, survey, local_ranks)?;
            let description = describe_numbers(&sets.names, sets.size);
            plain(sets.train, sets.test, 0, description)
        }
        Survey::Text(text) => {
            let (train, test) = lm::windows(recipe, text, context()?)?;
            let (vocabulary, description) = (train.corpus().vocabulary.clone(), lm::describe(&train));
            let samples = plain(train, test, vocabulary.size(), description);
            Samples { vocabulary: Some(vocabulary), ..samples }
        }
    })
}

/// Describes the targets: numbers by name, or maps of this width and height.
pub(super) fn describe_numbers(names: &[String], size: (usize, usize)) -> String {
    match names {
        [] => format!("maps of {} x {} pixels", size.0, size.1),
        names => format!("targets {}", names.join(", ")),
    }
}
