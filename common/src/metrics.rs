//! The lines of `metrics.jsonl`.
//!
//! Steps' own lines are in the order of the steps. Before the line of a step are only lines of that step and earlier ones,
//! so what follows from a step is found from the end of the file, without reading the rest.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;

use crate::files;

/// Bytes of the first read from the end of the file; later ones double.
const FIRST_READ: u64 = 1 << 16;

/// Fields of an evaluation's line that are no figures of the model.
pub const NO_FIGURES: [&str; 7] = ["step", "epoch", "samples", "unreadable", "eval_ms", "best", "set"];

/// Fields of a test's line and of a run's result that no figure may have as its name.
pub const RESERVED: [&str; 6] = ["loss", "checkpoint", "weights", "batch", "train_loss", "peak_memory_bytes"];

/// Keys of lines other than a step's, and the field of their step; for a rollback the step it returned to.
const INNER: [(&str, &str); 5] =
    [("eval", "step"), ("stage", "step"), ("oom", "step"), ("checkpoint", "step"), ("rollback", "to")];

/// Formats a figure for people; shares are in percent.
pub fn figure(name: &str, value: f64) -> String {
    match name {
        "mean_iou" => format!("{:.2}%", value * 100.0),
        _ if name.ends_with("accuracy") => format!("{:.2}%", value * 100.0),
        _ => format!("{value:.4}"),
    }
}

/// Returns the step of a line; `None` for a cut-off line, and for a test, which every finished run repeats.
pub fn step_of(line: &[u8]) -> Option<u64> {
    let value: Value = serde_json::from_slice(line).ok()?;
    // A step's own line has its stage's name under the key `stage`, and its step at the top level.
    let inner = INNER.into_iter().find_map(|(key, step)| value.get(key)?.get(step));
    inner.or_else(|| value.get("step"))?.as_u64()
}

/// Splits the lines into those of steps up to `last`, and all others; each keeps its line break.
pub fn split(text: &[u8], last: u64) -> (Vec<u8>, Vec<u8>) {
    let (settled, rest) = text.split_at(settled(text, last).unwrap_or(0));
    let (mut kept, mut others) = (settled.to_vec(), Vec::new());
    for line in rest.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let side = match step_of(line) {
            Some(step) if step <= last => &mut kept,
            _ => &mut others,
        };
        side.extend_from_slice(line);
        side.push(b'\n');
    }
    (kept, others)
}

/// Returns where in the file lines begin that may be of steps after `last`, and these lines, split as by [`split`]. The
/// lines before are not read.
pub fn split_end(file: &mut File, last: u64) -> io::Result<(u64, Vec<u8>, Vec<u8>)> {
    let (begin, rest) = unsettled(file, last)?;
    let (kept, others) = split(&rest, last);
    Ok((begin, kept, others))
}

/// Returns whether the file ends with these bytes.
pub fn ends_with(file: &File, end: &[u8]) -> io::Result<bool> {
    let Some(begin) = file.metadata()?.len().checked_sub(end.len() as u64) else { return Ok(false) };
    let mut last = vec![0; end.len()];
    file.read_exact_at(&mut last, begin)?;
    Ok(last == end)
}

/// Removes from the file what a run that continues after step `last` writes again: lines of later steps, tests, an
/// incomplete last line, and the evaluation after `last` if it `is_repeated`. Nothing happens without the file.
pub fn drop_later(path: &Path, last: u64, is_repeated: bool) -> io::Result<()> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    let Some(mut file) = files::none_if_missing(opened)? else { return Ok(()) };
    // The evaluation after `last` is behind the line of an earlier step.
    let (begin, rest) = unsettled(&mut file, last.saturating_sub(1))?;
    let drops = |line: &[u8]| is_repeated && line.starts_with(b"{\"eval\":") && step_of(line) == Some(last);
    let kept = split(&rest, last).0;
    let kept: Vec<&[u8]> = kept.split_inclusive(|byte| *byte == b'\n').filter(|line| !drops(line)).collect();
    let kept = kept.concat();
    if kept == rest {
        return Ok(());
    }
    if !rest.starts_with(&kept) {
        // After a crash here, lines are there twice, and none is lost.
        file.write_all_at(&kept, begin)?;
        files::sync(&file)?;
    }
    file.set_len(begin + kept.len() as u64)
}

/// Returns the end of the file from where on a line may be of a step after `last`, and where it begins.
fn unsettled(file: &mut File, last: u64) -> io::Result<(u64, Vec<u8>)> {
    let length = file.metadata()?.len();
    let mut bytes = FIRST_READ.min(length);
    loop {
        let begin = length - bytes;
        let mut text = vec![0; bytes as usize];
        file.seek(SeekFrom::Start(begin))?;
        file.read_exact(&mut text)?;
        match settled(&text, last) {
            Some(at) => return Ok((begin + at as u64, text.split_off(at))),
            None if begin == 0 => return Ok((0, text)),
            None => bytes = (2 * bytes).min(length),
        }
    }
}

/// Returns the end of the last line that a step up to `last` wrote. Such steps also wrote all lines before it.
fn settled(text: &[u8], last: u64) -> Option<usize> {
    let line_break = |text: &[u8]| text.iter().rposition(|byte| *byte == b'\n');
    let mut end = line_break(text)? + 1;
    while end > 0 {
        let begin = line_break(&text[..end - 1]).map_or(0, |at| at + 1);
        if own_step(&text[begin..end]).is_some_and(|step| step <= last) {
            return Some(end);
        }
        end = begin;
    }
    None
}

/// Returns the step of a step's own line.
fn own_step(line: &[u8]) -> Option<u64> {
    let value: Value = serde_json::from_slice(line).ok()?;
    value.get("step")?.as_u64()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_kind_of_line_has_a_step() {
        for (line, step) in [
            (r#"{"step": 3, "loss": 1.0, "stage": "full"}"#, Some(3)),
            (r#"{"eval": {"step": 4}}"#, Some(4)),
            (r#"{"rollback": {"from": 128, "to": 32}}"#, Some(32)),
            (r#"{"test": {"step": 6}}"#, None),
            (r#"{"step": 3, "lo"#, None),
        ] {
            assert_eq!(step_of(line.as_bytes()), step, "{line}");
        }
        let text = b"{\"step\": 1}\n{\"eval\": {\"step\": 2}}\n{\"step\": 3}\n{\"st";
        let (kept, others) = split(text, 2);
        assert_eq!(kept, b"{\"step\": 1}\n{\"eval\": {\"step\": 2}}\n");
        assert_eq!(others, b"{\"step\": 3}\n{\"st\n");
    }

    /// The same by reading every line.
    fn kept_by_all_lines(text: &[u8], last: u64) -> Vec<u8> {
        let lines = text.split(|byte| *byte == b'\n');
        let kept = lines.filter(|line| step_of(line).is_some_and(|step| step <= last));
        kept.flat_map(|line| [line, b"\n"].concat()).collect()
    }

    /// Returns the lines of a run: a stage's before its first step, evaluations and checkpoints after steps, some late.
    fn run(steps: u64, padding: usize) -> Vec<u8> {
        let mut text = String::new();
        for step in 1..=steps {
            if step % 7 == 1 {
                text += &format!("{{\"stage\": {{\"step\": {step}}}}}\n");
            }
            if step % 5 == 0 {
                text += &format!("{{\"oom\": {{\"step\": {step}}}}}\n");
            }
            text += &format!(
                "{{\"step\": {step}, \"stage\": \"a\", \"x\": {{\"y\": \"{}\"}}}}\n",
                "z".repeat(padding)
            );
            if step % 3 == 0 {
                text += &format!("{{\"eval\":{{\"step\": {step}}}}}\n");
            }
            if step % 3 == 2 && step > 3 {
                text += &format!("{{\"checkpoint\": {{\"step\": {}}}}}\n", step - 2);
            }
        }
        text.into_bytes()
    }

    proptest! {
        #[test]
        fn later_lines_are_dropped_wherever_they_begin(
            steps in 0u64..40, last in 0u64..45, padding in prop::sample::select(vec![0, 3000, 40_000]), cut in 0usize..60,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("metrics.jsonl");
            let mut text = run(steps, padding);
            text.truncate(text.len() - cut.min(text.len()));
            fs::write(&path, &text).unwrap();
            let (begin, kept, others) = split_end(&mut File::open(&path).unwrap(), last).unwrap();
            prop_assert_eq!(([&text[..begin as usize], &kept].concat(), others), split(&text, last));
            drop_later(&path, last, false).unwrap();
            let kept = fs::read(&path).unwrap();
            prop_assert_eq!(&kept, &kept_by_all_lines(&text, last));
            prop_assert_eq!(&split(&text, last).0, &kept);
            // The evaluation of a checkpoint that owes it is made again.
            drop_later(&path, last, true).unwrap();
            let repeated = format!("{{\"eval\":{{\"step\": {last}}}}}\n");
            let without = String::from_utf8(kept).unwrap().replace(&repeated, "");
            prop_assert_eq!(fs::read_to_string(&path).unwrap(), without);
        }
    }

    #[test]
    fn a_missing_file_stays_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        drop_later(&path, 3, false).unwrap();
        assert!(!path.exists());
    }
}
