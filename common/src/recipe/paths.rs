//! The paths of a recipe: made absolute when it is loaded, so that a saved recipe works from anywhere, and looked at
//! before a run.

use std::io;
use std::path::{Path, PathBuf};

use super::error::RecipeError;
use super::origin::Problem;
use super::{DataKind, Recipe, Task};

/// Makes data.root, model.file and model.weights absolute, from the current directory.
pub(super) fn make_absolute(recipe: &mut Recipe) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (key, path) in [
        ("data.root", &mut recipe.data.root),
        ("model.file", &mut recipe.model.file),
        ("model.weights", &mut recipe.model.weights),
    ] {
        let Some(path) = path else { continue };
        match std::path::absolute(&*path) {
            Ok(absolute) => *path = absolute,
            Err(error) => problems.push(Problem::at(key, format!("cannot be made absolute: {error}"))),
        }
    }
    problems
}

impl Recipe {
    /// The checks that need the file system: the folders that hold the samples can be listed, and the text, the module
    /// and the weights can be read. What a user's own trainer reads is its own affair. Call it once before anything is
    /// started or written.
    ///
    /// # Errors
    /// [`RecipeError`] with the key and the path.
    pub fn check_paths(&self) -> Result<(), RecipeError> {
        if self.task == Task::Custom {
            return Ok(());
        }
        match self.data.kind {
            DataKind::Folder => self.check_folders()?,
            DataKind::Text => self.check_text()?,
            DataKind::Generated => {}
        }
        for (key, path) in [
            ("model.file", &self.model.file),
            ("model.weights", &self.model.weights),
        ] {
            if let Some(path) = path {
                readable_file(path).map_err(|message| RecipeError::key_only(key, message))?;
            }
        }
        Ok(())
    }

    fn root(&self) -> Result<&Path, RecipeError> {
        let missing = || RecipeError::key_only("data.root", "missing; name the folder that holds the data");
        self.data.root.as_deref().ok_or_else(missing)
    }

    fn check_folders(&self) -> Result<(), RecipeError> {
        let root = self.root()?;
        list(root).map_err(|message| {
            let remedy = "set data.root to the folder that holds the train and test folders";
            RecipeError::key_only("data.root", format!("{message}; {remedy}"))
        })?;
        let data = &self.data;
        let images = [("data.train", &data.train), ("data.test", &data.test)];
        let masks = [
            ("data.train_masks", &data.train_masks),
            ("data.test_masks", &data.test_masks),
        ];
        let masks = masks.into_iter().filter(|_| self.task == Task::Segment);
        for (key, name) in images.into_iter().chain(masks) {
            let folder = root.join(name);
            list(&folder)
                .map_err(|message| RecipeError::key_only(key, format!("{message}; {}", folders_of(root))))?;
        }
        Ok(())
    }

    /// A text is a file or a folder of files.
    fn check_text(&self) -> Result<(), RecipeError> {
        let root = self.root()?;
        let checked = if root.is_dir() {
            list(root)
        } else {
            readable_file(root)
        };
        checked.map_err(|message| {
            let remedy = "set data.root to a .txt file or to a folder of them";
            RecipeError::key_only("data.root", format!("{message}; {remedy}"))
        })
    }
}

fn list(folder: &Path) -> Result<(), String> {
    match std::fs::read_dir(folder) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!(
            "the folder {} does not exist{}",
            folder.display(),
            home_hint(folder)
        )),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Err(format!("{} is not a folder", folder.display()))
        }
        Err(error) => Err(format!(
            "the folder {} cannot be listed: {error}",
            folder.display()
        )),
    }
}

fn readable_file(path: &Path) -> Result<(), String> {
    // To open a named pipe is to wait for its writer.
    let opened = std::fs::metadata(path).and_then(|meta| match meta.is_file() {
        true => std::fs::File::open(path).map(|_| true),
        false => Ok(false),
    });
    match opened {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{} is not a file", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!(
            "the file {} does not exist{}",
            path.display(),
            home_hint(path)
        )),
        Err(error) => Err(format!("the file {} cannot be read: {error}", path.display())),
    }
}

/// Only a shell expands `~`.
fn home_hint(path: &Path) -> &'static str {
    if path.iter().any(|part| part == "~") {
        "; `~` is not expanded in a recipe, write the whole path"
    } else {
        ""
    }
}

/// What sub-folders there are, for a user who has the wrong name.
fn folders_of(root: &Path) -> String {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let folders = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    let mut names: Vec<String> = folders
        .filter_map(|path: PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    match names.len() {
        0 => format!("{} holds no folders", root.display()),
        1..=8 => format!("{} holds {}", root.display(), names.join(", ")),
        count => format!(
            "{} holds {} and {} more",
            root.display(),
            names[..8].join(", "),
            count - 8
        ),
    }
}
