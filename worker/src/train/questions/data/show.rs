//! The picture of `dtrain data --show`: samples as a network gets them.

use std::io;
use std::path::Path;
use std::sync::Arc;

use dtrain_common::question::DataQuestion;
use dtrain_common::text::counted;
use dtrain_data_report::{Names, Picture};
use dtrain_recipe::Recipe;

use super::Training;
use crate::data::{DataError, Dataset, Loader, LoaderOptions, MicroBatch, Place, Vocabulary, epoch_order};
use crate::setup::error::{Result, WorkerError};
use crate::setup::loader::loader_options;
use crate::tasks::{Details, TaskError, unchanged_sets};

/// Samples of each other set than the training samples.
const OTHERS: usize = 8;

/// Draws the samples of the question into the file `path`. Returns what it shows; None if no set can be listed.
pub(super) fn draw(
    recipe: &Recipe,
    question: &DataQuestion,
    path: &Path,
    details: &Details,
    training: Option<&Training>,
) -> Result<Option<String>> {
    let mut picture = Picture::new(names(recipe, details, training), vocabulary(details, training));
    let options = loader_options(recipe, 1);
    let plain = LoaderOptions { augment: false, ..options };
    let (epoch, seed) = (question.epoch, recipe.train.seed);
    let changes = if options.augment { "with" } else { "without" };
    let title =
        |count, of: &str| format!("{count} of {of}, epoch {epoch}, seed {seed}, {changes} random changes");
    let mut shown = Vec::new();
    let mut add = |title: String, set: &Arc<dyn Dataset>, work: Vec<MicroBatch>, options| {
        shown.push(title.clone());
        picture.section(title);
        section(&mut picture, set, work, options)
    };
    if let Some(training) = training {
        let work = training.work(question)?;
        let (train, test) = (&training.facts.train, &training.facts.test);
        add(title(counted(work.len(), "training sample"), "the first steps"), train, work, options)?;
        add(format!("{} test samples", test.len().min(OTHERS)), test, some_of(test.as_ref()), plain)?;
    } else {
        for (number, (samples, _)) in details.checks.iter().enumerate() {
            let [changed, set] = unchanged_sets(recipe, samples);
            if number > 0 {
                let work = some_of(set.as_ref());
                add(format!("{} of {}", counted(work.len(), "sample"), samples.set), &set, work, plain)?;
                continue;
            }
            let order = epoch_order(set.len(), seed, epoch);
            let work: Vec<_> =
                order.into_iter().take(question.samples).map(|one| MicroBatch::of(epoch, [one])).collect();
            add(title(counted(work.len(), "sample"), &samples.set), &changed, work, options)?;
        }
    }
    if shown.is_empty() {
        return Ok(None);
    }
    let failed = |error| match error {
        dtrain_data_report::PictureError::IoError(source) => source,
        other => io::Error::other(other.to_string()),
    };
    picture
        .save(path)
        .map_err(|error| WorkerError::Write { path: path.to_owned(), source: failed(error) })?;
    Ok(Some(shown.join("; ")))
}

impl Training {
    /// Returns the first samples of an epoch, one each, with their members.
    fn work(&self, question: &DataQuestion) -> Result<Vec<MicroBatch>> {
        let (plan, epochs) = (&self.plan, self.plan.epochs());
        let epoch = question.epoch;
        let step = (0..plan.total_steps).find(|step| plan.position(*step).epoch >= epoch);
        let Some(step) = step else { return Err(WorkerError::NoEpoch { epoch, epochs }) };
        let of_epoch = plan.micro_batches(0, step, &self.facts.sampling());
        let of_epoch = of_epoch.take_while(|work| work.epoch == epoch);
        let single = |work: MicroBatch| {
            let one = |places: &[Place]| MicroBatch { places: places.to_vec(), ..work };
            work.places.chunks(work.width).map(one).collect::<Vec<_>>()
        };
        Ok(of_epoch.flat_map(single).take(question.samples).collect())
    }
}

/// Requests some samples of a set, always the same.
fn some_of(set: &dyn Dataset) -> Vec<MicroBatch> {
    let mut chosen = epoch_order(set.len(), 0, 0);
    chosen.truncate(OTHERS);
    chosen.sort_unstable();
    chosen.into_iter().map(|sample| MicroBatch::of(0, [sample])).collect()
}

fn section(
    picture: &mut Picture,
    set: &Arc<dyn Dataset>,
    work: Vec<MicroBatch>,
    options: LoaderOptions,
) -> Result<()> {
    let singles = |work: &MicroBatch| {
        let groups = set.groups();
        match (groups, work.places.as_slice()) {
            // A sample that states no members has its own.
            (Some(groups), [place]) => {
                groups.singles().describe(groups.of(place.sample as usize)[0] as usize)
            }
            (Some(groups), [place, ..]) => groups.singles().describe(place.sample as usize),
            (_, places) => {
                places.first().map(|place| set.describe(place.sample as usize)).unwrap_or_default()
            }
        }
    };
    let places: Vec<String> = work.iter().map(singles).collect();
    let of_data = |error: DataError| WorkerError::Task(TaskError::from(error));
    let batches = Loader::start(Arc::clone(set), options, work.into_iter()).map_err(of_data)?;
    for (batch, place) in batches.zip(places) {
        picture.add(&batch.map_err(of_data)?, place);
    }
    Ok(())
}

fn names(recipe: &Recipe, details: &Details, training: Option<&Training>) -> Names {
    let listed = details.checks.first().map(|(samples, _)| samples);
    let mut classes = listed.map(|samples| samples.class_names()).unwrap_or_default();
    if let Some(Training { facts, .. }) = training
        && !facts.class_names.is_empty()
    {
        classes.insert("label".to_owned(), facts.class_names.clone());
    }
    Names {
        classes,
        numbers: listed.map(|samples| samples.numbers().0.to_vec()).unwrap_or_default(),
        ignore: recipe.data.ignore.map(i64::from),
        normalize: super::normalize(recipe),
    }
}

fn vocabulary(details: &Details, training: Option<&Training>) -> Option<Vocabulary> {
    let of_text = details.text.as_ref().map(|text| text.vocabulary.clone());
    let saved = || serde_json::from_value(training?.facts.extra.get("vocabulary")?.clone()).ok();
    of_text.or_else(saved)
}
