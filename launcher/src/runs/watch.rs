//! `dtrain runs watch`: a whole screen on a terminal, with `--count` a table that is redrawn, and a line for each change on
//! other outputs.

use super::{List, screen, table};
use crate::cli::WatchArgs;
use crate::screen::{Frames, size_of_terminal, stop_requests, wait};
use crate::stdout::print;
use crate::times::local_time;
use dtrain_agent::io::output::{Stream, can_draw_frames};
use dtrain_common::exit::ExitStatus;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

/// Repeats until Ctrl-C, the usual end, or for the given number of times.
pub(super) fn run(args: &WatchArgs) -> anyhow::Result<ExitCode> {
    let is_terminal = can_draw_frames(Stream::Stdout);
    if is_terminal && args.count.is_none() && screen::has_keys() {
        return screen::run(args);
    }
    let stopped = stop_requests()?;
    let interval = Duration::from_secs_f64(args.interval);
    let mut frames = is_terminal.then(Frames::default);
    let mut changes = Changes::default();
    let mut next = Instant::now();
    for looks in 1.. {
        let now = SystemTime::now();
        let list = match List::read(&args.which, now) {
            // The file system may come back. At the first look, the folder is wrong.
            Err(error) if looks > 1 => Err(format!("{error:#}")),
            list => Ok(list?),
        };
        let text = match &mut frames {
            Some(frames) => frames.next(&frame(list, now), size_of_terminal()),
            None => changes.lines(list, now),
        };
        if !print(&text)? || args.count.is_some_and(|count| looks >= count) {
            break;
        }
        // A look that took longer than the interval is not made up for.
        next = (next + interval).max(Instant::now());
        if let Some(end) = wait(&stopped, next) {
            return Ok(end.into());
        }
    }
    Ok(ExitStatus::Success.into())
}

/// Returns the table, with running and newer runs first.
fn frame(list: Result<List, String>, now: SystemTime) -> String {
    let time = local_time(now);
    match list {
        Err(error) => format!("{time}  {}\n", table::plain(&error)),
        Ok(mut list) => {
            screen::sort(&mut list);
            format!("{time}  {}", table::text(&list, size_of_terminal().0))
        }
    }
}

/// What was last told about each run.
#[derive(Debug, Default)]
struct Changes {
    told: BTreeMap<PathBuf, String>,
    failed: Option<String>,
}

impl Changes {
    /// Returns a line for each run that has changed, and for each that is no longer in the list.
    fn lines(&mut self, list: Result<List, String>, now: SystemTime) -> String {
        let time = local_time(now);
        let mut out = String::new();
        let mut say = |text: &str| out.push_str(&format!("{time} {text}\n"));
        let list = match list {
            Ok(list) => list,
            Err(error) => {
                if self.failed.as_ref() != Some(&error) {
                    say(&table::plain(&error));
                }
                self.failed = Some(error);
                return out;
            }
        };
        self.failed = None;
        let mut before = std::mem::take(&mut self.told);
        for run in &list.runs {
            let line = table::line(&list, run);
            if before.remove(&run.path).as_ref() != Some(&line) {
                say(&line);
            }
            self.told.insert(run.path.clone(), line);
        }
        let gone = if list.is_filtered { "no longer in these states, or removed" } else { "removed" };
        for path in before.keys() {
            say(&format!("{}: {gone}", table::plain(&path.display().to_string())));
        }
        out
    }
}
