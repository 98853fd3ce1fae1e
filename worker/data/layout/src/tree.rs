//! The files below a folder, by what they are to dtrain.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use dtrain_data::ignored::EXTENSIONS;

/// Folders below folders that are read. Known layouts need four.
const DEEPEST: usize = 6;

/// A folder of data.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// The folder itself, as the user names it.
    pub(crate) root: PathBuf,
    pub(crate) top: Folder,
}

/// A folder below it.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    /// Its path below the root, with `/`; empty for the root.
    pub(crate) path: String,
    /// By name.
    pub(crate) folders: Vec<Folder>,
    /// Names of images in this folder, GIF files included, in their order.
    pub(crate) images: Vec<String>,
    /// Names of other files, in their order.
    pub(crate) files: Vec<String>,
}

impl Tree {
    pub(crate) fn read(root: &Path) -> io::Result<Self> {
        let mut root = root.to_owned();
        let mut top = Folder::read(&root, "", 0, &mut HashSet::new())?;
        // Archives often have one folder that holds all.
        while let ([only], true, true) = (top.folders.as_slice(), top.images.is_empty(), top.files.is_empty())
        {
            if only.folders.is_empty() {
                break;
            }
            root.push(only.name());
            top = Folder::read(&root, "", 0, &mut HashSet::new())?;
        }
        Ok(Self { root, top })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.top.walk().iter().all(|folder| folder.images.is_empty() && folder.files.is_empty())
    }

    /// Returns the path of a file.
    pub(crate) fn path(&self, folder: &Folder, name: &str) -> PathBuf {
        self.root.join(&folder.path).join(name)
    }

    /// Returns the folder that holds the root, and the name of the root in it.
    pub(crate) fn above(&self) -> Option<(String, String)> {
        let whole = self.root.canonicalize().ok()?;
        let name = whole.file_name()?.to_str()?.to_owned();
        let above = match self.root.components().next_back() {
            Some(std::path::Component::Normal(_)) => self.root.parent()?.to_owned(),
            _ => self.root.join(".."),
        };
        let above = if above.as_os_str().is_empty() { PathBuf::from(".") } else { above };
        Some((above.to_str()?.to_owned(), name))
    }

    /// Returns the root for a recipe.
    pub(crate) fn shown(&self) -> String {
        self.root.to_string_lossy().into_owned()
    }
}

impl Folder {
    /// Reads a folder. `above`: the folders that hold it; a link to one of them is empty.
    fn read(root: &Path, path: &str, depth: usize, above: &mut HashSet<PathBuf>) -> io::Result<Self> {
        let folder = root.join(path);
        let mut found = Self { path: path.to_owned(), ..Self::default() };
        let whole = folder.canonicalize()?;
        if !above.insert(whole.clone()) {
            return Ok(found);
        }
        let mut folders = Vec::new();
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.starts_with('.') || name == "__MACOSX" {
                continue;
            }
            let kind = entry.file_type()?;
            match kind.is_dir() || kind.is_symlink() && entry.path().is_dir() {
                true => folders.push(name),
                false if is_image(&name) => found.images.push(name),
                false => found.files.push(name),
            }
        }
        folders.sort_unstable();
        found.images.sort_unstable();
        found.files.sort_unstable();
        if depth < DEEPEST {
            for name in folders {
                let path = if path.is_empty() { name } else { format!("{path}/{name}") };
                found.folders.push(Self::read(root, &path, depth + 1, above)?);
            }
        }
        above.remove(&whole);
        Ok(found)
    }

    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the number of images here and below.
    pub(crate) fn count(&self) -> usize {
        self.images.len() + self.folders.iter().map(Self::count).sum::<usize>()
    }

    pub(crate) fn has(&self, file: &str) -> bool {
        self.files.iter().any(|name| name == file)
    }

    /// Returns this folder and all below it.
    pub(crate) fn walk(&self) -> Vec<&Self> {
        let below = self.folders.iter().flat_map(Self::walk);
        std::iter::once(self).chain(below).collect()
    }

    /// Returns the images here and below, as paths below the root.
    pub(crate) fn all_images(&self) -> Vec<String> {
        let path = |folder: &Self, name: &String| match folder.path.as_str() {
            "" => name.clone(),
            path => format!("{path}/{name}"),
        };
        let of = |folder: &Self| folder.images.iter().map(|name| path(folder, name)).collect::<Vec<_>>();
        self.walk().into_iter().flat_map(of).collect()
    }
}

/// Returns whether a file of this name is an image, a mask or a map.
pub(crate) fn is_image(name: &str) -> bool {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    ending.is_some_and(|ending| ending == "gif" || EXTENSIONS.contains(&ending.as_str()))
}

/// Returns a name without its ending.
pub(crate) fn stem(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}
