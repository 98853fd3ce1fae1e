//! The mark by which a run that goes on knows its data again.

use dtrain_common::manifest::{DataMark, hex};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Keys whose values say where the data lies, which may change.
const PLACES: [&str; 1] = ["root"];
/// Keys of lists of paths, of which the last part counts.
const PATHS: [&str; 1] = ["files"];

/// The SHA-256 of a survey in hexadecimal digits, whatever the folder in which the data was found.
pub(crate) fn digest(survey: &Value) -> String {
    let mut hasher = Sha256::new();
    take(survey, false, &mut hasher);
    hex(&hasher.finalize())
}

/// Every value with a letter before it and its length where it has one, so that no two surveys look alike.
fn take(value: &Value, is_path: bool, hasher: &mut Sha256) {
    match value {
        Value::Null => hasher.update(b"n"),
        Value::Bool(value) => hasher.update([b'b', u8::from(*value)]),
        Value::Number(number) => text(b'd', &number.to_string(), hasher),
        Value::String(path) if is_path => text(b's', path.rsplit('/').next().unwrap_or(path), hasher),
        Value::String(string) => text(b's', string, hasher),
        Value::Array(values) => {
            count(b'a', values.len(), hasher);
            values.iter().for_each(|value| take(value, is_path, hasher));
        }
        Value::Object(fields) => {
            let told = || fields.iter().filter(|(key, _)| !PLACES.contains(&key.as_str()));
            count(b'o', told().count(), hasher);
            for (key, value) in told() {
                text(b'k', key, hasher);
                take(value, PATHS.contains(&key.as_str()), hasher);
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

/// What is to be said of a run that goes on with other data than before; none where it is the same, or it is not known.
pub(crate) fn changed(then: Option<&DataMark>, now: &DataMark) -> Option<String> {
    let then = then.filter(|then| *then != now)?;
    let samples = |mark: &DataMark| {
        format!(
            "{} training and {} test samples",
            mark.train_samples, mark.test_samples
        )
    };
    let counts = |mark: &DataMark| (mark.train_samples, mark.test_samples);
    let how = match counts(then) == counts(now) {
        true => format!(
            "as many samples, but others or in another order ({})",
            samples(now)
        ),
        false => format!("{} then, {} now", samples(then), samples(now)),
    };
    Some(format!(
        "warning: the data is not what the checkpoint was trained on: {how}. The run goes on with it, and its epochs are not those of \
         the run that was interrupted"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_where_the_data_lies_may_change() {
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
    fn what_changed_is_named() {
        let mark = |train_samples, sha256: &str| DataMark {
            train_samples,
            test_samples: 5,
            sha256: sha256.to_owned(),
        };
        let then = mark(10, "a");
        assert_eq!(changed(None, &then), None);
        assert_eq!(changed(Some(&then), &then), None);
        let fewer = changed(Some(&then), &mark(9, "b")).unwrap_or_default();
        assert!(fewer.contains("10 training and 5 test samples then, 9 training and 5 test samples now"));
        let others = changed(Some(&then), &mark(10, "b")).unwrap_or_default();
        assert!(others.contains("as many samples, but others"));
    }
}
