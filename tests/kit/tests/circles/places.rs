//! Folders: which place of a folder uses which.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{Crate, circles, crates, relative};

/// By folder, how many uses between its places are part of a circle today. Lower a number when uses are gone; raise none.
const KNOWN: &[(&str, usize)] = &[("launcher/src/launch", 13), ("tests/lab/src/bench", 13)];

/// The places of the trainer in floors, from the top. A place uses places of the same floor and of lower floors.
const FLOORS: [(&str, &[&str]); 11] = [
    ("a worker's life", &["train"]),
    ("memory", &["planning"]),
    ("from a recipe to a trainer", &["setup"]),
    ("the loop", &["run"]),
    ("a step", &["step"]),
    ("checkpoints", &["checkpoint"]),
    ("the model with its optimizer", &["optim"]),
    ("the table", &["state"]),
    ("the steps of a run", &["course"]),
    ("tasks", &["tasks"]),
    (
        "the ground",
        &[
            "control",
            "device",
            "faults",
            "heartbeat",
            "memory",
            "metrics",
            "out_of_memory",
            "rank",
            "request",
            "stop",
            "tensors",
        ],
    ),
];

/// The places of a folder that each of its places uses.
type Uses<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

#[test]
fn places_have_no_circular_imports() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut found = BTreeMap::new();
    for source in crates(&root) {
        for (folder, uses) in by_folder(&Crate::read(&source).uses()) {
            let circles = circles(&uses);
            let inside = |(from, to): &(&str, &str)| {
                circles.iter().any(|circle| circle.contains(from) && circle.contains(to))
            };
            let uses = uses.iter().flat_map(|(from, all)| all.iter().map(|to| (*from, *to)));
            let uses: Vec<String> = uses.filter(inside).map(|(from, to)| format!("{from} -> {to}")).collect();
            if !uses.is_empty() {
                found.insert(relative(&root, folder), uses);
            }
        }
    }
    let counts: BTreeMap<&str, usize> =
        found.iter().map(|(folder, uses)| (folder.as_str(), uses.len())).collect();
    let known = KNOWN.iter().copied().collect::<BTreeMap<_, _>>();
    let differing = found.iter().filter(|(folder, uses)| known.get(folder.as_str()) != Some(&uses.len()));
    let shown: String = differing
        .map(|(folder, uses)| format!("\n{folder}, {}:\n  {}", uses.len(), uses.join("\n  ")))
        .collect();
    assert_eq!(counts, known, "uses in circles of places; more than before:{shown}");
}

#[test]
fn the_trainer_imports_point_down() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../worker/src").canonicalize().unwrap();
    let trainer = Crate::read(&source);
    let uses = by_folder(&trainer.uses()).remove(source.as_path()).unwrap();
    let floor = |place: &str| {
        let floor = FLOORS.iter().position(|(_, places)| places.contains(&place));
        floor.unwrap_or_else(|| panic!("worker/src/{place} has no floor: add it to FLOORS"))
    };
    let uses = uses.iter().flat_map(|(from, all)| all.iter().map(|to| (*from, *to)));
    let up: Vec<String> = uses
        .filter(|(from, to)| floor(from) > floor(to))
        .map(|(from, to)| format!("{from} -> {to}"))
        .collect();
    assert!(up.is_empty(), "imports that point up: {up:?}");
    let entries = std::fs::read_dir(&source).unwrap().map(|entry| entry.unwrap().path());
    let places = entries.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
    let places: BTreeSet<String> =
        places.filter(|place| !["lib", "main", "bin"].contains(&place.as_str())).collect();
    let floors = FLOORS.iter().flat_map(|(_, places)| *places).map(|place| (*place).to_owned());
    assert_eq!(floors.collect::<BTreeSet<_>>(), places, "floors and places of worker/src");
}

/// A module with modules in it is `x/mod.rs`; one whose only module is its tests is `x.rs` beside `x/tests.rs`.
#[test]
fn modules_lie_where_the_rule_says() {
    fn visit(folder: &Path, wrong: &mut Vec<String>) {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let is_tests = |path: &Path| path.file_stem().is_some_and(|stem| stem == "tests");
            if path.is_dir() {
                visit(&path, wrong);
                let inner = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
                let is_module = |path: &PathBuf| {
                    !is_tests(path) && (path.is_dir() || path.extension().is_some_and(|end| end == "rs"))
                };
                let has_modules = inner.filter(is_module).any(|path| !path.ends_with("mod.rs"));
                if path.with_extension("rs").is_file() && has_modules {
                    wrong.push(format!("{0}.rs: move it to {0}/mod.rs", path.display()));
                }
                if path.join("mod.rs").is_file() && !has_modules {
                    wrong.push(format!("{0}/mod.rs: move it to {0}.rs", path.display()));
                }
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut wrong = Vec::new();
    assert!(crates(&root).iter().any(|source| source.ends_with("worker/src")), "no crates are read");
    crates(&root).iter().for_each(|source| visit(source, &mut wrong));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns the uses between places, by the folder that holds both.
fn by_folder<'a>(files: &BTreeMap<&'a Path, BTreeSet<&'a Path>>) -> BTreeMap<&'a Path, Uses<'a>> {
    let mut found: BTreeMap<&Path, Uses> = BTreeMap::new();
    for (from, used) in files {
        for to in used {
            let folder = from.ancestors().skip(1).find(|folder| to.starts_with(folder)).unwrap();
            let [from, to] = [from, to].map(|file| {
                let place = file.strip_prefix(folder).unwrap().iter().next().unwrap().to_str().unwrap();
                place.strip_suffix(".rs").unwrap_or(place)
            });
            if from != to {
                found.entry(folder).or_default().entry(from).or_default().insert(to);
            }
        }
    }
    found
}
