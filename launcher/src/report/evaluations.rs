//! The files of the newest evaluation of each set: figures by class, confusion, and samples with predictions.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use dtrain_common::run_dir::RunDir;
use serde::Deserialize;
use serde_json::{Value, json};

use super::pictures;
use crate::runs::files::json;

/// Files of evaluations whose names are read.
const MOST: usize = 100_000;
/// A confusion of more classes is a list of its largest errors.
const MOST_CLASSES: usize = 40;
const MOST_ERRORS: usize = 40;

#[derive(Deserialize)]
struct ClassFile {
    figures: Vec<OfClasses>,
}

#[derive(Deserialize)]
struct OfClasses {
    figure: String,
    classes: Vec<String>,
    values: Vec<Option<f64>>,
    #[serde(default)]
    confusion: Option<Vec<Vec<f64>>>,
}

/// The newest file or folder of each set, by the set's name.
type Newest = BTreeMap<String, (u64, PathBuf)>;

/// Returns the newest figures by class of each set, and the newest samples of each set. `problems` gets files that cannot be used.
pub(super) fn newest(run_dir: &RunDir, problems: &mut Vec<String>) -> (Vec<Value>, Vec<Value>) {
    let (mut files, mut folders) = (Newest::new(), Newest::new());
    for entry in fs::read_dir(run_dir.evaluations()).into_iter().flatten().flatten().take(MOST) {
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        let (name, newest) = match name.strip_suffix(".json") {
            Some(name) => (name.to_owned(), &mut files),
            None => (name, &mut folders),
        };
        let Some((step, set)) = name.strip_prefix("step-").and_then(|rest| rest.split_once('-')) else {
            continue;
        };
        let Ok(step) = step.parse::<u64>() else { continue };
        if newest.get(set).is_none_or(|(other, _)| *other < step) {
            newest.insert(set.to_owned(), (step, entry.path()));
        }
    }
    let mut classes = Vec::new();
    for (set, (step, path)) in files {
        match of_classes(&path) {
            Ok(mut found) => {
                found["set"] = set.into();
                found["step"] = step.into();
                classes.push(found);
            }
            Err(problem) => problems.push(problem),
        }
    }
    let mut room = pictures::Room::default();
    let mut samples = Vec::new();
    for (set, (step, folder)) in folders {
        match pictures::samples(&folder, &mut room) {
            Ok(Some(found)) => samples.push(json!({"set": set, "step": step, "samples": found})),
            Ok(None) => {}
            Err(problem) => problems.push(problem),
        }
    }
    (classes, samples)
}

/// Returns the columns of values by class, and the confusion.
fn of_classes(path: &Path) -> Result<Value, String> {
    let file: Option<ClassFile> = json(path).map_err(|problem| problem.to_string())?;
    let figures = file.map(|file| file.figures).unwrap_or_default();
    // Figures of different fields may have different classes: a table for each.
    let mut tables: Vec<(&[String], Vec<Value>)> = Vec::new();
    for one in figures.iter().filter(|one| one.values.len() == one.classes.len()) {
        let column = json!({"figure": one.figure, "values": one.values});
        match tables.iter_mut().find(|(classes, _)| *classes == one.classes) {
            Some((_, columns)) => columns.push(column),
            None => tables.push((&one.classes, vec![column])),
        }
    }
    let tables: Vec<_> = tables
        .into_iter()
        .map(|(classes, columns)| json!({"classes": classes, "columns": columns}))
        .collect();
    let confusions: Vec<_> = figures.iter().filter_map(confusion).collect();
    Ok(json!({"tables": tables, "confusions": confusions}))
}

/// Returns the counts of few classes, and the largest errors of many.
fn confusion(of: &OfClasses) -> Option<Value> {
    let counts = of.confusion.as_ref()?;
    let size = of.classes.len();
    if counts.len() != size || counts.iter().any(|row| row.len() != size) {
        return None;
    }
    if size <= MOST_CLASSES {
        return Some(json!({"figure": of.figure, "classes": of.classes, "counts": counts}));
    }
    let mut errors: Vec<(usize, usize, f64)> = Vec::new();
    for (target, row) in counts.iter().enumerate() {
        let wrong = row.iter().enumerate().filter(|(predicted, count)| *predicted != target && **count > 0.0);
        errors.extend(wrong.map(|(predicted, count)| (target, predicted, *count)));
    }
    errors.sort_by(|a, b| b.2.total_cmp(&a.2));
    errors.truncate(MOST_ERRORS);
    let name = |(target, predicted, count): &(usize, usize, f64)| {
        json!([of.classes[*target], of.classes[*predicted], count, counts[*target].iter().sum::<f64>()])
    };
    Some(json!({"figure": of.figure, "size": size, "errors": errors.iter().map(name).collect::<Vec<_>>()}))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_newest_evaluation_of_each_set_counts_and_a_damaged_one_is_a_problem() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        fs::create_dir(run_dir.evaluations()).unwrap();
        let file = |classes: &[&str], value: f64| {
            let values = vec![value; classes.len()];
            json!({"step": 1, "figures": [
                {"figure": "recall", "classes": classes, "values": values},
                {"figure": "kappa", "classes": classes, "values": values, "confusion": vec![vec![1.0, 2.0]; 2]},
            ]})
        };
        let write = |step, set, text: String| fs::write(run_dir.evaluation(step, set), text).unwrap();
        write(9, "val", file(&["cat", "dog"], 0.25).to_string());
        write(10, "val", file(&["cat", "dog"], 0.5).to_string());
        write(10, "a-b", file(&["x", "y"], 0.5).to_string());
        write(7, "test", "{\"figures\": [".to_owned());
        let mut problems = Vec::new();
        let (classes, samples) = newest(&run_dir, &mut problems);
        let sets: Vec<_> =
            classes.iter().map(|of| (of["set"].as_str().unwrap(), of["step"].as_u64().unwrap())).collect();
        assert_eq!(sets, [("a-b", 10), ("val", 10)]);
        assert_eq!(classes[1]["tables"][0]["columns"][0], json!({"figure": "recall", "values": [0.5, 0.5]}));
        assert_eq!(classes[1]["tables"].as_array().unwrap().len(), 1);
        assert_eq!(classes[1]["confusions"][0]["counts"], json!([[1.0, 2.0], [1.0, 2.0]]));
        assert!(problems[0].starts_with("step-00000007-test.json is cut off or damaged"), "{problems:?}");
        assert!(samples.is_empty());
    }

    #[test]
    fn many_classes_have_their_largest_errors_in_place_of_a_table() {
        let size = MOST_CLASSES + 1;
        let mut counts = vec![vec![0.0; size]; size];
        (counts[3][3], counts[3][5], counts[7][2]) = (9.0, 4.0, 6.0);
        let classes = (0..size).map(|class| class.to_string()).collect();
        let of = OfClasses { figure: "kappa".into(), classes, values: vec![], confusion: Some(counts) };
        let found = confusion(&of).unwrap();
        assert_eq!(found["errors"], json!([["7", "2", 6.0, 6.0], ["3", "5", 4.0, 13.0]]));
        let ragged = OfClasses { confusion: Some(vec![vec![1.0]]), ..of };
        assert_eq!(confusion(&ragged), None);
    }
}
