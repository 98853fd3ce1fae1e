//! Checks whether every line of every rank has arrived.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result};

use super::line;

/// The lines found so far.
#[derive(Debug)]
pub(super) struct ReceivedLines {
    /// For each rank and line, whether the line was found.
    ranks: Vec<Vec<bool>>,
}

impl ReceivedLines {
    /// Creates an empty record for `ranks` ranks with `lines` lines each.
    pub(super) fn new(ranks: u32, lines: u32) -> Self {
        Self { ranks: vec![vec![false; lines as usize]; ranks as usize] }
    }

    /// Reads a stream. A line counts if it is complete and its number exceeds that of its rank's line before.
    pub(super) fn read_stream(&mut self, stream: impl io::Read) -> io::Result<()> {
        let mut reader = BufReader::with_capacity(1 << 16, stream);
        let mut last: Vec<Option<u32>> = vec![None; self.ranks.len()];
        let mut text = Vec::new();
        while reader.read_until(b'\n', &mut text)? > 0 {
            if text.pop_if(|byte| *byte == b'\n').is_some()
                && let Some((rank, index)) = read(&text)
                && let Some(last) = last.get_mut(rank as usize)
                && last.is_none_or(|last| last < index)
                && let Some(seen) = self.ranks[rank as usize].get_mut(index as usize)
            {
                *seen = true;
                *last = Some(index);
            }
            text.clear();
        }
        Ok(())
    }

    /// Reads a file.
    pub(super) fn read_file(&mut self, path: &Path) -> Result<()> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        self.read_stream(file).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Reads every standard-output log file below the folder, however the launcher names them.
    pub(super) fn read_logs(&mut self, folder: &Path) -> Result<()> {
        let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let path = entry.with_context(|| format!("cannot list {}", folder.display()))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                self.read_logs(&path)?;
            } else if name.starts_with("stdout.log") {
                self.read_file(&path)?;
            }
        }
        Ok(())
    }

    /// Returns how many lines were not found.
    pub(super) fn count_missing(&self) -> usize {
        self.ranks.iter().flatten().filter(|seen| !**seen).count()
    }
}

/// Returns rank and number of a complete line. A launcher may have put a prefix before it.
fn read(text: &[u8]) -> Option<(u32, u32)> {
    let start = text.iter().position(|byte| *byte == line::MARK)?;
    let own = std::str::from_utf8(&text[start..]).ok()?;
    let mut words = own[1..].split(' ');
    let rank = words.next()?.parse().ok()?;
    let index = words.next()?.parse().ok()?;
    (own == line::line(rank, index)).then_some((rank, index))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn lost(text: &str) -> usize {
        let mut seen = ReceivedLines::new(2, 2);
        seen.read_stream(text.as_bytes()).unwrap();
        seen.count_missing()
    }

    fn stream(prefix: &str, order: &[(u32, u32)]) -> String {
        order.iter().map(|(rank, index)| format!("{prefix}{}\n", line::line(*rank, *index))).collect()
    }

    #[test]
    fn interleaved_and_prefixed_lines_count() {
        let all = [(0, 0), (1, 0), (1, 1), (0, 1)];
        for prefix in ["", "[rank 0] ", "[default0]:"] {
            assert_eq!(lost(&stream(prefix, &all)), 0, "{prefix}");
        }
    }

    #[test]
    fn missing_torn_and_reordered_lines_are_lost() {
        assert_eq!(lost(""), 4);
        assert_eq!(lost(&stream("", &[(0, 0), (0, 1), (1, 0)])), 1);
        assert_eq!(lost(&stream("", &[(0, 1), (0, 0), (1, 0), (1, 1)])), 1);
        let whole = stream("", &[(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!(lost(whole.trim_end()), 1);
        assert_eq!(lost(&whole.replacen('\n', "", 1)), 2);
        assert_eq!(lost(&whole.replacen("loss", "lo\nss", 1)), 1);
        // Unknown ranks and line numbers do not count.
        assert_eq!(lost(&stream("", &[(7, 0), (0, 9)])), 4);
    }

    #[test]
    fn log_files_are_found_in_subfolders() {
        let folder = tempfile::tempdir().unwrap();
        for rank in 0..2 {
            let logs = folder.path().join(format!("attempt_0/rank_{rank}"));
            fs::create_dir_all(&logs).unwrap();
            fs::write(logs.join("stdout.log.1"), stream("", &[(rank, 0)])).unwrap();
            fs::write(logs.join("stdout.log"), stream("", &[(rank, 1)])).unwrap();
            fs::write(logs.join("stderr.log"), "@").unwrap();
        }
        let mut seen = ReceivedLines::new(2, 2);
        seen.read_logs(folder.path()).unwrap();
        assert_eq!(seen.count_missing(), 0);
        assert!(seen.read_logs(&folder.path().join("absent")).is_err());
    }
}
