//! A line of a log as a JSON object, for `--log-format json`: the launcher and its workers write the same form.

use std::borrow::Cow;
use std::str::FromStr;
use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::env::{self, DTRAIN_LOG_FORMAT};

/// The form of lines on standard error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    /// Returns the value of a worker's [`DTRAIN_LOG_FORMAT`]; other texts than `json` are plain text.
    pub fn of_process() -> Self {
        let value = env::of_process(DTRAIN_LOG_FORMAT);
        value.and_then(|value| value.parse().ok()).unwrap_or_default()
    }

    /// Returns the word of the flag and the variable.
    pub fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl FromStr for LogFormat {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = [Self::Text, Self::Json].into_iter().find(|format| format.word() == text);
        known.ok_or("give text or json")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

impl Level {
    pub fn word(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warning",
            Self::Error => "error",
        }
    }
}

/// A line. [`LogLine::to_json`] writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLine<'a> {
    /// By RFC 3339, in UTC, with milliseconds.
    pub time: Cow<'a, str>,
    pub level: Level,
    /// The worker; none for the launcher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    /// `stdout` or `stderr`, for a line that a worker wrote in another form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<Cow<'a, str>>,
    pub message: Cow<'a, str>,
    /// The values in the message, by name.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub fields: Map<String, Value>,
}

impl<'a> LogLine<'a> {
    /// Creates a line of this moment, without rank and fields.
    pub fn now(level: Level, message: impl Into<Cow<'a, str>>) -> Self {
        // A clock outside of the calendar's years still gets a line.
        let now = Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH);
        let time = now.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string().into();
        Self { time, level, rank: None, stream: None, message: message.into(), fields: Map::new() }
    }

    #[must_use]
    pub fn of_rank(self, rank: usize) -> Self {
        Self { rank: Some(rank), ..self }
    }

    #[must_use]
    pub fn with_fields(self, fields: Map<String, Value>) -> Self {
        Self { fields, ..self }
    }

    /// Returns the line if the bytes are one, such as a worker's.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        line.starts_with(b"{\"time\":").then(|| serde_json::from_slice(line).ok()).flatten()
    }

    /// Returns the object with a line feed.
    pub fn to_json(&self) -> String {
        // Cannot fail: all keys are texts.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_is_an_object_that_can_be_read_again() {
        let fields = json!({"step": 3, "loss": 0.5}).as_object().unwrap().clone();
        let line = LogLine::now(Level::Warn, "two\nlines \u{1b}[31m").of_rank(1).with_fields(fields);
        let text = line.to_json();
        assert_eq!(text.matches('\n').count(), 1);
        assert!(!text.contains('\u{1b}'));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&value["level"], &value["rank"], &value["fields"]["loss"]),
            (&"warn".into(), &1.into(), &0.5.into())
        );
        let time = value["time"].as_str().unwrap();
        assert!(
            time.parse::<Timestamp>().is_ok() && time.len() == "2026-12-01T04:05:06.789Z".len(),
            "{time}"
        );
        assert_eq!(LogLine::parse(text.trim_end().as_bytes()), Some(line));
    }

    #[test]
    fn other_objects_are_no_lines() {
        for other in [
            "",
            "{}",
            "step 1",
            r#"{"time":"a","level":"info"}"#,
            r#"{"time":"a","level":"loud","message":"m"}"#,
            r#"{"time":"a","level":"info","message":"m","more":1}"#,
            r#"{"time":"a","level":"info","message":"m"} x"#,
        ] {
            assert_eq!(LogLine::parse(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn formats_have_words() {
        for format in [LogFormat::Text, LogFormat::Json] {
            assert_eq!(format.word().parse(), Ok(format));
        }
        assert!("JSON".parse::<LogFormat>().is_err());
    }
}
