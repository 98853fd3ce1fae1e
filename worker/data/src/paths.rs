//! Many paths below a folder in little memory: about the bytes of the names and 12 more for each.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use dtrain_shared_memory::MemoryError;
use serde::{Deserialize, Serialize};

use super::packed::Packed;
use super::texts::Texts;

/// Paths of files below one folder. Clones share them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths {
    /// The folders of the files, `""` for the folder itself.
    folders: Texts,
    /// The number of each file's folder.
    folder: Packed<u32>,
    names: Texts,
}

impl Paths {
    /// Returns the number of files.
    pub fn len(&self) -> usize {
        self.folder.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a path, with `/` between names.
    pub fn get(&self, at: usize) -> String {
        joined(self.parts(at))
    }

    /// Returns the path of a file in the folder `root`.
    pub fn below(&self, root: &Path, at: usize) -> PathBuf {
        let (folder, name) = self.parts(at);
        let mut path = PathBuf::with_capacity(root.as_os_str().len() + folder.len() + name.len() + 2);
        path.push(root);
        if !folder.is_empty() {
            path.push(folder);
        }
        path.push(name);
        path
    }

    /// Returns the folder and the name of a file.
    pub(super) fn parts(&self, at: usize) -> (&str, &str) {
        (self.folders.get(self.folder[at] as usize), self.names.get(at))
    }

    /// Joins the paths of several lists, each with a folder that holds its files.
    pub(super) fn join(parts: &[(&str, &Self)]) -> Result<Self, MemoryError> {
        let of_part = |(above, paths): &(&str, &Self)| {
            let folders = (0..paths.folders.len()).map(|at| joined((above, paths.folders.get(at))));
            folders.collect::<Vec<_>>()
        };
        let folders: Vec<String> = parts.iter().flat_map(of_part).collect();
        let mut first = 0;
        let numbers = parts.iter().flat_map(|(_, paths)| {
            let before = first;
            first += paths.folders.len() as u32;
            paths.folder.iter().map(move |folder| before + folder)
        });
        Ok(Self {
            folders: Texts::write(folders.iter().map(String::as_str))?,
            folder: Packed::write(numbers)?,
            names: Texts::write(
                parts.iter().flat_map(|(_, paths)| (0..paths.len()).map(|at| paths.names.get(at))),
            )?,
        })
    }

    /// Returns the paths for which `is_kept`.
    pub(super) fn kept(&self, is_kept: impl Fn(usize) -> bool) -> Result<Self, MemoryError> {
        if (0..self.len()).all(&is_kept) {
            return Ok(self.clone());
        }
        let names = (0..self.len()).filter(|&at| is_kept(at)).map(|at| self.names.get(at));
        Ok(Self {
            folders: self.folders.clone(),
            folder: self.folder.kept(&is_kept)?,
            names: Texts::write(names)?,
        })
    }
}

fn joined((folder, name): (&str, &str)) -> String {
    match (folder, name) {
        ("", only) | (only, "") => only.to_owned(),
        (folder, name) => format!("{folder}/{name}"),
    }
}

/// Paths while they are listed.
#[derive(Debug, Default)]
pub(super) struct Listing {
    folders: Vec<String>,
    /// The folder of the next files, if it has no files yet.
    entered: Option<String>,
    /// All names, one after the other.
    names: String,
    files: Vec<File>,
}

#[derive(Debug, Clone, Copy)]
struct File {
    start: u64,
    folder: u32,
    length: u16,
}

/// How often a long listing reports its progress.
const REPORT_EVERY: usize = 1_000_000;

impl Listing {
    /// Begins a folder, a path with `/` between names, or `""`: the files that are added next are in it.
    pub(super) fn enter(&mut self, folder: &str) {
        self.entered = Some(folder.to_owned());
    }

    /// Adds a file of the last folder. A file system's names are far shorter than 64 KiB.
    pub(super) fn add(&mut self, name: &str) {
        // Folders without images do not count.
        self.folders.extend(self.entered.take());
        self.add_in(self.folders.len().saturating_sub(1) as u32, name);
    }

    /// Adds a folder, for [`Listing::add_in`], and returns its number.
    pub(super) fn folder(&mut self, folder: &str) -> u32 {
        self.folders.push(folder.to_owned());
        self.folders.len() as u32 - 1
    }

    /// Adds a file of the folder of this number.
    pub(super) fn add_in(&mut self, folder: u32, name: &str) {
        let (start, length) = (self.names.len() as u64, name.len().min(usize::from(u16::MAX)) as u16);
        self.names.push_str(name);
        self.files.push(File { start, folder, length });
        if self.files.len().is_multiple_of(REPORT_EVERY) {
            let folder = self.folders.get(folder as usize).map_or("", String::as_str);
            tracing::info!("listed {} million images, up to {folder:?}", self.files.len() / REPORT_EVERY);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn path(&self, at: usize) -> String {
        joined(self.parts(&self.files[at]))
    }

    fn parts(&self, file: &File) -> (&str, &str) {
        let start = file.start as usize;
        (&self.folders[file.folder as usize], &self.names[start..start + usize::from(file.length)])
    }

    /// Sorts the files from `first` on by their paths.
    pub(super) fn sort(&mut self, first: usize) {
        let mut files = std::mem::take(&mut self.files);
        files[first..].sort_unstable_by(|a, b| compare(self.parts(a), self.parts(b)));
        self.files = files;
    }

    /// Sorts all files by their paths without the endings, then by their paths.
    pub(super) fn sort_by_stem(&mut self) {
        let mut files = std::mem::take(&mut self.files);
        files.sort_unstable_by(|a, b| {
            let by_stem = compare(stem(self.parts(a)), stem(self.parts(b)));
            by_stem.then_with(|| compare(self.parts(a), self.parts(b)))
        });
        self.files = files;
    }

    /// Keeps the files of these numbers, in this order.
    pub(super) fn take(&mut self, numbers: impl Iterator<Item = usize>) {
        self.files = numbers.map(|at| self.files[at]).collect();
    }

    /// Compares a path with one of another list, both without their endings.
    pub(super) fn compare_stems(&self, at: usize, other: &Self, other_at: usize) -> Ordering {
        compare(stem(self.parts(&self.files[at])), stem(other.parts(&other.files[other_at])))
    }

    /// Returns the paths in less memory, in the present order.
    pub(super) fn pack(self) -> Result<Paths, MemoryError> {
        Ok(Paths {
            folders: Texts::write(self.folders.iter().map(String::as_str))?,
            folder: Packed::write(self.files.iter().map(|file| file.folder))?,
            names: Texts::write(self.files.iter().map(|file| self.parts(file).1))?,
        })
    }
}

/// Compares two paths byte by byte.
fn compare(one: (&str, &str), other: (&str, &str)) -> Ordering {
    fn bytes<'a>((folder, name): (&'a str, &'a str)) -> impl Iterator<Item = u8> + 'a {
        let slash = if folder.is_empty() { "" } else { "/" };
        folder.bytes().chain(slash.bytes()).chain(name.bytes())
    }
    // Most neighbours of a file are in the same folder.
    match one.0 == other.0 {
        true => one.1.cmp(other.1),
        false => bytes(one).cmp(bytes(other)),
    }
}

fn stem<'a>((folder, name): (&'a str, &'a str)) -> (&'a str, &'a str) {
    (folder, &name[..name.rfind('.').unwrap_or(name.len())])
}

#[cfg(test)]
mod tests;
