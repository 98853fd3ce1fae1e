//! Progress of something that may take long, on standard error: one line of a terminal that changes, elsewhere a line every 10 s.
//! Nothing is shown in the first second. Of several, one within another, only the inner one is shown.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::env::DTRAIN_PROGRESS;
use crate::text::{grouped, size};

/// Time before the first line of a terminal.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two changes of a terminal's line.
const FRAME: Duration = Duration::from_millis(200);
/// Time before the first line elsewhere, and between two.
const LINE: Duration = Duration::from_secs(10);
/// Columns of a terminal of unknown width.
const COLUMNS: usize = 80;

/// Those that have not ended, in the order of their beginning.
static OPEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Such as `images`; may be empty.
    Things(&'static str),
    Bytes,
}

/// Where the lines go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    /// Frames overwrite each other in place.
    Terminal,
    /// The launcher draws text that ends with a carriage return.
    Launcher,
    Lines,
}

impl Style {
    fn detect() -> Self {
        match std::env::var(DTRAIN_PROGRESS) {
            Ok(value) if value == "terminal" => Self::Launcher,
            _ if io::stderr().is_terminal() => Self::Terminal,
            _ => Self::Lines,
        }
    }

    /// Returns when to show the line for the first time, and how often.
    fn pace(self) -> (Duration, Duration) {
        match self {
            Self::Terminal | Self::Launcher => (PATIENCE, FRAME),
            Self::Lines => (LINE, LINE),
        }
    }
}

/// The progress of one thing. Several threads may call it. Dropping it ends the line.
#[derive(Debug)]
pub struct Progress {
    shared: Option<Arc<Shared>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// In [`OPEN`].
    number: usize,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Clone, PartialEq)]
struct State {
    label: String,
    unit: Unit,
    done: u64,
    /// 0 without a known number.
    total: u64,
    has_ended: bool,
}

impl Progress {
    /// Starts the progress of something of unknown length, such as `building the model`.
    pub fn start(label: impl Into<String>) -> Self {
        Self::of(label, 0, Unit::Things(""))
    }

    /// Starts the progress of `total` units.
    pub fn of(label: impl Into<String>, total: u64, unit: Unit) -> Self {
        let state = State { label: label.into(), unit, done: 0, total, has_ended: false };
        let number = {
            let mut open = open();
            let number = open.last().map_or(0, |last| last + 1);
            open.push(number);
            number
        };
        let shared = Arc::new(Shared { number, state: Mutex::new(state), ended: Condvar::new() });
        let watched = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("progress".into()).spawn(move || watched.show(Style::detect()));
        // Without a thread there is no progress, and the work continues.
        Self { shared: Some(shared), thread: thread.ok() }
    }

    /// Works like [`start`](Self::start) on rank 0; other ranks show nothing.
    pub fn of_rank(rank: usize, label: impl Into<String>) -> Self {
        if rank == 0 { Self::start(label) } else { Self::silent() }
    }

    /// Returns a progress that shows nothing, as of ranks other than 0.
    pub fn silent() -> Self {
        Self { shared: None, thread: None }
    }

    /// Adds finished units.
    pub fn add(&self, units: u64) {
        if let Some(shared) = &self.shared {
            shared.lock().done += units;
        }
    }

    /// Sets what is done, of how many, and of what.
    pub fn set(&self, label: impl Into<String>, done: u64, total: u64) {
        if let Some(shared) = &self.shared {
            let mut state = shared.lock();
            (state.label, state.done, state.total) = (label.into(), done, total);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.lock().has_ended = true;
            shared.ended.notify_all();
            open().retain(|number| *number != shared.number);
        }
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether another has begun since, and has not ended.
    fn is_covered(&self) -> bool {
        open().last().is_some_and(|last| *last != self.number)
    }

    /// Shows the progress until its end.
    fn show(&self, style: Style) {
        let (begun, (mut next, every)) = (Instant::now(), style.pace());
        let mut is_drawn = false;
        let mut state = self.lock();
        while !state.has_ended {
            let elapsed = begun.elapsed();
            if elapsed < next {
                state = match self.ended.wait_timeout(state, next - elapsed) {
                    Ok((state, _)) => state,
                    Err(error) => error.into_inner().0,
                };
                continue;
            }
            next = elapsed + every;
            if self.is_covered() {
                continue;
            }
            let text = line(&state, elapsed);
            // Nobody waits for a slow terminal.
            drop(state);
            is_drawn = true;
            print(&match style {
                Style::Terminal => format!("\r\x1b[K{}", cut(&text, columns())),
                Style::Launcher => format!("{text}\r"),
                Style::Lines => format!("{text}\n"),
            });
            state = self.lock();
        }
        drop(state);
        if is_drawn && style == Style::Terminal {
            print("\r\x1b[K");
        }
    }
}

fn open() -> MutexGuard<'static, Vec<usize>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the line, such as `checked images in train: 12,000 of 50,000 (24%), 7 s`.
fn line(state: &State, elapsed: Duration) -> String {
    let State { label, unit, done, total, .. } = state;
    let seconds = elapsed.as_secs();
    let number = |value: u64| match unit {
        Unit::Things(_) => grouped(value),
        Unit::Bytes => size(value),
    };
    let things = match unit {
        Unit::Things("") | Unit::Bytes => String::new(),
        Unit::Things(things) => format!(" {things}"),
    };
    match (*done, *total) {
        (0, 0) => format!("{label}: {seconds} s"),
        (done, 0) => format!("{label}: {}{things}, {seconds} s", number(done)),
        (done, total) => {
            let percent = done.saturating_mul(100) / total;
            format!("{label}: {} of {}{things} ({percent}%), {seconds} s", number(done), number(total))
        }
    }
}

fn columns() -> usize {
    match rustix::termios::tcgetwinsize(io::stderr()) {
        Ok(size) if size.ws_col > 0 => size.ws_col.into(),
        _ => COLUMNS,
    }
}

/// Cuts a line to the terminal: a wrapped one cannot be redrawn.
fn cut(text: &str, columns: usize) -> String {
    text.chars().take(columns.saturating_sub(1)).collect()
}

/// Writes to standard error; a closed one must not end the work.
fn print(text: &str) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn state(done: u64, total: u64, unit: Unit) -> State {
        State { label: "reading".to_owned(), unit, done, total, has_ended: false }
    }

    #[test]
    fn a_line_says_what_is_known() {
        let seven = Duration::from_millis(7_900);
        let shown = |done, total, unit| line(&state(done, total, unit), seven);
        assert_eq!(shown(0, 0, Unit::Bytes), "reading: 7 s");
        assert_eq!(shown(12, 0, Unit::Things("samples")), "reading: 12 samples, 7 s");
        assert_eq!(shown(12_000, 50_000, Unit::Things("")), "reading: 12,000 of 50,000 (24%), 7 s");
        assert_eq!(shown(1 << 30, 1 << 32, Unit::Bytes), "reading: 1.00 GiB of 4.00 GiB (25%), 7 s");
    }

    #[test]
    fn pipes_get_at_most_a_line_in_ten_seconds_and_terminals_one_after_a_second() {
        assert_eq!(Style::Lines.pace(), (Duration::from_secs(10), Duration::from_secs(10)));
        assert_eq!(Style::Terminal.pace().0, Duration::from_secs(1));
        assert_eq!(cut("abcdef", 4), "abc");
    }

    #[test]
    fn an_inner_one_covers_the_outer_one() {
        let [outer, inner] = ["outer", "inner"].map(Progress::start);
        let is_covered = |progress: &Progress| progress.shared.as_ref().unwrap().is_covered();
        assert!(is_covered(&outer));
        let number = inner.shared.as_ref().unwrap().number;
        drop(inner);
        // Other tests begin others meanwhile.
        let open = open();
        assert!(!open.contains(&number) && open.contains(&outer.shared.as_ref().unwrap().number));
    }

    #[test]
    fn it_ends_at_once() {
        let begun = Instant::now();
        let progress = Progress::start("waiting");
        progress.add(3);
        progress.set("counting", 3, 4);
        drop(progress);
        drop(Progress::silent());
        assert!(begun.elapsed() < PATIENCE);
    }
}
