//! Reports logs that could not be written: at the failure, and again at the end of the run.

use super::message::Message;
use crossbeam_channel::Sender;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Logs named in the report; more logs are only counted.
const NAMED: usize = 4;

/// The logs given up during a run. Clones share the list.
#[derive(Clone, Debug)]
pub struct FailedLogs {
    notices: Sender<Message>,
    logs: Arc<Mutex<Vec<(PathBuf, String)>>>,
}

impl FailedLogs {
    pub fn new(notices: Sender<Message>) -> Self {
        Self { notices, logs: Arc::default() }
    }

    /// Reports that the log at `path` is given up because of `error`, and the consequence.
    pub(super) fn add(&self, path: &Path, error: &io::Error, consequence: &str) {
        let text = format!("dtrain: cannot write {}: {error}; {consequence}", path.display());
        // Fails only if the screen was given up.
        let _ = self.notices.send(Message::warning(text));
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        logs.push((path.to_owned(), error.to_string()));
    }

    /// Returns the message for the end of the run; `None` if all logs are complete.
    pub fn report(&self) -> Option<String> {
        let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let named = logs.iter().take(NAMED);
        let named: Vec<_> = named.map(|(path, error)| format!("{} ({error})", path.display())).collect();
        let more = match logs.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let what = if logs.len() == 1 { "log" } else { "logs" };
        (!named.is_empty()).then(|| format!("dtrain: incomplete {what}: {}{more}", named.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn failed_logs_are_reported_twice() {
        let (sender, notices) = crossbeam_channel::unbounded();
        let failed_logs = FailedLogs::new(sender);
        assert_eq!(failed_logs.report(), None);
        let full = io::Error::from(io::ErrorKind::StorageFull);
        failed_logs.clone().add(Path::new("a.log"), &full, "it is gone");
        assert_eq!(
            notices.try_recv().unwrap().text(),
            format!("dtrain: cannot write a.log: {full}; it is gone")
        );
        assert_eq!(failed_logs.report().unwrap(), format!("dtrain: incomplete log: a.log ({full})"));
        for name in ["b", "c", "d", "e", "f"] {
            failed_logs.add(Path::new(name), &full, "");
        }
        let report = failed_logs.report().unwrap();
        assert!(report.starts_with("dtrain: incomplete logs: a.log") && report.ends_with(" and 2 more"));
    }
}
