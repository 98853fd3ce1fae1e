//! Checks that docs/architecture.md names only what exists.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Words after which an item's name follows.
const DEFINITIONS: [&str; 9] =
    ["fn", "struct", "enum", "trait", "type", "mod", "const", "static", "macro_rules!"];

/// Programs of others that the page names, and commands.
const NOT_OURS: [&str; 6] = ["srun", "mpirun", "result.json", "torch.export", "kills", "soak"];

/// The contents of the repository.
#[derive(Default)]
struct Names {
    /// Paths of files and folders below the root, each also without its extension.
    paths: Vec<PathBuf>,
    /// Items of Rust.
    items: BTreeSet<String>,
}

impl Names {
    fn read(root: &Path, folder: &Path, names: &mut Self) {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = entry.file_name().unwrap().to_str().unwrap();
            if name == "target" || name.starts_with('.') {
                continue;
            }
            let path = entry.strip_prefix(root).unwrap();
            names.paths.extend([path.to_owned(), path.with_extension("")]);
            if entry.is_dir() {
                Self::read(root, &entry, names);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&entry).unwrap();
                let words: Vec<&str> = text.split_whitespace().collect();
                let items =
                    words.windows(2).filter(|pair| DEFINITIONS.contains(&pair[0])).map(|pair| pair[1]);
                let name = |item: &str| {
                    item.split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned)
                };
                names.items.extend(items.filter_map(name));
            }
        }
    }

    /// Returns whether `path`, without its last `/`, is the end of a path; its file names may end in `*`.
    fn has_path(&self, path: &str) -> bool {
        let wanted = path.trim_end_matches('/').replace("*.", "").replace('*', "");
        match path.contains('*') {
            true => {
                let folder = Path::new(&wanted).parent().unwrap();
                self.paths.iter().any(|path| path.ends_with(folder))
            }
            false => self.paths.iter().any(|path| path.ends_with(&wanted)),
        }
    }

    fn has_item(&self, item: &str) -> bool {
        self.items.contains(item) || self.has_path(item)
    }
}

#[test]
fn architecture_names_what_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut names = Names::default();
    Names::read(&root, &root, &mut names);
    let page = fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let page = page.split("## Not built in").next().unwrap();
    let mut absent = Vec::new();
    let mut checked = 0;
    let (mut is_code, mut is_map) = (false, false);
    for line in page.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        }
        if line.starts_with("## ") {
            is_map = line == "## Code map";
        }
        if is_code {
            continue;
        }
        let is_row = is_map && line.starts_with("| `");
        for span in line.split('`').skip(1).step_by(2) {
            let is_name =
                span.contains("::") || is_row || span.starts_with(|first: char| first.is_uppercase());
            if NOT_OURS.contains(&span)
                || span.contains([' ', '!', '=', '-'])
                || span.chars().all(|c| !c.is_lowercase())
            {
                continue;
            }
            let exists = match span {
                path if path.contains('/') => names.has_path(path),
                item if is_name => names.has_item(item.rsplit("::").next().unwrap()),
                _ => continue,
            };
            checked += 1;
            if !exists {
                absent.push(span.to_owned());
            }
        }
    }
    assert!(absent.is_empty(), "docs/architecture.md names what does not exist: {absent:?}");
    assert!(checked > 150, "only {checked} names were found");
}

/// The files of Rust outside of worker/src/tasks that name a task: `dtrain new`, which writes a recipe for each, the layouts that
/// it finds, the example in the message about a missing task, and the facts. Remove an entry when the file names none; add no
/// entries.
const NAME_TASKS: [&str; 9] = [
    "launcher/src/new/choose.rs",
    "launcher/src/new/draft.rs",
    "launcher/src/new/mod.rs",
    "launcher/src/new/sizes.rs",
    "launcher/src/new/text.rs",
    "launcher/src/tasks.rs",
    "worker/data/layout/src/lib.rs",
    "worker/recipe/src/load.rs",
    "worker/recipe/src/tasks.rs",
];

#[test]
fn tasks_are_named_in_few_places() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut naming = BTreeSet::new();
    for folder in ["common", "launcher", "worker"] {
        find_tasks(&root, &root.join(folder), &mut naming);
    }
    assert_eq!(Vec::from_iter(naming), NAME_TASKS);
}

/// Adds the files below a folder whose code, without tests, has a task's name in quotes.
fn find_tasks(root: &Path, folder: &Path, naming: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let path = entry.strip_prefix(root).unwrap();
        let is_of_tasks = path.starts_with("worker/src/tasks");
        if entry.is_dir() && !is_of_tasks && !path.ends_with("tests") {
            find_tasks(root, &entry, naming);
        }
        if entry.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            let text = fs::read_to_string(&entry).unwrap().replace('\\', "");
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            // The name of the task `program` has other meanings.
            if ["\"classify\"", "\"segment\"", "\"lm\"", "\"regress\""].iter().any(|name| code.contains(name))
            {
                naming.insert(path.display().to_string());
            }
        }
    }
}
