//! `dtrain data`: what the data of a recipe holds. The survey is that of a training.

mod progress;
mod show;

use std::sync::Arc;

use dtrain_common::exit::ExitStatus;
use dtrain_common::question::DataQuestion;
use dtrain_data_report::{DataSet, Duplicates, HeldOut, LoadedValues, Report, SetReport, TextReport};
use dtrain_recipe::{Recipe, Val};

use self::progress::show_progress;
use super::print_answer;
use crate::course::RunPlan;
use crate::data::{Dataset, Field, Normalize};
use crate::planning::{SymbolicPredictor, Target};
use crate::request::Request;
use crate::setup::error::{Result, WorkerError};
use crate::setup::survey::Surveyed;
use crate::tasks::{BuildTask, Details, Facts, SetKind, SurveyContext, check_rest, cores, unchanged_sets};

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
    let (mut details, mut warnings) = (Details::new(show_progress("checking")), Vec::new());
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
    describe_files(&details, &mut report);
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

fn describe_files(details: &Details, report: &mut Report) {
    report.files = details.checks.iter().map(|set| SetReport::of(&set.samples, &set.report)).collect();
    // The content of a sample is that of its images.
    if details.checks.iter().any(|set| set.samples.images().next().is_some()) {
        let sets: Vec<_> = details.checks.iter().map(|set| (&set.samples, &set.report)).collect();
        let mut progress = show_progress("comparing");
        let mut progress = |done, total| progress("files that begin alike", done, total);
        report.duplicates = Some(Duplicates::find(&sets, cores(), &mut progress));
    }
}

/// Describes the data sets of a training; without one, the first listed files.
fn describe_sets(
    recipe: &Recipe,
    details: &Details,
    training: Option<&Training>,
    report: &mut Report,
) -> Result<()> {
    let first: Option<(&str, Arc<dyn Dataset>)> = match training {
        Some(Training { facts, .. }) => {
            let val = facts.val.iter().map(|val| ("validation", val));
            let more = facts.more_tests.iter().map(|(name, samples)| (name.as_str(), samples));
            let sets = [("training", &facts.train)].into_iter().chain(val);
            report.sets = sets.chain([("test", &facts.test)]).chain(more).map(described).collect();
            Some((SetKind::Training.word(), Arc::clone(&facts.train)))
        }
        None => details.checks.first().and_then(|set| {
            let [_, plain] = unchanged_sets(recipe, set)?;
            Some((set.kind.word(), plain))
        }),
    };
    if let Some((name, set)) = first {
        report.values = Some(LoadedValues::of(name, set.as_ref(), &normalize(recipe), cores()));
    }
    if let Some(index) = &details.text {
        let context = training.and_then(|training| training.facts.train.fields().first().map(Field::values));
        let corpus = index.load().map_err(|error| WorkerError::Task(error.into()))?;
        let val = match recipe.data.val {
            Some(Val::Part(part)) => part,
            _ => 0.0,
        };
        let held_out = HeldOut { test: recipe.data.test_fraction, val };
        report.text = Some(TextReport::of(index, &corpus, context, held_out));
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
