//! The picture of `dtrain data --show`: samples as a network gets them.

use std::io;
use std::path::Path;
use std::sync::Arc;

use dtrain_common::question::DataQuestion;
use dtrain_common::text::counted;
use dtrain_data_report::{Decode, Names, Picture};
use dtrain_recipe::{Recipe, Target};

use super::Training;
use crate::data::{
    DataError, Dataset, Loader, LoaderOptions, MicroBatch, TextTokenizer, Vocabulary, epoch_order, mixed,
    tokenizer,
};
use crate::setup::error::{Result, WorkerError};
use crate::setup::loader::loader_options;
use crate::tasks::{Details, SetKind, TaskError, unchanged_sets};

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
    let mut picture = Picture::new(names(recipe, details, training), decoder(details, training)?);
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
        let (work, facts) = (training.work(question)?, &training.facts);
        let of = counted(work.len(), "training sample");
        add(title(of, "the first steps"), &facts.train, work, options)?;
        let val = facts.val.iter().map(|val| ("validation", val));
        let more = facts.more_tests.iter().map(|(name, set)| (name.as_str(), set));
        for (name, set) in val.chain([("test", &facts.test)]).chain(more) {
            let work = some_of(set.as_ref());
            add(format!("{} {name} samples", work.len()), set, work, plain)?;
        }
    }
    for checked in details.checks.iter().filter(|_| training.is_none()) {
        let Some([changed, set]) = unchanged_sets(recipe, checked) else { continue };
        if checked.kind != SetKind::Training {
            let work = some_of(set.as_ref());
            add(format!("{} of {}", counted(work.len(), "sample"), checked.samples.set), &set, work, plain)?;
            continue;
        }
        let order = epoch_order(set.len(), seed, epoch);
        let work: Vec<_> =
            order.into_iter().take(question.samples).map(|one| MicroBatch::of(epoch, [one])).collect();
        add(title(counted(work.len(), "sample"), &checked.samples.set), &changed, work, options)?;
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
        let single = |work: MicroBatch| work.apart().collect::<Vec<_>>();
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
    let listed = details.checks.first().map(|set| &set.samples);
    let mut classes = listed.map(|samples| samples.class_names()).unwrap_or_default();
    let masks = listed.into_iter().flat_map(|samples| samples.mask_rules());
    classes.extend(masks.map(|(field, rule)| (field.to_owned(), rule.names.clone())));
    if let (Some(Training { facts, .. }), Some(Target::Class | Target::Classes)) = (training, recipe.target())
        && !facts.class_names.is_empty()
    {
        classes.insert("label".to_owned(), facts.class_names.clone());
    }
    if !recipe.data.mix.is_empty() {
        let partner =
            |(field, names): (&String, &Vec<String>)| (format!("{}{field}", mixed::PREFIX), names.clone());
        let partners: Vec<_> = classes.iter().map(partner).collect();
        classes.extend(partners);
    }
    Names {
        classes,
        numbers: listed.map(|samples| samples.numbers().0.to_vec()).unwrap_or_default(),
        ignore: recipe.data.ignore.map(i64::from),
        normalize: super::normalize(recipe),
    }
}

/// Returns what turns tokens into text, if there are tokens.
fn decoder(details: &Details, training: Option<&Training>) -> Result<Option<Decode>> {
    let facts = training.map(|training| &training.facts);
    if let Some(files) = facts.and_then(|facts| facts.tokenizer.as_ref()) {
        let tokenizer = TextTokenizer::load(Path::new(tokenizer::FILE), files.clone());
        let tokenizer = tokenizer.map_err(|error| WorkerError::Task(error.into()))?;
        return Ok(Some(Box::new(move |token| tokenizer.decode(&[token]).unwrap_or_default())));
    }
    let of_text = details.text.as_ref().map(|text| text.vocabulary.clone());
    let saved = || serde_json::from_value(facts?.extra.get("vocabulary")?.clone()).ok();
    let vocabulary: Option<Vocabulary> = of_text.or_else(saved);
    Ok(vocabulary.map(|vocabulary| Box::new(move |token| vocabulary.decode([token])) as Decode))
}
