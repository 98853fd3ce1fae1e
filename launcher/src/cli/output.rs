//! The flags for the workers' output, with torchrun's names and meaning. `plan::routing` combines them.

use super::numbers::whole;
use clap::{ArgAction, Args};
use dtrain_agent::io::output::Stream;
use dtrain_common::log_line::LogFormat;
use dtrain_common::units::ByteSize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Smaller logs would hold only a few lines.
const SMALLEST_LOG: u64 = 4096;

/// The flags for output.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct OutputArgs {
    /// Log folder for a program without --run-dir.
    #[arg(long, value_name = "DIR")]
    pub(crate) log_dir: Option<PathBuf>,

    /// Only log: 0 nothing, 1 stdout, 2 stderr, 3 both.
    ///
    /// N for all workers, or `LOCAL_RANK:N,...` for some.
    #[arg(short, long, value_name = "N|RANK:N,...", allow_negative_numbers = true, value_parser = choice)]
    pub(crate) redirects: Option<Choice>,

    /// Show and log: values as for --redirects.
    #[arg(short, long, value_name = "N|RANK:N,...", allow_negative_numbers = true, value_parser = choice)]
    pub(crate) tee: Option<Choice>,

    /// Show only these local ranks, such as `0,2`; log all.
    #[arg(long, value_name = "RANK,...", allow_negative_numbers = true, value_delimiter = ',', num_args = 1,
          action = ArgAction::Set, value_parser = listed)]
    pub(crate) local_ranks_filter: Option<Vec<usize>>,

    /// Prefix of shown lines [default: '[rank ${rank}] ' for several workers].
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = PrefixTemplate::new)]
    pub(crate) log_line_prefix_template: Option<PrefixTemplate>,

    /// Copy shown stdout lines with these texts to filtered_stdout.log.
    #[arg(long, value_name = "TEXT,...", allow_hyphen_values = true, value_parser = filters)]
    pub(crate) duplicate_stdout_filters: Option<FilterList>,

    /// Copy shown stderr lines with these texts to filtered_stderr.log.
    #[arg(long, value_name = "TEXT,...", allow_hyphen_values = true, value_parser = filters)]
    pub(crate) duplicate_stderr_filters: Option<FilterList>,

    /// Rotate log files at this size; 0: never [default: 1 GiB].
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, value_parser = log_size)]
    pub(crate) log_max_size: Option<u64>,

    /// Lines on standard error: `text`, or `json`, an object each [default: text].
    #[arg(long, value_name = "text|json")]
    pub(crate) log_format: Option<LogFormat>,
}

impl OutputArgs {
    /// Returns the form of lines on standard error.
    pub(crate) fn format(&self) -> LogFormat {
        self.log_format.unwrap_or_default()
    }
}

/// Streams by worker, in torchrun's numbers: the sum of 1 for standard output and 2 for standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The same for all workers.
    All(u8),
    /// By local rank; no stream of ranks not named.
    Ranks(BTreeMap<usize, u8>),
}

impl Choice {
    /// Returns whether this stream is chosen.
    pub(crate) fn takes(&self, local_rank: usize, stream: Stream) -> bool {
        let pick = match self {
            Self::All(pick) => *pick,
            Self::Ranks(picks) => picks.get(&local_rank).copied().unwrap_or_default(),
        };
        pick & (1 << stream.index()) != 0
    }

    pub(crate) fn named(&self) -> Vec<usize> {
        match self {
            Self::All(_) => Vec::new(),
            Self::Ranks(picks) => picks.keys().copied().collect(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilterList(pub(crate) Vec<String>);

/// A prefix of shown lines, with names to replace: `${rank}` or `$rank`; `$$` is a dollar sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrefixTemplate(String);

/// The values of the names for one worker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PrefixValues<'a> {
    pub(crate) role_name: &'a str,
    pub(crate) local_rank: usize,
    pub(crate) rank: usize,
    pub(crate) hostname: &'a str,
}

impl PrefixTemplate {
    /// Checks the text. Errors: an unknown name, or a line break.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        if text.contains(['\n', '\r']) {
            return Err("the prefix must not contain a line break".into());
        }
        expand(text, &PrefixValues::default()).map(|_| Self(text.to_owned()))
    }

    /// Returns the prefix of the worker with these values.
    pub(crate) fn fill(&self, values: &PrefixValues<'_>) -> String {
        expand(&self.0, values).unwrap_or_default()
    }
}

fn expand(text: &str, values: &PrefixValues<'_>) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        filled.push_str(before);
        let (name, after) = match after.strip_prefix('{') {
            _ if after.starts_with('$') => ("$", &after[1..]),
            Some(inner) => inner.split_once('}').ok_or("a `${` has no `}`")?,
            None => {
                let of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                let end = after.bytes().position(|byte| !of_a_name(byte));
                after.split_at(end.unwrap_or(after.len()))
            }
        };
        match name {
            "$" => filled.push('$'),
            "role_name" => filled.push_str(values.role_name),
            "local_rank" => filled.push_str(&values.local_rank.to_string()),
            "rank" => filled.push_str(&values.rank.to_string()),
            "hostname" => filled.push_str(values.hostname),
            _ => {
                return Err(format!(
                    "unknown name `${{{name}}}`; use ${{role_name}}, ${{local_rank}}, ${{rank}}, ${{hostname}}, or $$ \
                     for a dollar sign"
                ));
            }
        }
        rest = after;
    }
    Ok(filled + rest)
}

fn listed(word: &str) -> Result<usize, &'static str> {
    whole(word.trim()).ok_or("give local ranks, separated by commas, such as 0,2")
}

fn choice(text: &str) -> Result<Choice, String> {
    let pick = |word: &str| whole::<u8>(word).filter(|pick| word.len() == 1 && *pick <= 3);
    if let Some(pick) = pick(text) {
        return Ok(Choice::All(pick));
    }
    let mut picks = BTreeMap::new();
    for word in text.split(',') {
        let parts = word.split_once(':');
        let (local_rank, pick) = parts
            .and_then(|(local_rank, word)| Some((whole(local_rank.trim())?, pick(word.trim())?)))
            .ok_or(
                "give 0 (none), 1 (standard output), 2 (standard error) or 3 (both), or one of them for each local \
                 rank, such as 0:3,1:2",
            )?;
        if picks.insert(local_rank, pick).is_some() {
            return Err(format!("local rank {local_rank} is named twice"));
        }
    }
    Ok(Choice::Ranks(picks))
}

/// Parses `apple,orange`, with `,,` for a comma within a text.
fn filters(text: &str) -> Result<FilterList, &'static str> {
    let mut filters = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character == ',' && characters.next_if_eq(&',').is_none() {
            filters.push(String::new());
        } else if let Some(filter) = filters.last_mut() {
            filter.push(character);
        }
    }
    if filters.iter().any(String::is_empty) {
        return Err("a filter is empty and would match every line; write `,,` for a comma within a text");
    }
    if text.contains(['\n', '\r']) {
        return Err("a filter must not contain a line break");
    }
    Ok(FilterList(filters))
}

fn log_size(text: &str) -> Result<u64, String> {
    match text.parse::<ByteSize>().map_err(|error| error.to_string())?.0 {
        0 => Ok(u64::MAX),
        size if size < SMALLEST_LOG => Err("give at least 4 KiB, or 0 for no limit".into()),
        size => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_choice_is_one_number_for_all_or_one_for_each_named_rank() {
        for (text, picked) in
            [("0", [false, false]), ("1", [true, false]), ("2", [false, true]), ("3", [true, true])]
        {
            let all = choice(text).unwrap();
            assert_eq!(Stream::BOTH.map(|stream| all.takes(7, stream)), picked);
            assert!(all.named().is_empty());
        }
        let some = choice("0:1, 12:2").unwrap();
        assert!(some.takes(0, Stream::Stdout) && !some.takes(0, Stream::Stderr));
        assert!(some.takes(12, Stream::Stderr) && !some.takes(1, Stream::Stdout));
        assert_eq!(some.named(), [0, 12]);
        assert_eq!(choice("0:1,0:2").unwrap_err(), "local rank 0 is named twice");
        for wrong in ["", "4", "-1", "03", "all", "0:", ":1", "0:4", "0:1,", "0:1;1:1", "0:1:1", "x:1", "1,2"]
        {
            assert!(choice(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_rank_is_digits_alone() {
        assert_eq!((listed(" 0"), listed("12 ")), (Ok(0), Ok(12)));
        for wrong in ["", "a", "-1", "+1", "0-2", "1.0", "99999999999999999999"] {
            assert!(listed(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn two_commas_are_one_within_a_filter_and_no_filter_is_empty() {
        for (text, list) in [
            ("loss", &["loss"][..]),
            ("apple,an orange", &["apple", "an orange"]),
            ("a,,b,c", &["a,b", "c"]),
            ("a,,,b", &["a,", "b"]),
            (",,", &[","]),
        ] {
            assert_eq!(filters(text).unwrap().0, list);
        }
        for wrong in ["", ",", "a,", ",a", "a, ,,,", "a\nb"] {
            assert!(filters(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_log_size_has_a_least_value_and_0_is_no_bound() {
        assert_eq!(log_size("0"), Ok(u64::MAX));
        assert_eq!(log_size("1 GiB"), Ok(1 << 30));
        assert_eq!(log_size("4096"), Ok(4096));
        for wrong in ["", "4095", "1 byte", "-1", "much"] {
            assert!(log_size(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_names_of_a_prefix_are_filled_in() {
        let values = PrefixValues { role_name: "trainer", local_rank: 1, rank: 9, hostname: "node-a" };
        for (text, filled) in [
            ("", ""),
            ("[${rank}] ", "[9] "),
            ("$role_name-$local_rank:", "trainer-1:"),
            ("${hostname}$$$rank", "node-a$9"),
            ("cost $$5 ", "cost $5 "),
        ] {
            assert_eq!(PrefixTemplate::new(text).unwrap().fill(&values), filled);
        }
        for wrong in ["$", "${rank", "${}", "$ranks", "${host}", "a\nb", "a\r"] {
            assert!(PrefixTemplate::new(wrong).is_err(), "{wrong:?}");
        }
        assert!(PrefixTemplate::new("${host}").unwrap_err().contains("unknown name `${host}`"));
    }

    proptest! {
        #[test]
        fn no_text_breaks_a_parser(text in "[$a{}_rnk é0-4:, x+-]{0,16}") {
            let _ = (choice(&text), listed(&text), filters(&text), log_size(&text), PrefixTemplate::new(&text));
        }
    }
}
