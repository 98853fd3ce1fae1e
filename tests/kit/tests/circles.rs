//! No circles of files: within a crate, what a file uses never uses that file, neither itself nor through others.
//!
//! A file uses another where a path in it (`crate::`, `super::`, `self::`, or one that begins with a module of its own) leads to an item
//! that the other defines. A re-export is followed to the definition and is no use by itself; a child module's declaration is none either,
//! and neither is what a module takes from those that it lies in.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Files that are in a circle today. The list only becomes shorter: take an entry out when its circle is gone.
const KNOWN: &[&str] = &[
    "worker/data/src/check.rs",
    "worker/data/src/error.rs",
    "worker/data/src/image_folder.rs",
    "worker/data/src/mask_folder.rs",
    "worker/data/src/mask_folder/uncounted.rs",
    "worker/data/src/picture_set.rs",
    "worker/models/src/error.rs",
    "worker/models/src/mismatch.rs",
    "worker/models/src/tensor_file.rs",
    "worker/shared-memory/src/engine.rs",
    "worker/shared-memory/src/member.rs",
];

#[test]
fn no_file_is_in_a_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap();
    let mut found = BTreeMap::new();
    for source in crates(&root) {
        for circle in Crate::read(&source).circles() {
            let names: Vec<String> = circle.iter().map(|file| relative(&root, file)).collect();
            found.extend(names.iter().map(|name| (name.clone(), names.join(", "))));
        }
    }
    let new: BTreeSet<&String> = found
        .iter()
        .filter(|(file, _)| !KNOWN.contains(&file.as_str()))
        .map(|(_, circle)| circle)
        .collect();
    assert!(
        new.is_empty(),
        "circles of files:\n{}",
        new.into_iter()
            .map(|circle| format!("  {circle}\n"))
            .collect::<String>()
    );
    let gone: Vec<&&str> = KNOWN.iter().filter(|file| !found.contains_key(**file)).collect();
    assert!(
        gone.is_empty(),
        "no longer in a circle, take them out of KNOWN: {gone:?}"
    );
}

/// The `src` folders of the workspace's packages.
fn crates(root: &Path) -> Vec<PathBuf> {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = manifest
        .split_once("members = [")
        .unwrap()
        .1
        .split_once(']')
        .unwrap()
        .0;
    let names = members.split('"').skip(1).step_by(2);
    names
        .map(|name| root.join(name).join("src"))
        .filter(|source| source.is_dir())
        .collect()
}

fn relative(root: &Path, file: &Path) -> String {
    file.strip_prefix(root).unwrap().display().to_string()
}

/// A path to a module: the names below the crate's root.
type Name = Vec<String>;

/// A module with a file of its own.
#[derive(Default)]
struct Module {
    file: PathBuf,
    /// What it defines outside of its tests, child modules with files excepted.
    items: BTreeSet<String>,
    /// What its `use` declarations bring: the name here, the whole path, and whether others may use it from here.
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
        let mut module = Module {
            file: file.to_owned(),
            ..Module::default()
        };
        // Children of `a.rs` lie in `a/`, those of `mod.rs`, `lib.rs` and `main.rs` beside it.
        let is_root = ["mod.rs", "lib.rs", "main.rs"]
            .iter()
            .any(|root| file.ends_with(root));
        let folder = if is_root {
            file.parent().unwrap().to_owned()
        } else {
            file.with_extension("")
        };
        let mut at = 0;
        let mut public = false;
        while at < tokens.len() {
            let token = tokens[at].as_str();
            match token {
                "mod" if tokens.get(at + 2).is_some_and(|next| next == ";") => {
                    let child = &tokens[at + 1];
                    let places = [
                        folder.join(format!("{child}.rs")),
                        folder.join(child).join("mod.rs"),
                    ];
                    if let Some(place) = places.iter().find(|place| place.is_file()) {
                        let name = [name.clone(), vec![child.clone()]].concat();
                        if !self.modules.contains_key(&name) {
                            self.module(name, place);
                        }
                    }
                    at += 2;
                }
                "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static" | "mod"
                | "macro_rules" => {
                    let skipped = usize::from(
                        tokens
                            .get(at + 1)
                            .is_some_and(|next| next == "!" || next == "mut"),
                    );
                    module.items.extend(tokens.get(at + 1 + skipped).cloned());
                    at += 1;
                }
                "use" => {
                    let end = at + tokens[at..].iter().position(|token| token == ";").unwrap();
                    let mut imports = Vec::new();
                    tree(&tokens[at + 1..end], &mut 0, &Vec::new(), &mut imports);
                    module.imports.extend(
                        imports
                            .into_iter()
                            .map(|(as_name, path)| (as_name, absolute(&name, path), public)),
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
                        // As in `pub(crate)`.
                        "crate" | "super" | "in" | "self" => public,
                        _ => false,
                    };
                    continue;
                }
                // `macro!(...)` and `path::{...}` in code need nothing more.
                "(" | ")" => {
                    at += 1;
                    continue;
                }
                _ => {}
            }
            public = false;
            at += 1;
        }
        // Of a package with a library and a program, both roots are one module.
        let root = self.modules.entry(name).or_default();
        if root.file.as_os_str().is_empty() {
            *root = module;
        }
    }

    /// The file that defines what a path leads to from this module, if it is one of this crate.
    fn definition(&self, from: &Name, path: &[String], depth: usize) -> Option<&Module> {
        let (first, rest) = path.split_first()?;
        if depth > 16 {
            return None;
        }
        let mut place: Name = match first.as_str() {
            "crate" => Vec::new(),
            _ => {
                // Relative: a child module, or something that is imported here.
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
            let child = [place.clone(), vec![segment.clone()]].concat();
            if self.modules.contains_key(&child) {
                place = child;
                continue;
            }
            let module = self.modules.get(&place)?;
            if module.items.contains(segment) {
                return Some(module);
            }
            let named = module.imports.iter().find(|(name, _, _)| name == segment);
            let globs = module.imports.iter().filter(|(name, _, _)| name == "*");
            let ways = named
                .into_iter()
                .map(|(_, whole, _)| whole.clone())
                .chain(globs.map(|(_, whole, _)| [&whole[..], std::slice::from_ref(segment)].concat()));
            for whole in ways {
                let whole = [&whole[..], &rest[index + 1..]].concat();
                if let Some(found) = self.definition(&place, &whole, depth + 1) {
                    return Some(found);
                }
            }
            // What a macro makes, or a variant or method of what is found here.
            return Some(module);
        }
        self.modules.get(&place)
    }

    /// The files that each file uses.
    fn uses(&self) -> BTreeMap<&Path, BTreeSet<&Path>> {
        let mut uses: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
        for (name, module) in &self.modules {
            let used = module
                .imports
                .iter()
                .filter(|(as_name, _, public)| !public || module.words.contains(as_name));
            let paths = used.map(|(_, path, _)| path).chain(&module.paths);
            let files = paths
                .filter_map(|path| self.definition(name, path, 0))
                .map(|found| found.file.as_path());
            let own: BTreeSet<&Path> = (0..=name.len())
                .filter_map(|length| Some(self.modules.get(&name[..length])?.file.as_path()))
                .collect();
            uses.entry(&module.file)
                .or_default()
                .extend(files.filter(|file| !own.contains(file)));
        }
        uses
    }

    /// Groups of files of which each uses, directly or not, every other.
    fn circles(&self) -> Vec<BTreeSet<&Path>> {
        let uses = self.uses();
        let reached = |from| {
            let (mut reached, mut left) = (BTreeSet::new(), vec![from]);
            while let Some(file) = left.pop() {
                left.extend(uses[file].iter().filter(|next| reached.insert(**next)));
            }
            reached
        };
        let all: BTreeMap<&Path, BTreeSet<&Path>> = uses.keys().map(|file| (*file, reached(file))).collect();
        let circles = all
            .iter()
            .filter(|(file, reached)| reached.contains(*file))
            .map(|(file, reached)| {
                reached
                    .iter()
                    .copied()
                    .filter(|other| all[other].contains(file))
                    .collect()
            });
        circles.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// `use` trees as pairs of a name and its path; the name of a glob is `*`.
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

/// A path with `self` and `super` at its beginning resolved within this module.
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

fn is_word(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Words, `::` and single signs, without comments, strings, characters and modules under `#[cfg(test)]`.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let first = rest.chars().next().unwrap();
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("/*") {
            at += rest.find("*/").map_or(rest.len(), |end| end + 2);
        } else if let Some(length) = raw_string(rest) {
            at += length;
        } else if first == '"' {
            at += string(rest);
        } else if first == '\'' {
            at += character(rest);
        } else if is_word(rest) {
            let length = rest
                .find(|next: char| !next.is_alphanumeric() && next != '_')
                .unwrap_or(rest.len());
            tokens.push(rest[..length].to_owned());
            at += length;
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            at += 2;
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            at += first.len_utf8();
        }
    }
    without_tests(tokens)
}

fn raw_string(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix("br").or(rest.strip_prefix('r'))?;
    let hashes = after.bytes().take_while(|byte| *byte == b'#').count();
    let content = after[hashes..].strip_prefix('"')?;
    let end = content
        .find(&format!("\"{}", "#".repeat(hashes)))
        .unwrap_or(content.len());
    Some(rest.len() - content.len() + end + 1 + hashes)
}

fn string(rest: &str) -> usize {
    let mut escaped = false;
    let end = rest[1..].find(|next: char| {
        let ends = next == '"' && !escaped;
        escaped = next == '\\' && !escaped;
        ends
    });
    end.map_or(rest.len(), |end| end + 2)
}

/// The length of a character; of a lifetime, that of its sign.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => rest[3..].find('\'').map_or(rest.len(), |end| end + 4),
        Some(_) if chars.next().is_some_and(|(_, next)| next == '\'') => rest[1..].find('\'').unwrap() + 2,
        _ => 1,
    }
}

fn without_tests(tokens: Vec<String>) -> Vec<String> {
    const TESTS: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept: Vec<String> = Vec::with_capacity(tokens.len());
    let mut left = tokens.into_iter();
    while let Some(token) = left.next() {
        kept.push(token);
        if kept.len() < TESTS.len() || kept[kept.len() - TESTS.len()..] != TESTS {
            continue;
        }
        kept.truncate(kept.len() - TESTS.len());
        // The item that follows: to its semicolon, or to the end of its block.
        let mut depth = 0;
        for token in left.by_ref() {
            match token.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 && (token == "}" || token == ";") {
                break;
            }
        }
    }
    kept
}
