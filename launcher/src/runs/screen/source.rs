//! Reads the runs on another thread, so that a slow file system never delays a key.

use super::super::List;
use super::super::files::json;
use super::super::growing::Lines;
use super::super::run::Run;
use super::Event;
use super::history::History;
use super::log::{Log, LogFile, best_stream, path};
use crate::cli::{RunState, WhichRuns};
use crossbeam_channel::{Receiver, Sender};
use dtrain_agent::io::output::Stream;
use dtrain_common::gpu::{Driver, GpuStatus, Nvidia};
use dtrain_common::host;
use dtrain_common::run_dir::RunDir;
use serde::Deserialize;
use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Runs whose files stay half read, for a quick return to them.
const READERS: usize = 16;
/// Time between two pictures of a long file that is being read.
const PARTS: Duration = Duration::from_millis(300);

/// What the user looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The run's directory; the first of the list, if absent or gone.
    pub(super) run: Option<PathBuf>,
    pub(super) rank: usize,
    /// Absent: the one that says most.
    pub(super) stream: Option<Stream>,
}

/// The runs at one time.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) time: SystemTime,
    /// Running and newer runs first.
    pub(super) list: Arc<List>,
    /// Why the list could not be read again.
    pub(super) error: Option<String>,
    pub(super) detail: Option<Detail>,
    /// The GPUs of this machine.
    pub(super) gpus: Vec<GpuStatus>,
}

/// The run that the user looks at.
#[derive(Clone, Debug, Default)]
pub(super) struct Detail {
    pub(super) path: PathBuf,
    pub(super) history: History,
    pub(super) plan: Plan,
    pub(super) rank: usize,
    pub(super) stream: Option<Stream>,
    pub(super) log: Log,
    /// Files that could not be read.
    pub(super) problems: Vec<String>,
}

/// The fields of `plan.json` about memory.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Plan {
    pub(super) device: Option<String>,
    pub(super) budget_bytes: Option<u64>,
    pub(super) predictions: Vec<Predicted>,
    pub(super) stages: Vec<Stage>,
}

/// The predicted memory of a stage.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Predicted {
    pub(super) peak: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Stage {
    pub(super) name: String,
}

impl Plan {
    /// Returns the predicted peak of this stage in bytes.
    pub(super) fn predicted(&self, stage: Option<&str>) -> Option<u64> {
        let place = match stage {
            // Only stages whose cut was chosen have a prediction.
            Some(name) if self.predictions.len() == self.stages.len() => {
                self.stages.iter().position(|stage| stage.name == name)?
            }
            Some(_) => return None,
            None => 0,
        };
        self.predictions.get(place).map(|predicted| predicted.peak).filter(|peak| *peak > 0)
    }
}

/// Puts running and newer runs first: a terminal may have no room for others.
pub(in super::super) fn sort(list: &mut List) {
    list.runs.sort_by_key(|run| (run.state != RunState::Running, Reverse(run.record.began_ms)));
}

/// Reads the runs, and what the user wants of one.
pub(super) struct Source {
    which: WhichRuns,
    interval: Duration,
    list: Arc<List>,
    error: Option<String>,
    readers: Vec<Reader>,
    driver: Option<Nvidia>,
}

impl Source {
    pub(super) fn new(which: WhichRuns, interval: Duration, mut first: List) -> Self {
        sort(&mut first);
        Self {
            which,
            interval,
            list: Arc::new(first),
            error: None,
            readers: Vec::new(),
            driver: Nvidia::open().ok(),
        }
    }

    /// Returns the list alone.
    pub(super) fn first_look(&self) -> Look {
        Look {
            time: SystemTime::now(),
            list: Arc::clone(&self.list),
            error: None,
            detail: None,
            gpus: Vec::new(),
        }
    }

    /// Sends looks until nobody receives them any more.
    pub(super) fn run(mut self, wanted: &Receiver<Wanted>, events: &Sender<Event>) {
        let mut want = Wanted::default();
        let mut next = Instant::now() + self.interval;
        loop {
            if !self.show(&mut want, wanted, events) {
                return;
            }
            match wanted.recv_deadline(next) {
                Ok(newer) => want = wanted.try_iter().last().unwrap_or(newer),
                Err(error) if error.is_disconnected() => return,
                Err(_) => {
                    self.list();
                    // A look that took longer than the interval is not made up for.
                    next = (next + self.interval).max(Instant::now());
                }
            }
        }
    }

    fn list(&mut self) {
        match List::read(&self.which, SystemTime::now()) {
            Ok(mut list) => {
                sort(&mut list);
                (self.list, self.error) = (Arc::new(list), None);
            }
            // The file system may come back.
            Err(error) => self.error = Some(format!("{error:#}")),
        }
    }

    /// Reads the wanted run to its end, and sends what is known meanwhile. Returns whether somebody receives it.
    fn show(&mut self, want: &mut Wanted, wanted: &Receiver<Wanted>, events: &Sender<Event>) -> bool {
        let gpus = self.gpus();
        let mut sent = Instant::now();
        loop {
            if let Some(newer) = wanted.try_iter().last() {
                *want = newer;
            }
            let list = Arc::clone(&self.list);
            let run = list.runs.iter().find(|run| Some(&run.path) == want.run.as_ref()).or(list.runs.first());
            let has_more = run.is_some_and(|run| reader(&mut self.readers, run).read_history());
            if has_more && sent.elapsed() < PARTS {
                continue;
            }
            sent = Instant::now();
            let detail = run.map(|run| reader(&mut self.readers, run).detail(run, want));
            let look = Look {
                time: SystemTime::now(),
                list: Arc::clone(&self.list),
                error: self.error.clone(),
                detail,
                gpus: gpus.clone(),
            };
            if events.send(Event::Look(Box::new(look))).is_err() {
                return false;
            }
            if !has_more {
                return true;
            }
        }
    }

    /// Returns the GPUs, if a run of the list may use them.
    fn gpus(&mut self) -> Vec<GpuStatus> {
        let here = host::name();
        let is_here = |run: &Run| run.state == RunState::Running && run.record.host == here;
        if !self.list.runs.iter().any(is_here) {
            return Vec::new();
        }
        self.driver
            .as_mut()
            .and_then(|driver| driver.status().ok())
            .map(|status| status.gpus)
            .unwrap_or_default()
    }
}

/// Returns the reader of a run; the one that was used longest ago makes room.
fn reader<'a>(readers: &'a mut Vec<Reader>, run: &Run) -> &'a mut Reader {
    let known = readers.iter().position(|reader| reader.run_dir.root() == run.path);
    let found = known.map_or_else(|| Reader::new(&run.path), |place| readers.remove(place));
    if readers.len() >= READERS {
        readers.remove(0);
    }
    readers.push(found);
    let last = readers.len() - 1;
    &mut readers[last]
}

/// The files of one run.
struct Reader {
    run_dir: RunDir,
    metrics: Lines,
    history: History,
    log: Option<LogFile>,
    problem: Option<String>,
}

impl Reader {
    fn new(root: &Path) -> Self {
        let run_dir = RunDir::new(root);
        Self {
            metrics: Lines::new(run_dir.metrics()),
            history: History::default(),
            run_dir,
            log: None,
            problem: None,
        }
    }

    /// Reads a part of the course. Returns whether there is more.
    fn read_history(&mut self) -> bool {
        let read = self.metrics.read(&mut self.history, History::add);
        self.problem = read.as_ref().err().map(ToString::to_string);
        read.unwrap_or(false)
    }

    fn detail(&mut self, run: &Run, want: &Wanted) -> Detail {
        let mut problems: Vec<String> = self.problem.iter().cloned().collect();
        // A damaged plan is a problem of the row.
        let plan = json::<Plan>(&self.run_dir.plan()).ok().flatten();
        let rank = want.rank.min(run.record.nproc.saturating_sub(1));
        let mut detail = Detail {
            path: run.path.clone(),
            history: self.history.clone(),
            rank,
            stream: None,
            ..Detail::default()
        };
        if let Some(attempt) = run.attempt {
            let folder = self.run_dir.rank_logs(attempt, rank);
            let is_running = run.state == RunState::Running;
            let stream = want.stream.unwrap_or_else(|| best_stream(&folder, plan.is_some(), is_running));
            let path = path(&folder, stream);
            let file = self.log.take().filter(|file| file.path == path);
            let file = self.log.insert(file.unwrap_or_else(|| LogFile::new(path)));
            detail.stream = Some(stream);
            detail.log = file.read().unwrap_or_else(|problem| {
                problems.push(problem.to_string());
                Log::default()
            });
        }
        Detail { plan: plan.unwrap_or_default(), problems, ..detail }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crossbeam_channel::unbounded;
    use dtrain_common::run_dir::AttemptRecord;
    use std::fs;
    use std::thread;

    /// Makes a run of 2 ranks with 3 steps.
    fn make(root: &Path, name: &str) -> RunDir {
        let run_dir = RunDir::new(root.join(name));
        for rank in 0..2 {
            fs::create_dir_all(run_dir.rank_logs(0, rank)).unwrap();
            fs::write(run_dir.rank_logs(0, rank).join("stderr.log"), format!("{name} rank {rank}\n"))
                .unwrap();
        }
        fs::write(run_dir.root().join(".lock"), "").unwrap();
        let steps: String = (1..=3).map(|step| format!("{{\"step\":{step},\"loss\":0.5}}\n")).collect();
        fs::write(run_dir.metrics(), steps).unwrap();
        let record = AttemptRecord { began_ms: 1, nproc: 2, ..Default::default() };
        record.write(&run_dir.attempt(0)).unwrap();
        run_dir
    }

    #[test]
    fn the_wanted_run_and_rank_are_read_and_a_removed_run_makes_way() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (make(folder.path(), "a"), make(folder.path(), "b"));
        let which = WhichRuns { dir: folder.path().to_owned(), state: vec![] };
        let first = List::read(&which, SystemTime::now()).unwrap();
        let source = Source::new(which, Duration::from_millis(20), first);
        let (want, wanted) = unbounded();
        let (events, looks) = unbounded();
        let reader = thread::spawn(move || source.run(&wanted, &events));
        let until = |is_it: &dyn Fn(&Look) -> bool| {
            for event in looks.iter() {
                match event {
                    Event::Look(look) if is_it(&look) => return *look,
                    _ => {}
                }
            }
            unreachable!("the source ended")
        };
        let shown =
            |look: &Look| look.detail.as_ref().map(|it| (it.path.clone(), it.log.lines.back().cloned()));
        let is = |run: &RunDir, line: &str| Some((run.root().to_owned(), Some(line.to_owned())));
        until(&|look| shown(look) == is(&a, "a rank 0"));
        want.send(Wanted { run: Some(b.root().to_owned()), rank: 1, stream: None }).unwrap();
        let look = until(&|look| shown(look) == is(&b, "b rank 1"));
        assert_eq!(look.detail.unwrap().history.last.unwrap().step, 3);
        fs::remove_dir_all(b.root()).unwrap();
        until(&|look| look.list.runs.len() == 1 && shown(look) == is(&a, "a rank 1"));
        fs::remove_dir_all(folder.path()).unwrap();
        let look = until(&|look| look.error.is_some());
        assert!(look.error.unwrap().contains("cannot list"));
        fs::create_dir(folder.path()).unwrap();
        until(&|look| look.error.is_none() && look.list.runs.is_empty() && look.detail.is_none());
        drop(want);
        reader.join().unwrap();
    }

    #[test]
    fn a_prediction_is_that_of_the_stage() {
        let plan = |json: &str| serde_json::from_str::<Plan>(json).unwrap();
        let one = plan(r#"{"predictions": [{"peak": 7}]}"#);
        assert_eq!((one.predicted(None), one.predicted(Some("a"))), (Some(7), None));
        let two =
            plan(r#"{"predictions": [{"peak": 7}, {"peak": 8}], "stages": [{"name": "a"}, {"name": "b"}]}"#);
        assert_eq!((two.predicted(Some("b")), two.predicted(Some("c"))), (Some(8), None));
        assert_eq!(Plan::default().predicted(None), None);
    }
}
