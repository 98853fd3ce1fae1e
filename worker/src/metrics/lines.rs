//! Lines on standard error: the log, notes and errors, as text or as JSON objects.

use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::sync::OnceLock;

use anstyle::{AnsiColor, Style};
use dtrain_common::env::{self, RANK};
use dtrain_common::log_line::{Level, LogFormat, LogLine};
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const ERROR: Style = AnsiColor::Red.on_default().bold();

/// Known after the worker has found its place among the ranks.
static OWN_RANK: OnceLock<usize> = OnceLock::new();

/// Sends the log to standard error. Called once, first.
pub(crate) fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = Lines { format: LogFormat::of_process() };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(has_colours())
        .event_format(lines)
        .init();
}

/// Gives later lines this rank.
pub(crate) fn set_rank(rank: usize) {
    let _ = OWN_RANK.set(rank);
}

/// Prints an error that ends the worker.
pub(crate) fn error(message: &str) {
    let line = match LogFormat::of_process() {
        LogFormat::Json => of_own_rank(LogLine::now(Level::Error, message)).to_json(),
        LogFormat::Text => coloured(&format!("error: {message}")) + "\n",
    };
    print(&line);
}

/// Prints a note as an object.
pub(crate) fn print_json(text: &str, fields: Map<String, Value>) {
    let line = match text.strip_prefix("warning: ") {
        Some(warning) => LogLine::now(Level::Warn, warning),
        None => LogLine::now(Level::Info, text),
    };
    print(&of_own_rank(line).with_fields(fields).to_json());
}

/// Returns the text with labels in colour, if standard error shows colours. The launcher colours the lines of its workers
/// itself.
pub(crate) fn coloured(text: &str) -> String {
    if has_colours() { labelled(text) } else { text.to_owned() }
}

/// Returns the text with the labels of its lines in colour.
pub(crate) fn labelled(text: &str) -> String {
    let line = |line: &str| {
        let label = |label: &str, style: Style| {
            let rest = line.strip_prefix(label)?;
            Some(format!("{style}{label}{style:#}{rest}"))
        };
        label("warning:", WARNING).or_else(|| label("error:", ERROR)).unwrap_or_else(|| line.to_owned())
    };
    text.split_inclusive('\n').map(line).collect()
}

fn has_colours() -> bool {
    anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never
}

fn of_own_rank(line: LogLine<'_>) -> LogLine<'_> {
    let by_environment = || env::of_process(RANK)?.parse().ok();
    LogLine { rank: OWN_RANK.get().copied().or_else(by_environment), ..line }
}

/// Ignores errors: a closed reader must not end a training.
fn print(line: &str) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(line.as_bytes());
    let _ = out.flush();
}

/// Formats the events of the log.
struct Lines {
    format: LogFormat,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut values = Values::default();
        event.record(&mut values);
        let level = level(*event.metadata().level());
        if self.format == LogFormat::Json {
            return out.write_str(&values.line(level).to_json());
        }
        writeln!(out, "{}", coloured(&values.text(level)))
    }
}

fn level(level: tracing::Level) -> Level {
    match level {
        tracing::Level::TRACE => Level::Trace,
        tracing::Level::DEBUG => Level::Debug,
        tracing::Level::INFO => Level::Info,
        tracing::Level::WARN => Level::Warn,
        tracing::Level::ERROR => Level::Error,
    }
}

/// The message of an event, and its other values.
#[derive(Default)]
struct Values {
    message: String,
    fields: Map<String, Value>,
}

impl Values {
    fn line(self, level: Level) -> LogLine<'static> {
        of_own_rank(LogLine::now(level, self.message)).with_fields(self.fields)
    }

    /// Returns the text of a line. Further lines of the message are indented, as the launcher expects.
    fn text(&self, level: Level) -> String {
        let mut text = match level {
            Level::Info => String::new(),
            _ => format!("{}: ", level.word()),
        };
        text.push_str(&self.message.trim_end().replace('\n', "\n  "));
        for (name, value) in &self.fields {
            // Cannot fail.
            let _ = write!(text, " {name}={value}");
        }
        text
    }

    fn add(&mut self, field: &Field, value: Value) {
        self.fields.insert(field.name().to_owned(), value);
    }
}

impl Visit for Values {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            _ => self.add(field, format!("{value:?}").into()),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_event_has_its_level_and_continues_indented() {
        let values = Values { message: "slow disk:\nat /data\n".into(), fields: Map::new() };
        assert_eq!(values.text(Level::Warn), "warning: slow disk:\n  at /data");
        assert_eq!(values.text(Level::Info), "slow disk:\n  at /data");
        let line = values.line(Level::Debug);
        assert_eq!((line.level, line.message.as_ref()), (Level::Debug, "slow disk:\nat /data\n"));
    }
}
