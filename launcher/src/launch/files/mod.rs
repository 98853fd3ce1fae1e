//! The files that a launch creates before its workers start: logs and error files.

mod folders;

use crate::plan::{LaunchPlan, Routing};
use anyhow::Context;
use dtrain_agent::cause::error_message;
use dtrain_agent::io::output::{LineFilter, RotatingLog, Stream};
use dtrain_agent::io::temporary::Temporary;
use dtrain_common::run_dir::{AttemptRecord, RunDir};
pub(super) use folders::next_attempt;
use folders::{make, new_attempt, rank_folder, rank_folders, shared_attempt};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The most bytes read of an error file.
const LONGEST_ERROR_BYTES: u64 = 1 << 20;

/// The output and error files of one attempt's workers.
#[derive(Debug)]
pub(super) struct Files {
    /// One folder per worker of this node, absolute.
    folders: Vec<PathBuf>,
    routing: Routing,
    /// The rank of this node's first worker.
    first_rank: usize,
    /// The folder of this attempt, as the user wrote it.
    attempt: PathBuf,
    /// The number of this folder, if it is shared with other nodes.
    pub(super) number: Option<u32>,
    /// New folders above it, the innermost first.
    made: Vec<PathBuf>,
    /// Has the error files if no logs are kept; removed when dropped.
    temporary: Option<TempDir>,
}

/// By stream, in the order of [`Stream::BOTH`].
pub(super) type ByStream<T> = [Option<T>; 2];

impl Files {
    /// Creates an attempt's folders in the run directory, the log directory, or a temporary one. `number`: the
    /// first possible number of the attempt, which is then shared with other nodes.
    pub(super) fn create(
        plan: &LaunchPlan,
        temporary: &Temporary,
        number: Option<u32>,
    ) -> anyhow::Result<Self> {
        Self::of(plan.run_dir.as_ref(), &plan.routing, temporary, plan.placement.first_rank, number)
    }

    fn of(
        run_dir: Option<&RunDir>,
        routing: &Routing,
        temporary: &Temporary,
        first_rank: usize,
        mut number: Option<u32>,
    ) -> anyhow::Result<Self> {
        let (mut made, mut folder) = (Vec::new(), None);
        let ranks = first_rank..first_rank + routing.workers();
        let (attempt, folders) = match run_dir.map(RunDir::logs).or_else(|| routing.log_dir.clone()) {
            None => {
                let attempt = folder.insert(temporary.folder("errors-")?).path().to_owned();
                let folders = rank_folders(&attempt, ranks)?;
                (attempt, folders)
            }
            Some(root) => {
                made.extend(
                    [Some(root.as_path()), run_dir.map(RunDir::root)]
                        .into_iter()
                        .flatten()
                        .map(Path::to_owned),
                );
                made.retain(|folder| !folder.exists());
                let flag = if run_dir.is_some() { "--run-dir" } else { "--log-dir" };
                let attempt = make(&root).and_then(|()| match &mut number {
                    Some(number) => shared_attempt(&root, number, &ranks),
                    None => {
                        let attempt = new_attempt(&root)?;
                        let folders = rank_folders(&attempt, ranks.clone())?;
                        Ok((attempt, folders))
                    }
                });
                attempt.with_context(|| {
                    format!("cannot write logs in {}; choose another {flag}", root.display())
                })?
            }
        };
        let folders = folders.with_context(|| format!("{} has logs of another run", attempt.display()))?;
        Ok(Self { folders, routing: routing.clone(), first_rank, attempt, number, made, temporary: folder })
    }

    /// Returns the error file of `rank`; absolute, because the worker may change its folder.
    pub(super) fn error_file(&self, rank: usize) -> PathBuf {
        self.folders[rank].join("error.json")
    }

    /// Returns the message in the error file of `rank`.
    pub(super) fn reported_error(&self, rank: usize) -> Option<String> {
        error_message(&self.error_text(rank)?)
    }

    pub(super) fn error_text(&self, rank: usize) -> Option<String> {
        read_error(&self.error_file(rank))
    }

    /// Returns the log file of this stream, as the user names it; `None` if it is not kept.
    pub(super) fn log_path(&self, rank: usize, stream: Stream) -> Option<PathBuf> {
        let is_kept = self.routing.route(rank, stream).kept;
        let folder = self.rank_folder(rank).filter(|_| is_kept)?;
        Some(folder.join(format!("{}.log", stream.name())))
    }

    fn rank_folder(&self, rank: usize) -> Option<PathBuf> {
        self.temporary.is_none().then(|| rank_folder(&self.attempt, self.first_rank + rank))
    }

    /// Returns the file for the stacks of a hung worker; `None` if no logs are kept.
    pub(super) fn stacks_path(&self, rank: usize) -> Option<PathBuf> {
        Some(self.rank_folder(rank)?.join("stacks.txt"))
    }

    /// Returns a message with the folder of the logs, if it is not in a run directory.
    pub(super) fn note(&self) -> Option<String> {
        self.routing.log_dir.as_ref().map(|_| format!("logs in {}", self.attempt.display()))
    }

    /// Creates the log files of `rank`.
    pub(super) fn open_logs(&self, rank: usize) -> anyhow::Result<ByStream<RotatingLog>> {
        let log = |stream| self.log_path(rank, stream).map(|path| self.open(path));
        let [stdout, stderr] = Stream::BOTH.map(log);
        Ok([stdout.transpose()?, stderr.transpose()?])
    }

    /// Creates the files for filtered lines, if filters are set.
    pub(super) fn open_line_filters(&self) -> anyhow::Result<ByStream<LineFilter>> {
        let line_filter = |stream: Stream| {
            let texts = &self.routing.filters[stream.index()];
            let is_wanted = self.temporary.is_none() && !texts.is_empty();
            is_wanted.then(|| self.open(self.filter_path(stream)).map(|log| LineFilter::new(texts, log)))
        };
        let [stdout, stderr] = Stream::BOTH.map(line_filter);
        Ok([stdout.transpose()?, stderr.transpose()?])
    }

    /// Returns the file for the filtered lines of this node's workers.
    fn filter_path(&self, stream: Stream) -> PathBuf {
        let folder = match self.first_rank {
            0 => &self.attempt,
            _ => &self.folders[0],
        };
        folder.join(format!("filtered_{}.log", stream.name()))
    }

    fn open(&self, path: PathBuf) -> anyhow::Result<RotatingLog> {
        let context =
            format!("cannot create the log file {}; choose another --run-dir or --log-dir", path.display());
        RotatingLog::create(path, self.routing.log_size).context(context)
    }

    /// Writes the record of this attempt for `dtrain runs`; only on the node of rank 0.
    pub(super) fn record(&self, record: &AttemptRecord) -> anyhow::Result<()> {
        if self.first_rank > 0 {
            return Ok(());
        }
        let path = AttemptRecord::path(&self.attempt);
        record.write(&self.attempt).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes the folders of [`Files::create`] after a failed start. All of it is this run's: it made the folders of its
    /// ranks, and the record and the filtered lines belong to that of rank 0.
    pub(super) fn remove(&self) {
        if self.first_rank == 0 {
            let _ = fs::remove_file(AttemptRecord::path(&self.attempt));
        }
        for folder in &self.folders {
            let _ = fs::remove_dir_all(folder);
        }
        // Other nodes may have folders there. Filtered lines are kept in files.
        for stream in Stream::BOTH {
            let _ = fs::remove_file(self.filter_path(stream));
        }
        let _ = fs::remove_dir(&self.attempt);
        for folder in &self.made {
            // Fails if the folder is not empty.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Returns the content of an error file, if it exists.
pub(super) fn read_error(file: &Path) -> Option<String> {
    let mut text = String::new();
    let file = File::open(file).ok()?;
    file.take(LONGEST_ERROR_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::cli::OutputArgs;
    use crate::plan::Home;

    #[test]
    fn error_files_of_both_forms_are_understood() {
        let ours = r#"{"message":{"message":"no data","extraInfo":{"py_callstack":"","timestamp":"1"}}}"#;
        assert_eq!(error_message(ours).as_deref(), Some("no data"));
        assert_eq!(error_message(r#"{"message":" short "}"#).as_deref(), Some("short"));
        for useless in
            ["", "{", "[]", "{}", r#"{"message":{}}"#, r#"{"message":{"message":""}}"#, r#"{"message":3}"#]
        {
            assert_eq!(error_message(useless), None, "{useless}");
        }
    }

    fn routing(workers: usize, log_dir: Option<&Path>) -> Routing {
        let args = OutputArgs { log_dir: log_dir.map(Path::to_owned), ..OutputArgs::default() };
        let home = if log_dir.is_some() { Home::Nowhere } else { Home::RunDir };
        Routing::plan(&args, workers, "default", home).unwrap()
    }

    #[test]
    fn starts_in_a_run_directory_have_separate_logs() {
        let temporary = Temporary::make().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path().join("run"));
        let first = Files::of(Some(&run_dir), &routing(2, None), &temporary, 0, None).unwrap();
        fs::write(first.error_file(1), r#"{"message":"old"}"#).unwrap();
        let second = Files::of(Some(&run_dir), &routing(2, None), &temporary, 0, None).unwrap();
        assert_eq!(first.reported_error(1).as_deref(), Some("old"));
        assert_eq!(second.reported_error(1), None);
        assert_eq!(second.error_file(1), run_dir.rank_logs(1, 1).join("error.json"));
        assert_eq!(second.log_path(1, Stream::Stderr).unwrap(), run_dir.rank_logs(1, 1).join("stderr.log"));
        assert_eq!(second.note(), None, "the plan's message names the run directory");
        second.remove();
        assert!(!run_dir.rank_logs(1, 0).exists() && run_dir.rank_logs(0, 1).exists());
    }

    #[test]
    fn the_number_of_a_folder_that_was_removed_is_not_used_again() {
        let temporary = Temporary::make().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path();
        let create =
            |number| Files::of(None, &routing(1, Some(logs)), &temporary, 0, number).unwrap().attempt;
        create(None);
        fs::create_dir_all(logs.join("attempt_7/rank_1")).unwrap();
        fs::create_dir(logs.join("attempt_x")).unwrap();
        assert_eq!(next_attempt(logs), 8);
        assert_eq!(create(Some(1)), logs.join("attempt_7"), "another node has made it");
        assert_eq!(create(Some(7)), logs.join("attempt_8"));
        assert_eq!(create(None), logs.join("attempt_9"));
    }

    #[test]
    fn a_shared_attempt_has_the_next_number_without_logs_of_the_rank() {
        let temporary = Temporary::make().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let create = |rank, number| {
            Files::of(None, &routing(1, Some(folder.path())), &temporary, rank, Some(number)).unwrap()
        };
        let (first, other) = (create(0, 3), create(1, 3));
        assert_eq!((first.number, other.number), (Some(3), Some(3)));
        let again = create(0, 3);
        assert_eq!(again.number, Some(4));
        assert_eq!(
            again.log_path(0, Stream::Stdout),
            Some(folder.path().join("attempt_4/rank_0/stdout.log"))
        );
        first.remove();
        assert!(
            folder.path().join("attempt_3/rank_1").is_dir()
                && !folder.path().join("attempt_3/rank_0").exists()
        );
    }

    #[test]
    fn logs_of_another_run_are_neither_overwritten_nor_removed() {
        let temporary = Temporary::make().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let create = |first: usize, workers: usize| {
            Files::of(None, &routing(workers, Some(folder.path())), &temporary, first, Some(0)).unwrap()
        };
        // On this node, the other run has the ranks 2 and 3, and this one 1 and 2.
        let other = create(2, 2);
        let log = other.log_path(0, Stream::Stdout).unwrap();
        fs::write(&log, "of the other run").unwrap();
        let own = create(1, 2);
        own.open_logs(1).unwrap();
        assert_eq!(own.number, Some(1));
        assert!(!folder.path().join("attempt_0/rank_1").exists(), "nothing is left of the first try");
        own.remove();
        assert_eq!(fs::read_to_string(&log).unwrap(), "of the other run");
        assert!(!folder.path().join("attempt_1").exists());
    }

    #[test]
    fn two_runs_that_start_at_one_time_have_separate_folders() {
        let temporary = Temporary::make().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let create =
            || Files::of(None, &routing(3, Some(folder.path())), &temporary, 0, Some(0)).unwrap().folders;
        let made: Vec<_> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..16).map(|_| scope.spawn(create)).collect();
            starts.into_iter().flat_map(|start| start.join().unwrap()).collect()
        });
        let distinct: std::collections::BTreeSet<_> = made.iter().collect();
        assert_eq!((made.len(), distinct.len()), (48, 48), "{made:?}");
    }

    #[test]
    fn a_log_directory_holds_attempts_and_nothing_else() {
        let temporary = Temporary::make().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("logs");
        let routing = routing(2, Some(&root));
        let first = Files::of(None, &routing, &temporary, 0, None).unwrap();
        assert_eq!(first.log_path(1, Stream::Stdout), Some(root.join("attempt_0/rank_1/stdout.log")));
        let second = Files::of(None, &routing, &temporary, 0, None).unwrap();
        assert!(second.note().unwrap().ends_with("logs/attempt_1"));
        second.remove();
        assert!(root.join("attempt_0/rank_0").is_dir() && !root.join("attempt_1").exists());
        first.remove();
        assert!(!root.exists());
    }

    #[test]
    fn created_folders_are_removed_and_others_are_not() {
        let temporary = Temporary::make().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let new = RunDir::new(folder.path().join("new"));
        let files = Files::of(Some(&new), &routing(1, None), &temporary, 0, None).unwrap();
        files.open_logs(0).unwrap();
        files.record(&AttemptRecord::default()).unwrap();
        assert!(new.attempt(0).join("attempt.json").exists());
        files.remove();
        assert!(!new.root().exists());
        let there = RunDir::new(folder.path());
        Files::of(Some(&there), &routing(1, None), &temporary, 0, None).unwrap().remove();
        assert!(there.root().exists() && !there.logs().exists());
    }

    #[test]
    fn without_a_folder_error_files_have_a_temporary_place_and_no_logs_are_kept() {
        let temporary = Temporary::make().unwrap();
        let routing = Routing::plan(&OutputArgs::default(), 2, "default", Home::Nowhere).unwrap();
        let files = Files::of(None, &routing, &temporary, 0, None).unwrap();
        let error_file = files.error_file(1);
        assert!(error_file.parent().unwrap().is_dir());
        assert!(files.open_logs(1).unwrap()[0].is_none());
        drop(files);
        assert!(!error_file.parent().unwrap().exists());
    }
}
