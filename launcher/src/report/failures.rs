//! The attempts of a run, and what failed in them.

use std::fs;

use dtrain_common::run_dir::{AttemptRecord, RunDir};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::runs::files::json;
use crate::times::time_value;

/// Attempts and ranks whose errors are read: a page needs no more.
const ATTEMPTS: usize = 50;
/// Numbers of attempts that are looked for: a number may be missing.
const LOOKS: usize = 5000;
const RANKS: usize = 4096;
/// Errors that are shown of an attempt. The others repeat them in most cases.
const ERRORS: usize = 4;
/// The longest message, in characters.
const LONGEST: usize = 4000;

/// torchrun's form of `error.json`.
#[derive(Deserialize)]
struct ErrorFile {
    message: Message,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Message {
    Plain(String),
    Object { message: String },
}

/// An attempt, with the launcher's process, which tells a restart from a resume.
pub(super) struct Attempt {
    pub(super) number: u32,
    pub(super) record: AttemptRecord,
    errors: Vec<(usize, String)>,
    /// Errors that are not shown.
    more: usize,
}

/// Reads the newest attempts, in their order.
pub(super) fn attempts(run_dir: &RunDir) -> Vec<Attempt> {
    let newest = run_dir.newest_attempt().ok().flatten();
    let Some(newest) = newest else { return Vec::new() };
    let numbers = (0..=newest).rev().take(LOOKS).filter(|number| run_dir.attempt(*number).is_dir());
    let mut attempts: Vec<_> = numbers.take(ATTEMPTS).map(|number| Attempt::read(run_dir, number)).collect();
    attempts.reverse();
    attempts
}

impl Attempt {
    fn read(run_dir: &RunDir, number: u32) -> Self {
        let record = json(&AttemptRecord::path(&run_dir.attempt(number))).ok().flatten().unwrap_or_default();
        let mut ranks: Vec<usize> = fs::read_dir(run_dir.attempt(number)).map_or(Vec::new(), |entries| {
            let names = entries.flatten().take(RANKS).map(|entry| entry.file_name());
            names.filter_map(|name| name.to_str()?.strip_prefix("rank_")?.parse().ok()).collect()
        });
        ranks.sort_unstable();
        let error = |rank: usize| {
            let file = json::<ErrorFile>(&run_dir.rank_logs(number, rank).join("error.json")).ok()??;
            let message = match file.message {
                Message::Plain(message) | Message::Object { message } => message,
            };
            Some((rank, message.chars().take(LONGEST).collect()))
        };
        let mut errors: Vec<_> = ranks.into_iter().filter_map(error).collect();
        let more = errors.len().saturating_sub(ERRORS);
        errors.truncate(ERRORS);
        Self { number, record, errors, more }
    }

    /// Returns whether the same launcher started the attempt before: a restart, else a resume.
    pub(super) fn is_restart_of(&self, before: &Self) -> bool {
        let process = |record: &AttemptRecord| {
            (record.pid, record.started, record.host.clone(), record.namespace.clone())
        };
        self.record.pid > 0 && process(&self.record) == process(&before.record)
    }

    pub(super) fn object(&self) -> Value {
        let record = &self.record;
        json!({
            "number": self.number,
            "began": time_value(record.began()),
            "host": record.host,
            "nproc": record.nproc,
            "nodes": record.nodes,
            "job": record.job,
            "errors": self.errors.iter().map(|(rank, text)| json!({"rank": rank, "text": text})).collect::<Vec<_>>(),
            "more": self.more,
        })
    }
}
