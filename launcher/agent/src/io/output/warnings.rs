//! The warnings of dtrain's trainer in a launch: all ranks, attempts and evaluations may have the same one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Warnings that the last message names; more are only counted.
const NAMED: usize = 3;
/// Characters of a warning in the last message.
const CHARACTERS: usize = 72;
/// Different warnings that are known; a run of weeks may have others in every step. More are shown each time.
const KNOWN: usize = 1000;

/// The warnings so far. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Warnings(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// How often each came, by its text.
    counts: BTreeMap<Vec<u8>, usize>,
    /// The ranks whose latest line was a repeated warning: indented lines continue it.
    dropping: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Now,
    Before,
}

impl Warnings {
    fn known(&self) -> MutexGuard<'_, Known> {
        // The counts are consistent between any two statements, so a panic elsewhere has not broken them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a line of this rank. `warning`: its text without label, if it is one. Returns whether the user has seen it.
    pub(super) fn see(&self, rank: usize, warning: Option<&[u8]>, line: &[u8]) -> Seen {
        let mut known = self.known();
        let is_dropping = known.dropping.contains(&rank);
        let seen = match warning {
            None if is_dropping && line.starts_with(b"  ") => return Seen::Before,
            None => Seen::Now,
            Some(text) => match known.counts.get_mut(text) {
                Some(count) => {
                    *count += 1;
                    Seen::Before
                }
                None => {
                    if known.counts.len() < KNOWN {
                        known.counts.insert(text.to_vec(), 1);
                    }
                    Seen::Now
                }
            },
        };
        match seen {
            Seen::Now if is_dropping => known.dropping.retain(|other| *other != rank),
            Seen::Before if !is_dropping => known.dropping.push(rank),
            _ => {}
        }
        seen
    }

    /// Returns a sentence about the warnings that were shown once but came several times.
    pub fn repeated(&self) -> Option<String> {
        let known = self.known();
        let repeated: Vec<_> = known.counts.iter().filter(|(_, count)| **count > 1).collect();
        let named: Vec<_> = repeated.iter().take(NAMED).map(|(text, count)| quote(text, **count)).collect();
        let more = match repeated.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        (!named.is_empty()).then(|| format!("repeated warnings, each shown once: {}{more}", named.join(", ")))
    }
}

fn quote(text: &[u8], count: usize) -> String {
    let text = String::from_utf8_lossy(text);
    let dots = if text.chars().count() > CHARACTERS { "..." } else { "" };
    format!("{count} times \"{}{dots}\"", text.chars().take(CHARACTERS).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_shown_once_for_all_ranks_with_the_lines_that_continue_it() {
        let warnings = Warnings::default();
        let see = |rank, line: &str| {
            let line = line.as_bytes();
            warnings.clone().see(rank, line.strip_prefix(b"warning: "), line) == Seen::Now
        };
        assert_eq!(warnings.repeated(), None);
        assert!(see(1, "warning: slow disk") && see(1, "  at /data"));
        assert!(!see(0, "warning: slow disk") && !see(0, "  at /data") && see(1, "  more"));
        assert!(see(0, "step 1") && see(0, "  an indented line"));
        assert!(see(0, "warning: other"));
        assert_eq!(
            warnings.repeated().as_deref(),
            Some("repeated warnings, each shown once: 2 times \"slow disk\"")
        );
        for number in 0..4 {
            assert!(see(0, &format!("warning: a{number}")) && !see(0, &format!("warning: a{number}")));
        }
        assert!(
            see(0, &format!("warning: {}", "0".repeat(99)))
                && !see(2, &format!("warning: {}", "0".repeat(99)))
        );
        let text = warnings.repeated().unwrap_or_default();
        assert!(
            text.contains(&format!("\"{}...\"", "0".repeat(CHARACTERS))) && text.ends_with(", and 3 more"),
            "{text}"
        );
    }

    #[test]
    fn warnings_that_are_always_new_need_no_memory() {
        let warnings = Warnings::default();
        for step in 0..2 * KNOWN {
            let text = format!("step {step}");
            assert_eq!(warnings.see(0, Some(text.as_bytes()), b""), Seen::Now);
        }
        assert_eq!(warnings.known().counts.len(), KNOWN);
        assert_eq!(warnings.see(0, Some(b"step 0"), b""), Seen::Before);
    }
}
