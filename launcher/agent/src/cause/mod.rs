//! The cause of a worker's failure, from its exit, its last messages and the system.
//!
//! [`cause`] is a pure function of [`Evidence`]; [`to_blame`] picks the worker that failed first and not as a
//! consequence. A likely cause is worded as likely; an unknown cause is not guessed.

mod blame;
mod kind;
mod messages;
mod python;
mod wording;

#[cfg(test)]
mod tests;

pub use blame::{Suspect, to_blame};
pub use kind::{Cause, Evidence, Kind, MemoryKill};
pub use messages::{error_message, shortened};

use crate::local::Outcome;
use crate::signals;
use python::Exception;
use rustix::process::Signal;

/// Lines of standard error, counted from the last, that are searched if there is no traceback.
const SEARCHED: usize = 40;
/// Characters of a program's own message that are quoted.
const QUOTED: usize = 300;

/// Returns the cause of the worker's failure, if it can be known.
pub fn cause(evidence: &Evidence<'_>) -> Option<Cause> {
    let stderr: Vec<_> = evidence.stderr.iter().map(|line| messages::plain(line)).collect();
    let reported = evidence.error_file.map(messages::reported).unwrap_or_default();
    let death = Death::of(evidence);
    let names_killed_child = |line: &String| {
        line.contains("is killed by signal: Killed") || line.split_whitespace().any(|word| word == "Killed")
    };
    if let Some(how) = evidence.memory_kill
        && (death.is(Signal::KILL) || stderr.iter().any(names_killed_child))
    {
        return Some(killed_for_memory(how, &death));
    }
    // The stack of another death is an earlier one, which the program has printed itself.
    let crashes = [Signal::SEGV, Signal::BUS, Signal::FPE, Signal::ILL, Signal::ABORT];
    let place = crashes.into_iter().any(|signal| death.is(signal)).then(|| python::crash(&stderr)).flatten();
    let place = place.map(|place| quoted(&place.to_string()));
    let worded = |signal| wording::death(signal, &death.describe(), place.as_deref());
    if let Some(cause) = death.signal.and_then(worded) {
        return Some(cause);
    }
    let aborted = death.is(Signal::ABORT);
    let what = if aborted { find_cpp_message(&stderr) } else { None };
    what.and_then(wording::find)
        .or_else(|| by_exception(&reported, evidence.sent))
        .or_else(|| wording::find(&reported))
        .or_else(|| by_exception(&stderr, evidence.sent))
        // After a signal from the launcher, a worker's messages may only be about that signal.
        .or_else(|| match evidence.sent {
            [] => wording::find(&stderr[stderr.len().saturating_sub(SEARCHED)..]),
            _ => None,
        })
        .or_else(|| aborted.then(|| abort(what, &death, place.as_deref())))
}

/// The signal that a worker died of, if the launcher had not sent it.
struct Death {
    signal: Option<i32>,
    /// Whether the worker is or acts like a shell: its exit code means that its child died of the signal.
    in_shell: bool,
}

impl Death {
    fn of(evidence: &Evidence<'_>) -> Self {
        let (signal, in_shell) = match evidence.outcome {
            Outcome::Signaled(signal) => (Some(signal), false),
            Outcome::Exited(code @ 129..=159) => (Some(code - 128), true),
            Outcome::Exited(_) | Outcome::Lost => (None, false),
        };
        Self { signal: signal.filter(|signal| !evidence.sent.contains(signal)), in_shell }
    }

    fn is(&self, signal: Signal) -> bool {
        self.signal == Some(signal.as_raw())
    }

    /// Returns the start of a text about the signal.
    fn describe(&self) -> String {
        let signal = self.signal.unwrap_or_default();
        let name = signals::name(signal);
        match self.in_shell {
            true => format!("probably {name} (exit code {}, as in a shell)", signal + 128),
            false => name,
        }
    }
}

fn killed_for_memory(how: MemoryKill, death: &Death) -> Cause {
    let what = if death.is(Signal::KILL) && !death.in_shell {
        "the worker"
    } else {
        "a child process of the worker"
    };
    let text = match how {
        MemoryKill::Logged => {
            format!("the kernel killed {what} because memory ran out (source: the kernel's log)")
        }
        MemoryKill::Group => format!(
            "the kernel killed {what} because memory ran out: its control group counted such a kill during the run"
        ),
        MemoryKill::Machine => format!(
            "probably the kernel killed {what} because memory ran out: the machine counted such a kill during the run"
        ),
    };
    let remedy = "give the job more memory, or use fewer workers, smaller batches or fewer loader processes";
    Cause::new(Kind::OutOfMemoryKilled, format!("{text}; {remedy}"))
}

/// Returns the cause that the last traceback names.
fn by_exception(lines: &[String], sent: &[i32]) -> Option<Cause> {
    let chain = python::exceptions(lines);
    let last = chain.first()?;
    if !sent.is_empty() && is_stop_message(last) {
        return None;
    }
    // An earlier exception of the chain may have a better wording than the last.
    let worded = chain.iter().find_map(|exception| {
        // Lines after the first may come from elsewhere: they only refine the meaning of the first line.
        let near = exception.lines.chunks(python::SEARCHED_LINES).next()?;
        wording::find(&near[..1])?;
        Some((wording::find(near)?, exception))
    });
    let (mut cause, exception) = worded.unwrap_or_else(|| {
        let text = format!("the program raised {}", quoted(&last.summary()));
        (Cause::new(Kind::PythonException, text), last)
    });
    cause.text = format!("{} (at {})", cause.text, quoted(&exception.place.to_string()));
    Some(cause)
}

/// Returns whether the exception is only the program's reaction to the launcher's signal.
fn is_stop_message(exception: &Exception) -> bool {
    let names = ["KeyboardInterrupt", "SystemExit", "SignalException"];
    let words = ["signal: Terminated", "SIGTERM", "signal 15"];
    let mut lines = exception.lines.iter();
    names.contains(&exception.name.as_str()) || lines.any(|line| words.iter().any(|word| line.contains(word)))
}

/// Returns a C++ program's message about its exception: `terminate called ...`, `  what():  ...`.
fn find_cpp_message(lines: &[String]) -> Option<&[String]> {
    let is_first = |line: &String| line.starts_with("terminate called");
    Some(&lines[lines.iter().rposition(is_first)?..])
}

fn abort(what: Option<&[String]>, death: &Death, place: Option<&str>) -> Cause {
    let mut lines = what.into_iter().flatten();
    let message = lines.find_map(|line| line.trim_start().strip_prefix("what():"));
    let native = ", usually native code after an error";
    let more = match (message, place) {
        (Some(message), _) => format!(" with the message: {}", quoted(message.trim())),
        (None, Some(place)) => format!("{native} (at {place})"),
        (None, None) => format!("{native}; see its last lines"),
    };
    Cause::new(Kind::Abort, format!("{}: the program ended itself{more}", death.describe()))
}

fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.to_owned(),
    }
}
