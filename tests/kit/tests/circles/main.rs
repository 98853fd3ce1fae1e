//! Checks that no file of a crate uses itself through other files, and no place of a folder through other places.
//!
//! The places of a folder are the files and folders in it; `x.rs` and `x/` are one place.
//!
//! A file uses another file if a path in it (`crate::`, `super::`, `self::`, or the name of a child module)
//! leads to an item that the other file defines. A re-export counts as use of the definition only. Declaring
//! a child module does not count, and using an item of an ancestor module does not count either.

#![allow(clippy::unwrap_used)]

mod places;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tokens::{is_word, tokens};

#[test]
fn files_have_no_circular_imports() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut found = String::new();
    for source in crates(&root) {
        for circle in circles(&Crate::read(&source).uses()) {
            let names: Vec<String> = circle.iter().map(|file| relative(&root, file)).collect();
            found += &format!("  {}\n", names.join(", "));
        }
    }
    assert!(found.is_empty(), "circles of files:\n{found}");
}

/// Returns the `src` folders of the workspace's packages.
fn crates(root: &Path) -> Vec<PathBuf> {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = manifest.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    let names = members.split('"').skip(1).step_by(2);
    names.map(|name| root.join(name).join("src")).filter(|source| source.is_dir()).collect()
}

fn relative(root: &Path, file: &Path) -> String {
    file.strip_prefix(root).unwrap().display().to_string()
}

/// A path to a module: the names below the crate's root.
type Name = Vec<String>;

/// A module with its own file.
#[derive(Default)]
struct Module {
    file: PathBuf,
    /// Items defined outside of its tests, without child modules that have files.
    items: BTreeSet<String>,
    /// Imports by `use`: the local name, the whole path, and whether other modules may use it from here.
    imports: Vec<(String, Name, bool)>,
    /// Paths in its other code.
    paths: Vec<Name>,
    /// Every word of its other code.
    words: BTreeSet<String>,
}

#[derive(Default)]
struct Crate {
    modules: BTreeMap<Name, Module>,
}

impl Crate {
    fn read(source: &Path) -> Self {
        let mut read = Self::default();
        for root in ["lib.rs", "main.rs"].map(|name| source.join(name)) {
            if root.is_file() {
                read.module(Vec::new(), &root);
            }
        }
        read
    }

    fn module(&mut self, name: Name, file: &Path) {
        let tokens = tokens(&fs::read_to_string(file).unwrap());
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        // Children of `a.rs` are in `a/`; those of `mod.rs`, `lib.rs` and `main.rs` in the same folder.
        let is_root = ["mod.rs", "lib.rs", "main.rs"].iter().any(|root| file.ends_with(root));
        let folder = if is_root { file.parent().unwrap().to_owned() } else { file.with_extension("") };
        let mut at = 0;
        let mut public = false;
        while at < tokens.len() {
            let token = tokens[at].as_str();
            match token {
                "mod" if tokens.get(at + 2).is_some_and(|next| next == ";") => {
                    let child = &tokens[at + 1];
                    let candidates = [folder.join(format!("{child}.rs")), folder.join(child).join("mod.rs")];
                    if let Some(file) = candidates.iter().find(|file| file.is_file()) {
                        let name = [name.clone(), vec![child.clone()]].concat();
                        if !self.modules.contains_key(&name) {
                            self.module(name, file);
                        }
                    }
                    at += 2;
                }
                // `automod::dir!`: every file of the folder is a child.
                "automod" => {
                    let children = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
                    for file in children.filter(|path| path.extension().is_some_and(|end| end == "rs")) {
                        let child = file.file_stem().unwrap().to_str().unwrap().to_owned();
                        if !["mod", "lib", "main", "tests"].contains(&child.as_str()) {
                            self.module([name.clone(), vec![child]].concat(), &file);
                        }
                    }
                }
                "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static" | "mod"
                | "macro_rules" => {
                    let skipped =
                        usize::from(tokens.get(at + 1).is_some_and(|next| next == "!" || next == "mut"));
                    module.items.extend(tokens.get(at + 1 + skipped).cloned());
                    at += 1;
                }
                // `use<...>`: the captures of an opaque type.
                "use" if tokens.get(at + 1).is_some_and(|next| next == "<") => {}
                "use" => {
                    let end = at + tokens[at..].iter().position(|token| token == ";").unwrap();
                    let mut imports = Vec::new();
                    tree(&tokens[at + 1..end], &mut 0, &Vec::new(), &mut imports);
                    module.imports.extend(
                        imports.into_iter().map(|(as_name, path)| (as_name, absolute(&name, path), public)),
                    );
                    at = end;
                }
                _ if is_word(token) => {
                    let mut path = vec![token.to_owned()];
                    while tokens.get(at + 1).is_some_and(|next| next == "::")
                        && tokens.get(at + 2).is_some_and(|next| is_word(next))
                    {
                        path.push(tokens[at + 2].clone());
                        at += 2;
                    }
                    module.words.extend(path.first().cloned());
                    if path.len() > 1 {
                        module.paths.push(absolute(&name, path));
                    }
                    at += 1;
                    public = match token {
                        "pub" => true,
                        // For example `pub(crate)`.
                        "crate" | "super" | "in" | "self" => public,
                        _ => false,
                    };
                    continue;
                }
                // The parts of `macro!(...)` and `path::{...}` need no extra handling.
                "(" | ")" => {
                    at += 1;
                    continue;
                }
                _ => {}
            }
            public = false;
            at += 1;
        }
        // If a package has a library and a program, both roots count as one module.
        let root = self.modules.entry(name).or_default();
        if root.file.as_os_str().is_empty() {
            *root = module;
        }
    }

    /// Returns the file that defines the target of a path from this module, if the target is in this crate.
    fn definition(&self, from: &Name, path: &[String], depth: usize) -> Option<&Module> {
        let (first, rest) = path.split_first()?;
        if depth > 16 {
            return None;
        }
        let mut module_name: Name = match first.as_str() {
            "crate" => Vec::new(),
            _ => {
                // Relative: a child module or an import of this module.
                let child = [from.clone(), vec![first.clone()]].concat();
                if !self.modules.contains_key(&child) {
                    let module = self.modules.get(from)?;
                    let (_, whole, _) = module
                        .imports
                        .iter()
                        .find(|(name, path, _)| name == first && path.first() != Some(first))?;
                    return self.definition(from, &[whole.clone(), rest.to_vec()].concat(), depth + 1);
                }
                child
            }
        };
        for (index, segment) in rest.iter().enumerate() {
            let child = [module_name.clone(), vec![segment.clone()]].concat();
            if self.modules.contains_key(&child) {
                module_name = child;
                continue;
            }
            let module = self.modules.get(&module_name)?;
            if module.items.contains(segment) {
                return Some(module);
            }
            let named = module.imports.iter().find(|(name, _, _)| name == segment);
            let globs = module.imports.iter().filter(|(name, _, _)| name == "*");
            let candidates = named
                .into_iter()
                .map(|(_, whole, _)| whole.clone())
                .chain(globs.map(|(_, whole, _)| [&whole[..], std::slice::from_ref(segment)].concat()));
            for whole in candidates {
                let whole = [&whole[..], &rest[index + 1..]].concat();
                if let Some(found) = self.definition(&module_name, &whole, depth + 1) {
                    return Some(found);
                }
            }
            // An item made by a macro, or a variant or method of an item found here.
            return Some(module);
        }
        self.modules.get(&module_name)
    }

    /// Returns the files that each file uses.
    fn uses(&self) -> BTreeMap<&Path, BTreeSet<&Path>> {
        let mut uses: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
        for (name, module) in &self.modules {
            let used = module
                .imports
                .iter()
                .filter(|(as_name, _, public)| !public || module.words.contains(as_name));
            let paths = used.map(|(_, path, _)| path).chain(&module.paths);
            let files =
                paths.filter_map(|path| self.definition(name, path, 0)).map(|found| found.file.as_path());
            let own: BTreeSet<&Path> = (0..=name.len())
                .filter_map(|length| Some(self.modules.get(&name[..length])?.file.as_path()))
                .collect();
            uses.entry(&module.file).or_default().extend(files.filter(|file| !own.contains(file)));
        }
        uses
    }
}

/// Returns groups that all use each other, directly or through others.
fn circles<T: Ord + Copy>(uses: &BTreeMap<T, BTreeSet<T>>) -> Vec<BTreeSet<T>> {
    let reached = |from| {
        let (mut reached, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(at) = left.pop() {
            left.extend(uses.get(&at).into_iter().flatten().filter(|next| reached.insert(**next)));
        }
        reached
    };
    let all: BTreeMap<T, BTreeSet<T>> = uses.keys().map(|from| (*from, reached(*from))).collect();
    let circles = all.iter().filter(|(from, reached)| reached.contains(*from)).map(|(from, reached)| {
        reached.iter().copied().filter(|to| all.get(to).is_some_and(|back| back.contains(from))).collect()
    });
    circles.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Lists `use` trees as pairs of a name and its path; the name of a glob is `*`.
fn tree(tokens: &[String], at: &mut usize, before: &Name, found: &mut Vec<(String, Name)>) {
    let mut path = before.clone();
    while let Some(token) = tokens.get(*at) {
        *at += 1;
        match token.as_str() {
            "::" => {}
            "{" => {
                while tokens.get(*at).is_some_and(|token| token != "}") {
                    tree(tokens, at, &path, found);
                    *at += usize::from(tokens.get(*at).is_some_and(|token| token == ","));
                }
                *at += 1;
                return;
            }
            "*" => {
                found.push(("*".to_owned(), path));
                return;
            }
            "as" => {
                found.push((tokens[*at].clone(), path));
                *at += 1;
                return;
            }
            "," | "}" => {
                *at -= 1;
                break;
            }
            "self" if !path.is_empty() => {}
            word => path.push(word.to_owned()),
        }
    }
    if let Some(last) = path.last().cloned() {
        found.push((last, path));
    }
}

/// Resolves `self` and `super` at the beginning of a path within this module.
fn absolute(module: &Name, path: Name) -> Name {
    let supers = path.iter().take_while(|segment| *segment == "super").count();
    let is_self = path.first().is_some_and(|first| first == "self");
    if supers == 0 && !is_self {
        return path;
    }
    let kept = module[..module.len().saturating_sub(supers)].iter().cloned();
    let rest = path.into_iter().skip(supers + usize::from(is_self));
    ["crate".to_owned()].into_iter().chain(kept).chain(rest).collect()
}
