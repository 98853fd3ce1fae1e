//! The meaning of a line, or of a signal: the table in `wordings.toml`.

use super::kind::{Cause, Kind};
use crate::signals;
use serde::Deserialize;
use std::sync::LazyLock;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    wording: Vec<Wording>,
    death: Vec<Death>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wording {
    kind: Kind,
    any: Vec<String>,
    #[serde(default)]
    with: Vec<String>,
    /// Whether the line ends with one of `any`.
    #[serde(default)]
    ends: bool,
    #[serde(default)]
    peer_lost: bool,
    means: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Death {
    signals: Vec<String>,
    kind: Kind,
    means: String,
    /// How to find the place, if no stack shows it.
    find: Option<String>,
}

static TABLE: LazyLock<Table> =
    LazyLock::new(|| toml::from_str(include_str!("wordings.toml")).unwrap_or_default());

/// Returns the cause of the first entry that matches a line; if several lines match, of the last line.
pub(super) fn find(lines: &[String]) -> Option<Cause> {
    let searched = |line: &String| if is_remark(line) { String::new() } else { line.to_lowercase() };
    let small: Vec<_> = lines.iter().map(searched).collect();
    TABLE.wording.iter().find_map(|wording| {
        let at = small.iter().rposition(|line| {
            let has = |words: &[String]| words.iter().any(|word| line.contains(word));
            let ends = || wording.any.iter().any(|word| line.trim_end().ends_with(word));
            has(&wording.any) && (wording.with.is_empty() || has(&wording.with)) && (!wording.ends || ends())
        })?;
        let mut cause = Cause::new(wording.kind, filled(&wording.means, &lines[at]));
        cause.peer_lost = wording.peer_lost;
        Some(cause)
    })
}

/// Returns the meaning of a worker's death by this signal; the text shows the signal as `shown`. `place`: that of a stack among
/// the worker's last messages.
pub(super) fn death(signal: i32, shown: &str, place: Option<&str>) -> Option<Cause> {
    let name = signals::name(signal);
    let mut deaths = TABLE.death.iter();
    let death = deaths.find(|death| death.signals.contains(&name))?;
    let means = death.means.replace("{signal}", shown);
    let text = match (place, &death.find) {
        (Some(place), _) => format!("{means} (at {place})"),
        (None, Some(find)) => format!("{means}; {find}"),
        (None, None) => means,
    };
    Some(Cause::new(death.kind, text))
}

/// Replaces the names in braces by parts of the line; a name without such a part becomes empty.
fn filled(means: &str, line: &str) -> String {
    type Part = fn(&str) -> Option<String>;
    let parts: [(&str, Part); 5] = [
        ("{asked}", |line| {
            let (_, rest) = line.split_once("Tried to allocate ")?;
            Some(format!(" (allocation of {}iB failed)", rest.split_once("iB")?.0))
        }),
        ("{port}", |line| {
            let (_, rest) = line.split_once("port: ")?;
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            Some(format!(" {}", rest[..digits].parse::<u16>().ok()?))
        }),
        ("{module}", |line| {
            let (_, rest) = line.split_once("No module named ")?;
            let module = rest.trim_matches(|c: char| "'\")".contains(c));
            (!module.is_empty()).then(|| format!(" `{module}`"))
        }),
        ("{library}", |line| library(line).map(|name| format!(" {name}"))),
        ("{error}", |line| {
            let mut words = line.split(|c: char| !c.is_ascii_alphanumeric());
            let name = words.find(|word| word.starts_with("nccl") && word.ends_with("Error"))?;
            Some(format!(" with {name}"))
        }),
    ];
    parts
        .into_iter()
        .fold(means.to_owned(), |text, (name, part)| text.replace(name, &part(line).unwrap_or_default()))
}

/// Returns whether the line is a log line below error level. torch writes `[W1121 05:20:00.1 x.cpp:1] ...`,
/// perhaps after the rank; most Rust programs write ` WARN ...`, perhaps after the time; dtrain's trainer writes `warning: ...`.
fn is_remark(line: &str) -> bool {
    let behind_rank = line.strip_prefix("[rank").and_then(|rest| rest.split_once("]:"));
    let of_torch = behind_rank.map_or(line, |(_, rest)| rest);
    let level = of_torch.strip_prefix("[W").or_else(|| of_torch.strip_prefix("[I"));
    line.starts_with("warning: ")
        || level.is_some_and(|rest| rest.starts_with(|c: char| c == ' ' || c.is_ascii_digit()))
        || line.split_whitespace().take(2).any(|word| ["WARN", "INFO", "DEBUG", "TRACE"].contains(&word))
}

/// Returns the name in `... shared libraries: libx.so: cannot open ...` or `libx.so: cannot open ...`.
fn library(line: &str) -> Option<&str> {
    let after = line.split_once("shared libraries: ").and_then(|(_, rest)| rest.split(':').next());
    let before = || line.split_once(": cannot open shared object file")?.0.rsplit(' ').next();
    after.or_else(before).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_reads() {
        let table: Result<super::Table, _> = toml::from_str(include_str!("wordings.toml"));
        assert_eq!(table.map(|table| (table.wording.len(), table.death.len())), Ok((43, 9)));
    }
}
