//! A row of the report, and the table.

use crate::colour::{ERROR, GOOD, WARNING, first_words};
use dtrain_common::text::{counted, wrapped};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    /// Training is possible, but slower or less safe, or not on several nodes.
    Warn,
    /// Training fails.
    Fail,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) level: Level,
    /// The checked thing.
    pub(super) what: String,
    /// Its state.
    pub(super) value: String,
    /// The remedy; `None` for [`Level::Ok`].
    pub(super) remedy: Option<String>,
}

impl Row {
    pub(super) fn ok(what: &str, value: impl Into<String>) -> Self {
        Self { level: Level::Ok, what: what.into(), value: value.into(), remedy: None }
    }

    pub(super) fn warn(what: &str, value: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Warn, what: what.into(), value: value.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn fail(what: &str, value: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Fail, ..Self::warn(what, value, remedy) }
    }
}

/// Returns the table, at most `width` columns wide, with remedies below their rows.
pub(super) fn table(rows: &[Row], width: usize) -> String {
    let what = rows.iter().map(|row| row.what.chars().count()).max().unwrap_or(0);
    let indent = 4 + 2 + what + 2;
    let mut out = String::new();
    for row in rows {
        let level = match row.level {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "FAIL",
        };
        out.push_str(&format!("{level:<4}  {:<what$}  ", row.what));
        wrapped(&mut out, width, indent, indent, &row.value);
        if let Some(remedy) = &row.remedy {
            out.push_str(&" ".repeat(indent));
            wrapped(&mut out, width, indent, indent + 2, &format!("> {remedy}"));
        }
    }
    out
}

/// Returns the table with the levels in colour.
pub(super) fn coloured(table: &str) -> String {
    first_words(table, &[("ok", GOOD), ("warn", WARNING), ("FAIL", ERROR)])
}

/// Returns the last line: the numbers of failures and warnings.
pub(super) fn summary(rows: &[Row], time: Duration) -> String {
    let count = |level| rows.iter().filter(|row| row.level == level).count();
    let (failures, warnings) = (count(Level::Fail), count(Level::Warn));
    let verdict = match (failures, warnings) {
        (0, 0) => "nothing is missing".to_owned(),
        (0, _) => format!("nothing fails, {}", counted(warnings, "warning")),
        _ => format!("{}, {}", counted(failures, "failure"), counted(warnings, "warning")),
    };
    format!("{} in {:.1} s: {verdict}\n", counted(rows.len(), "check"), time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn remedies_stand_below_their_rows_and_lines_fit() {
        let rows = [
            Row::ok("GPUs", "2 x NVIDIA H200"),
            Row::warn("shared memory", "64.00 MiB in /dev/shm", "start the container with --shm-size=8g"),
            Row::fail("run directory", "cannot write to /data", "give another --run-dir"),
        ];
        let expected = "\
ok    GPUs           2 x NVIDIA H200
warn  shared memory  64.00 MiB in
                     /dev/shm
                     > start the
                       container with
                       --shm-size=8g
FAIL  run directory  cannot write to
                     /data
                     > give another
                       --run-dir
";
        assert_eq!(table(&rows, 41), expected);
        let line = |rows| summary(rows, Duration::from_millis(1234));
        assert_eq!(line(&rows), "3 checks in 1.2 s: 1 failure, 1 warning\n");
        assert_eq!(line(&rows[..2]), "2 checks in 1.2 s: nothing fails, 1 warning\n");
        assert_eq!(line(&rows[..1]), "1 check in 1.2 s: nothing is missing\n");
    }

    #[test]
    fn rows_are_json() {
        let row = Row::warn("clock", "off", "set it");
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(text, r#"{"level":"warn","what":"clock","value":"off","remedy":"set it"}"#);
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
    }
}
