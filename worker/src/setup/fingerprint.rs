//! Checks that a resumed run has the data of its checkpoint.

use std::collections::BTreeSet;
use std::path::Path;

use dtrain_common::manifest::{DataFingerprint, Manifest, hex};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::data::packed::PLACE;
use crate::setup::error::WorkerError;
use crate::tasks::{OF_PROGRAM, Task};

/// Keys of locations, which may change: of the data, of its lines in a table, and of memory.
const LOCATION_KEYS: [&str; 3] = ["root", "dtrain_table", PLACE];
/// Keys of lists of paths; only the last part of a path counts.
const PATH_KEYS: [&str; 1] = ["files"];

/// The key of the sets of `data.tests`.
const TESTS: &str = "dtrain_tests";

/// The form of surveys: raise it if the hash of the same data changes. 1: long lists and texts are hashed on their own;
/// 2: a set is a list for each field.
pub(crate) const FORM: u32 = 2;

/// Returns the SHA-256 of a survey in hexadecimal digits, independent of the data's folder.
pub(crate) fn digest(survey: &Value) -> String {
    digest_without(survey, &LOCATION_KEYS)
}

/// As [`digest`], of what a resume compares: without the sets of `data.tests`, which decide nothing in a training.
pub(crate) fn digest_of_run(survey: &Value) -> String {
    digest_without(survey, &[&LOCATION_KEYS[..], &[TESTS]].concat())
}

fn digest_without(survey: &Value, left_out: &[&str]) -> String {
    let mut hasher = Sha256::new();
    hash_value(survey, false, left_out, &mut hasher);
    hex(&hasher.finalize())
}

/// Hashes type, length if any, and value, so that no two surveys hash the same bytes.
fn hash_value(value: &Value, is_path: bool, left_out: &[&str], hasher: &mut Sha256) {
    match value {
        Value::Null => hasher.update(b"n"),
        Value::Bool(value) => hasher.update([b'b', u8::from(*value)]),
        Value::Number(number) => text(b'd', &number.to_string(), hasher),
        Value::String(path) if is_path => text(b's', path.rsplit('/').next().unwrap_or(path), hasher),
        Value::String(string) => text(b's', string, hasher),
        Value::Array(values) => {
            // A survey without such sets has no list of them.
            let has_only_tests = |value: &&Value| {
                let mut keys = value.as_object().into_iter().flat_map(|fields| fields.keys()).peekable();
                keys.peek().is_some() && keys.all(|key| key == TESTS && left_out.contains(&TESTS))
            };
            let hashed = || values.iter().filter(|value| !has_only_tests(value));
            count(b'a', hashed().count(), hasher);
            hashed().for_each(|value| hash_value(value, is_path, left_out, hasher));
        }
        Value::Object(fields) => {
            let hashed = || fields.iter().filter(|(key, _)| !left_out.contains(&key.as_str()));
            count(b'o', hashed().count(), hasher);
            for (key, value) in hashed() {
                text(b'k', key, hasher);
                hash_value(value, PATH_KEYS.contains(&key.as_str()), left_out, hasher);
            }
        }
    }
}

fn count(kind: u8, length: usize, hasher: &mut Sha256) {
    hasher.update([kind]);
    hasher.update((length as u64).to_le_bytes());
}

fn text(kind: u8, text: &str, hasher: &mut Sha256) {
    count(kind, text.len(), hasher);
    hasher.update(text.as_bytes());
}

/// Returns a warning if the data differs from the checkpoint's; None if it is the same, or unknown.
pub(crate) fn describe_change(then: Option<&DataFingerprint>, now: &DataFingerprint) -> Option<String> {
    let then = then.filter(|then| DataFingerprint { form: now.form, ..(*then).clone() } != *now)?;
    let samples = |data: &DataFingerprint| {
        let DataFingerprint { train_samples, test_samples, val_samples, .. } = data;
        match val_samples {
            None => format!("{train_samples} training and {test_samples} test samples"),
            Some(val) => {
                format!("{train_samples} training, {val} validation and {test_samples} test samples")
            }
        }
    };
    let (before, after) = (samples(then), samples(now));
    if before == after && then.form != now.form {
        return Some(format!(
            "another version of dtrain wrote the checkpoint: whether it had the same {after} cannot be told"
        ));
    }
    let how = match before == after {
        true => format!("as many samples, but other ones or in another order ({after})"),
        false => format!("{before} then, {after} now"),
    };
    Some(format!(
        "warning: the data differs from the checkpoint's: {how}. The run continues with the new data"
    ))
}

/// Returns an error if the task now stores other `extra` values than the checkpoint, or if classes have other
/// names: the model's outputs would have another meaning.
pub(crate) fn check_same_data(
    folder: &Path,
    manifest: &Manifest,
    task: &dyn Task,
) -> Result<(), WorkerError> {
    let folder = folder.to_owned();
    if let Some(differing) = other_classes(&manifest.class_names, &task.facts().class_names) {
        return Err(WorkerError::OtherClasses { folder, differing });
    }
    let now = &task.facts().extra;
    let mut differing = differing(&manifest.extra, now);
    // No evaluation changes images: see `check_same_changes`.
    differing.retain(|key| !is_change(key));
    let remedy = match has_byte_order_mark(&manifest.extra["vocabulary"], &now["vocabulary"]) {
        true => {
            "its vocabulary has the byte order mark of a text, which earlier builds took for a character. Give the run texts with a \
             second mark, of which the first is no part: `printf '\\357\\273\\277' | cat - OLD.txt > NEW.txt` for each file that \
             begins with a mark"
        }
        false if differing.iter().all(|key| key.starts_with(OF_PROGRAM)) => OTHER_PROGRAM,
        false => "use the data of that run, or start a new run with another --run-dir",
    };
    if differing.is_empty() { Ok(()) } else { Err(WorkerError::OtherData { folder, differing, remedy }) }
}

const OTHER_PROGRAM: &str = "use the program of that run, or start a new run with another --run-dir";

fn is_change(key: &str) -> bool {
    key.strip_prefix(OF_PROGRAM).is_some_and(|key| key.starts_with("data.changes"))
}

/// Returns an error if the user's own change of images is now another program.
pub(crate) fn check_same_changes(
    folder: &Path,
    manifest: &Manifest,
    task: &dyn Task,
) -> Result<(), WorkerError> {
    let mut differing = differing(&manifest.extra, &task.facts().extra);
    differing.retain(|key| is_change(key));
    let (folder, remedy) = (folder.to_owned(), OTHER_PROGRAM);
    if differing.is_empty() { Ok(()) } else { Err(WorkerError::OtherData { folder, differing, remedy }) }
}

/// Returns whether two vocabularies differ only in a byte order mark.
fn has_byte_order_mark(then: &Value, now: &Value) -> bool {
    let (Some(then), Some(now)) = (then["chars"].as_str(), now["chars"].as_str()) else { return false };
    then != now && then.replace('\u{feff}', "") == now
}

/// Returns a warning if the data has class names and the checkpoint does not.
pub(crate) fn unnamed_classes(folder: &Path, manifest: &Manifest, task: &dyn Task) -> Option<String> {
    let unnamed = manifest.class_names.is_empty() && !task.facts().class_names.is_empty();
    unnamed.then(|| {
        format!(
            "{} has no class names, since an earlier dtrain wrote it: check that the data still has its classes in the same order",
            folder.display()
        )
    })
}

/// Returns the keys with different values in checkpoint and run.
fn differing(then: &Value, now: &Value) -> Vec<String> {
    match (then, now) {
        (Value::Object(then), Value::Object(now)) => {
            let keys: BTreeSet<&String> = then.keys().chain(now.keys()).collect();
            let differs = |key: &&String| then.get(key.as_str()) != now.get(key.as_str());
            keys.into_iter().filter(differs).cloned().collect()
        }
        _ if then == now => Vec::new(),
        _ => vec!["extra".to_owned()],
    }
}

/// Describes the first classes with different names. Returns None if all agree, or if one side has no names.
fn other_classes(then: &[String], now: &[String]) -> Option<String> {
    /// Longer lists are not read.
    const SHOWN: usize = 3;
    if then == now || then.is_empty() || now.is_empty() {
        return None;
    }
    let name = |name: Option<&String>| name.map_or("missing".to_owned(), |name| format!("{name:?}"));
    let classes = (0..then.len().max(now.len())).map(|class| (class, then.get(class), now.get(class)));
    let mut differing = classes.filter(|(_, then, now)| then != now);
    let describe = |(class, then, now)| {
        format!("class {class} is {} in the checkpoint and {} in the data", name(then), name(now))
    };
    let mut shown: Vec<String> = differing.by_ref().take(SHOWN).map(describe).collect();
    let more = differing.count();
    if more > 0 {
        shown.push(format!("and {more} more differ"));
    }
    Some(shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_data_folder_may_change() {
        let survey = |root: &str, files: [&str; 2], class: &str| {
            digest(
                &json!([{"root": root, "classes": [class], "samples": files}, {"files": [format!("{root}/a.txt")], "tokens": 3}]),
            )
        };
        let then = survey("/a", ["x", "y"], "c");
        assert_eq!(then, survey("/b/d", ["x", "y"], "c"));
        assert_eq!(then.len(), 64);
        for other in [
            survey("/a", ["y", "x"], "c"),
            survey("/a", ["x", "z"], "c"),
            survey("/a", ["x", "y"], "d"),
            digest(&Value::Null),
        ] {
            assert_ne!(then, other);
        }
        assert_ne!(digest(&json!(["ab", "c"])), digest(&json!(["a", "bc"])));
    }

    #[test]
    fn more_test_sets_may_change() {
        let survey = |others: Value| json!({"Files": [["train", "test"], [], others]});
        let without = json!({"Files": [["train", "test"], []]});
        let tests = survey(json!({"dtrain_tests": {"night": ["x"]}}));
        assert_eq!(digest_of_run(&tests), digest_of_run(&without));
        assert_eq!(digest_of_run(&without), digest(&without));
        // All nodes need the same sets.
        assert_ne!(digest(&tests), digest(&without));
        let validated = |tests: Value| survey(json!({"val": ["a"], "dtrain_tests": tests}));
        assert_eq!(digest_of_run(&validated(json!({}))), digest_of_run(&validated(json!(["b"]))));
        assert_ne!(digest_of_run(&validated(json!({}))), digest_of_run(&tests));
    }

    #[test]
    fn vocabularies_with_a_byte_order_mark_are_found() {
        let of = |characters: &str| json!({"chars": characters});
        assert!(has_byte_order_mark(&of("ab\u{feff}"), &of("ab")));
        for (then, now) in [("ab", "ab"), ("ab", "ab\u{feff}"), ("abc\u{feff}", "ab"), ("abc", "ab")] {
            assert!(!has_byte_order_mark(&of(then), &of(now)), "{then} {now}");
        }
        assert!(
            !has_byte_order_mark(&json!("bytes"), &of("ab"))
                && !has_byte_order_mark(&Value::Null, &Value::Null)
        );
    }

    #[test]
    fn changed_parts_of_the_data_are_named() {
        let mark = |train_samples, sha256: &str| DataFingerprint {
            train_samples,
            test_samples: 5,
            val_samples: None,
            sha256: sha256.to_owned(),
            form: FORM,
        };
        let then = mark(10, "a");
        assert_eq!(describe_change(None, &then), None);
        assert_eq!(describe_change(Some(&then), &then), None);
        let fewer = describe_change(Some(&then), &mark(9, "b")).unwrap_or_default();
        assert!(fewer.contains("10 training and 5 test samples then, 9 training and 5 test samples now"));
        let validated = DataFingerprint { val_samples: Some(2), ..mark(8, "b") };
        let fewer = describe_change(Some(&then), &validated).unwrap_or_default();
        assert!(fewer.contains(
            "10 training and 5 test samples then, 8 training, 2 validation and 5 test samples now"
        ));
        let others = describe_change(Some(&then), &mark(10, "b")).unwrap_or_default();
        assert!(others.contains("as many samples, but other ones"));
        // The hash of the same data may be another one.
        let earlier = |sha256| DataFingerprint { form: 0, ..mark(10, sha256) };
        let unknown = describe_change(Some(&earlier("b")), &then).unwrap_or_default();
        assert!(unknown.contains("cannot be told") && !unknown.contains("warning"), "{unknown}");
        assert_eq!(describe_change(Some(&earlier("a")), &then), None);
    }
}
