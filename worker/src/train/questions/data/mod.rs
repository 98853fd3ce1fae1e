//! `dtrain data`: what the data of a recipe holds. The survey is that of a training.

mod progress;
mod show;

use std::sync::Arc;

use dtrain_common::exit::ExitStatus;
use dtrain_common::question::DataQuestion;
use dtrain_data_report::{DataSet, Duplicates, LoadedValues, Report, SetReport, TextReport};
use dtrain_recipe::Recipe;

use self::progress::show_progress;
use super::print_answer;
use crate::course::RunPlan;
use crate::data::{Dataset, Field, Normalize};
use crate::planning::{SymbolicPredictor, Target};
use crate::request::Request;
use crate::setup::error::{Result, WorkerError};
use crate::setup::survey::Surveyed;
use crate::tasks::{BuildTask, Details, Facts, SurveyContext, check_rest, cores, unchanged_sets};

/// The data sets of a training, and its steps.
struct Training {
    facts: Facts,
    plan: RunPlan,
}

pub(super) fn run<T: BuildTask + 'static>(
    request: &Request,
    recipe: &Recipe,
    question: &DataQuestion,
) -> Result<ExitStatus> {
    let (mut details, mut warnings) = (Details::new(show_progress("checked")), Vec::new());
    let mut context = SurveyContext {
        threads: cores(),
        // The report has these findings.
        report: &mut |_| {},
        warn: &mut |sentence| warnings.push(sentence),
        details: Some(&mut details),
    };
    let surveyed = Surveyed::with::<T>(recipe, &mut context);
    let refusal = surveyed.as_ref().err().map(ToString::to_string);
    if let Some(refusal) = &refusal {
        let others = check_rest(recipe, &mut context);
        warnings.extend(others.into_iter().filter(|other| other != refusal));
    }
    let training = surveyed.ok().map(|surveyed| {
        let mut symbolic = SymbolicPredictor::<T>::new(request, &surveyed.facts, 0, Target::Cpu);
        let (facts, plan) = symbolic.facts_and_plan()?;
        Ok::<_, WorkerError>(Training { facts, plan })
    });
    let training = training.transpose().unwrap_or_else(|error| {
        warnings
            .push(format!("the model cannot be built, so the samples are those of the files alone: {error}"));
        None
    });
    let mut report = Report {
        recipe: request.recipe.clone(),
        task: recipe.task.as_str().to_owned(),
        kind: recipe.data.kind.as_str().to_owned(),
        trains: refusal.is_none(),
        refusal,
        warnings,
        ..Report::default()
    };
    describe_files(recipe, &details, &mut report);
    describe_sets(recipe, &details, training.as_ref(), &mut report)?;
    if let Some(path) = &question.show {
        let shown = show::draw(recipe, question, path, &details, training.as_ref())?;
        report.picture = shown.map(|shown| format!("{}: {shown}", path.display()));
        if report.picture.is_none() {
            report.warnings.push(format!("no sample can be listed, so {} was not written", path.display()));
        }
    }
    report.judge();
    print_answer(&match question.json {
        true => serde_json::to_string(&report).map_err(WorkerError::Question)? + "\n",
        false => report.text(),
    });
    Ok(if report.trains { ExitStatus::Success } else { ExitStatus::Usage })
}

fn describe_files(recipe: &Recipe, details: &Details, report: &mut Report) {
    let classes = recipe.data.classes;
    let of = |(samples, check): &(_, _)| SetReport::of(samples, check, classes);
    report.files = details.checks.iter().map(of).collect();
    if !details.checks.is_empty() {
        let sets: Vec<_> = details.checks.iter().map(|(samples, check)| (samples, check)).collect();
        let mut progress = show_progress("compared");
        let mut progress = |done, total| progress("files that begin alike", done, total);
        report.duplicates = Some(Duplicates::find(&sets, cores(), &mut progress));
    }
}

/// Describes the data sets of a training; without one, the listed training files.
fn describe_sets(
    recipe: &Recipe,
    details: &Details,
    training: Option<&Training>,
    report: &mut Report,
) -> Result<()> {
    let listed = details.checks.first().map(|(samples, _)| unchanged_sets(recipe, samples));
    let train: Option<Arc<dyn Dataset>> = match training {
        Some(Training { facts, .. }) => {
            let val = facts.val.iter().map(|val| ("validation", val));
            let more = facts.more_tests.iter().map(|(name, samples)| (name.as_str(), samples));
            let sets = [("training", &facts.train)].into_iter().chain(val);
            report.sets = sets.chain([("test", &facts.test)]).chain(more).map(described).collect();
            Some(Arc::clone(&facts.train))
        }
        None => listed.map(|[_, plain]| plain),
    };
    if let Some(train) = train {
        report.values = Some(LoadedValues::of(train.as_ref(), &normalize(recipe), cores()));
    }
    if let Some(index) = &details.text {
        let context = training.and_then(|training| training.facts.train.fields().first().map(Field::values));
        let corpus = index.load().map_err(|error| WorkerError::Task(error.into()))?;
        report.text = Some(TextReport::of(index, &corpus, context, recipe.data.test_fraction));
    }
    Ok(())
}

/// Returns the recipe's normalisation.
fn normalize(recipe: &Recipe) -> Normalize {
    Normalize::new(&recipe.data.mean, &recipe.data.std)
}

fn described((name, set): (&str, &Arc<dyn Dataset>)) -> DataSet {
    let fields = set.fields().iter().map(|field| (field.name.clone().into_owned(), field.shape.clone()));
    DataSet {
        name: name.to_owned(),
        samples: set.len(),
        singles: set.count_singles(),
        fields: fields.collect(),
    }
}
