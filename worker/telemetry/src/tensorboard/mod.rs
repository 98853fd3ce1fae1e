//! `log.tensorboard`: event files in the run directory.
//!
//! They show what metrics.jsonl and the folders of evaluations have, and nothing else. So each attempt writes the history again:
//! it removes the files of earlier attempts, which may have steps that a resume repeats or a rollback has set aside, and begins one
//! file with the lines that are left. At any moment all events are of one file, and each step is there once.

mod file;
mod hparams;
mod lines;
mod message;
mod samples;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dtrain_common::run_dir::RunDir;

use self::file::EventFile;
use self::lines::{Kind, Shown, shown, summary, text};
use self::message::{Event, SessionLog, Value, What};
pub use self::samples::{FILE as SAMPLES, Sample};
use crate::Outcome;
use crate::queue::{Message, Queue};

const NAME: &str = "log.tensorboard";
/// The tag by which the time of a step is found again.
const OF_STEPS: &str = "train/loss";

/// What is known of a run before its first line.
#[derive(Debug, Clone, Default)]
pub struct Experiment {
    /// The resolved recipe, in TOML.
    pub recipe: String,
    /// The tags of the figures by which runs are compared.
    pub figures: Vec<String>,
    /// Those of groups that differ from the recipe's, by stage.
    pub rates: Vec<Rates>,
}

/// Learning rates of groups of parameters, in a stage or in a run without stages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rates {
    /// None without stages.
    pub stage: Option<String>,
    /// The names of the groups, and the factors of their rates.
    pub factors: Vec<(String, f64)>,
}

/// Starts the thread that writes the events. `length`: the bytes of metrics.jsonl that are lines of earlier attempts.
pub(crate) fn start(run_dir: RunDir, length: u64, experiment: Experiment) -> io::Result<Queue> {
    Queue::start(NAME, move |messages| {
        if let Err(error) = write(&run_dir, length, experiment, messages) {
            let folder = run_dir.root().display();
            tracing::warn!(
                "{NAME}: cannot write the events in {folder}: {error}{}; training continues without them, and a resumed run has all",
                dtrain_common::files::remedy(&error)
            );
        }
    })
}

/// Removes the event files of dtrain in a folder.
pub(crate) fn remove_files(folder: &Path) -> io::Result<()> {
    file::files(folder)?.into_iter().try_for_each(fs::remove_file)
}

fn write(
    run_dir: &RunDir,
    length: u64,
    experiment: Experiment,
    messages: &Receiver<Message>,
) -> io::Result<()> {
    let times = times(run_dir.root())?;
    // Before the new file: a kill between the two costs times, and never shows a step twice.
    remove_files(run_dir.root())?;
    let file = EventFile::create(run_dir.root(), now())?;
    let mut board = Board { run_dir, file, rates: &experiment.rates, time: now().as_secs_f64() };
    board.begin(&experiment)?;
    board.replay(length, &times)?;
    loop {
        let message = match messages.try_recv() {
            Err(TryRecvError::Empty) => {
                board.file.flush()?;
                messages.recv().ok()
            }
            message => message.ok(),
        };
        match message {
            Some(Message::Line(line)) => board.add(&line)?,
            Some(Message::End(outcome)) => return board.end(outcome),
            None => return board.file.flush(),
        }
    }
}

/// Returns the time since 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns when each step was written by earlier attempts.
fn times(folder: &Path) -> io::Result<HashMap<i64, f64>> {
    let mut times = HashMap::new();
    for path in file::files(folder)? {
        file::read(&path, |event| {
            if let Some(What::Summary(summary)) = &event.what
                && summary.values.iter().any(|value| value.tag == OF_STEPS)
            {
                times.insert(event.step, event.wall_time);
            }
        })?;
    }
    Ok(times)
}

/// The writer of events.
struct Board<'a> {
    run_dir: &'a RunDir,
    file: EventFile,
    rates: &'a [Rates],
    /// The time of the next event.
    time: f64,
}

impl Board<'_> {
    fn write(&mut self, step: u64, what: What) -> io::Result<()> {
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        self.file.write(&Event { wall_time: self.time, step, what: Some(what) })
    }

    fn begin(&mut self, experiment: &Experiment) -> io::Result<()> {
        self.write(0, What::Version("brain.Event:2".to_owned()))?;
        // A reader forgets what it has of removed files.
        self.write(0, What::Session(SessionLog { status: 1 }))?;
        let recipe = experiment.recipe.replace('\n', "\n    ");
        let mut values = vec![text("run/recipe", &format!("    {recipe}"))];
        values.extend(hparams::beginning(&experiment.recipe, &experiment.figures, self.time));
        self.write(0, summary(values))
    }

    /// Adds the first `length` bytes of metrics.jsonl.
    fn replay(&mut self, length: u64, times: &HashMap<i64, f64>) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        let latest = self.time;
        self.time = times.values().copied().fold(latest, f64::min);
        let mut lines = BufReader::new(File::open(self.run_dir.metrics())?.take(length));
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 {
            if let Some(shown) = self.shown(&line) {
                if let Kind::Step(ms) = shown.kind {
                    let known = i64::try_from(shown.step).ok().and_then(|step| times.get(&step));
                    self.time = known.copied().unwrap_or(self.time + ms / 1e3).min(latest);
                }
                self.show(shown)?;
            }
            line.clear();
        }
        Ok(())
    }

    /// Adds a line that has just been written.
    fn add(&mut self, line: &[u8]) -> io::Result<()> {
        self.time = now().as_secs_f64();
        self.shown(line).map_or(Ok(()), |shown| self.show(shown))
    }

    fn shown(&self, line: &[u8]) -> Option<Shown> {
        shown(&serde_json::from_slice(line).ok()?, self.rates)
    }

    fn show(&mut self, Shown { step, values, kind }: Shown) -> io::Result<()> {
        if !values.is_empty() {
            self.write(step, summary(values))?;
        }
        if let Kind::Evaluation(set) = kind {
            let folder = self.run_dir.samples(step, &set);
            let values: Vec<Value> = samples::values(&folder, &set).unwrap_or_else(|error| {
                tracing::warn!("{NAME}: cannot read the samples in {}: {error}", folder.display());
                Vec::new()
            });
            if !values.is_empty() {
                self.write(step, summary(values))?;
            }
        }
        Ok(())
    }

    fn end(&mut self, outcome: Outcome) -> io::Result<()> {
        self.time = now().as_secs_f64();
        if outcome != Outcome::Stopped {
            let end = hparams::end(outcome == Outcome::Complete, self.time);
            self.write(0, summary(vec![end]))?;
        }
        self.file.flush()
    }
}

#[cfg(test)]
mod tests;
