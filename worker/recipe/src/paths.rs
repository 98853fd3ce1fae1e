//! The paths of a recipe: made absolute by loading, and checked before a run.

use std::io;
use std::path::{Path, PathBuf};

use dtrain_common::recipe::{Problem, RecipeError};
use dtrain_common::run_dir::follow;

use super::data_kind::Root;
use super::{MaskColors, Recipe, Target, Tokenizer, Val};

/// Makes data.root and the paths of `[model]` absolute, from the current directory.
pub(super) fn make_absolute(recipe: &mut Recipe) -> Vec<Problem> {
    let mut problems = Vec::new();
    let one = [
        ("data.root", recipe.data.root.as_mut()),
        ("model.file", recipe.model.file.as_mut()),
        ("model.weights", recipe.model.weights.as_mut()),
    ];
    let one = one.into_iter().filter_map(|(key, path)| path.map(|path| (key, path)));
    let tokenizer = match &mut recipe.data.tokenizer {
        Tokenizer::File(path) => Some(("data.tokenizer", path)),
        Tokenizer::Chars | Tokenizer::Bytes => None,
    };
    let sources = recipe.data.source.iter_mut().map(|source| ("data.source", &mut source.root));
    let libraries = recipe.model.libraries.iter_mut().map(|path| ("model.libraries", path));
    let mut make = |key: &str, path: &mut PathBuf| match std::path::absolute(&*path) {
        Ok(absolute) => *path = absolute,
        Err(error) => problems.push(Problem::at(key, format!("cannot be made absolute: {error}"))),
    };
    one.chain(tokenizer).chain(sources).chain(libraries).for_each(|(key, path)| make(key, path));
    recipe.change_own_programs(make);
    problems
}

impl Recipe {
    /// Checks paths in the file system: folders can be listed, files can be read. Does not check a user's own
    /// trainer. Call it once before anything is started or written.
    pub fn check_paths(&self) -> Result<(), RecipeError> {
        if self.task.facts().is_own {
            return Ok(());
        }
        for (number, alone) in self.by_source().iter().enumerate() {
            alone.check_source().map_err(|(key, message)| {
                let key = self.source_key(number, key);
                RecipeError::key_only(
                    &key,
                    message.replace("data.root", &self.source_key(number, "data.root")),
                )
            })?;
        }
        if let Tokenizer::File(path) = &self.data.tokenizer {
            readable_file(path).map_err(|message| RecipeError::key_only("data.tokenizer", message))?;
        }
        let model = &self.model;
        if let Some(folder) = model.weights.as_ref().map(|path| follow(path)).filter(|path| path.is_dir()) {
            return Err(RecipeError::key_only("model.weights", weights_of(&folder)));
        }
        let files = [("model.file", &model.file), ("model.weights", &model.weights)];
        let files = files.into_iter().flat_map(|(key, path)| path.iter().map(move |path| (key, path)));
        for (key, path) in self.own_programs() {
            readable_file(&path).map_err(|message| RecipeError::key_only(&key, message))?;
        }
        for (key, path) in files.chain(model.libraries.iter().map(|path| ("model.libraries", path))) {
            readable_file(path).map_err(|message| RecipeError::key_only(key, message))?;
        }
        Ok(())
    }

    /// Returns the folders in which a set has its files; the root, if the sets of this kind have no folders.
    pub fn folders_of_sets(&self) -> Vec<PathBuf> {
        let data = &self.data;
        let Some(root) = &data.root else { return Vec::new() };
        match data.kind.root() {
            Root::Sets => self.names_of_sets().iter().flatten().map(|(_, name)| root.join(name)).collect(),
            _ => vec![root.clone()],
        }
    }

    /// Returns the names of the sets below the root, and those of their masks or annotations, each with its key.
    fn names_of_sets(&self) -> [Vec<(&'static str, String)>; 2] {
        let data = &self.data;
        let val = data.val.as_ref().and_then(Val::set);
        let test = Some(&data.test).filter(|_| data.test_of_train().is_none());
        let mut sets = vec![("data.train", data.train.clone())];
        sets.extend(test.map(|name| ("data.test", name.clone())));
        sets.extend(val.map(|name| ("data.val", name.to_owned())));
        sets.extend(data.tests.values().map(|name| ("data.tests", name.clone())));
        let mut masks = Vec::new();
        if self.target().is_some_and(Target::is_of_pixels) {
            masks.push(("data.train_masks", data.train_masks.clone()));
            masks.extend(test.map(|_| ("data.test_masks", data.test_masks.clone())));
            masks.extend(val.map(|_| ("data.val_masks", data.val_masks.clone())));
            masks.extend(data.tests.values().map(|name| ("data.tests", format!("{name}_masks"))));
        }
        [sets, masks]
    }

    /// Checks the folder of each set, and the folder of its masks or the file of its annotations.
    fn check_sets(&self, root: &Path) -> Result<(), (&'static str, String)> {
        let data = &self.data;
        let are_files = data.kind.root() == Root::Annotated;
        let holds = if are_files {
            "folders of images and the files of annotations"
        } else {
            "train and test folders"
        };
        list(root).map_err(|message| {
            ("data.root", format!("{message}; set data.root to the folder that holds the {holds}"))
        })?;
        let [mut folders, mut masks] = self.names_of_sets();
        if !are_files {
            folders.append(&mut masks);
        }
        for (key, name) in folders {
            list(&root.join(name)).map_err(|message| (key, format!("{message}; {}", folders_of(root))))?;
        }
        for (key, name) in masks {
            let remedy = "set it to a file of annotations below data.root, such as \"annotations/instances_train2017.json\"";
            readable_file(&root.join(name)).map_err(|message| (key, format!("{message}; {remedy}")))?;
        }
        Ok(())
    }

    /// Checks the paths of the only source. An error is the key and the message.
    fn check_source(&self) -> Result<(), (&'static str, String)> {
        let data = &self.data;
        let missing = || ("data.root", "missing; name the folder that holds the data".to_owned());
        let root = || data.root.as_deref().ok_or_else(missing);
        let of_root = |message, remedy| ("data.root", format!("{message}; {remedy}"));
        match data.kind.root() {
            Root::Lists => {
                let remedy = "set data.root to the folder that holds the lists of images";
                list(root()?).map_err(|message| of_root(message, remedy))?;
            }
            Root::Sets | Root::Annotated => self.check_sets(root()?)?,
            Root::File => {
                let remedy = "set data.root to the file of the table";
                readable_file(root()?).map_err(|message| of_root(message, remedy))?;
            }
            Root::Packs => {
                let remedy = "set data.root to the folder that holds the files of data.train and data.test";
                list(root()?).map_err(|message| of_root(message, remedy))?;
            }
            // A text is a file or a folder of files.
            Root::Text => {
                let root = root()?;
                let checked = if root.is_dir() { list(root) } else { readable_file(root) };
                let remedy = "set data.root to a .txt file or to a folder of them";
                checked.map_err(|message| of_root(message, remedy))?;
            }
            Root::Tokens => {
                let root = root()?;
                let checked = if root.is_dir() { list(root) } else { readable_file(root) };
                let remedy = "set data.root to a file of tokens (.bin), or to a folder with one for each set";
                checked.map_err(|message| of_root(message, remedy))?;
            }
            Root::Nothing => {}
        }
        match &data.mask_colors {
            Some(MaskColors::File(path)) => {
                readable_file(path).map_err(|message| ("data.mask_colors", message))?;
                Err((
                    "data.mask_colors",
                    format!("{} is too large for a file of colours; name the right file", path.display()),
                ))
            }
            _ => Ok(()),
        }
    }
}

fn list(folder: &Path) -> Result<(), String> {
    let name = folder.display();
    std::fs::read_dir(folder).map(drop).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("the folder {name} does not exist{}", home_hint(folder)),
        io::ErrorKind::NotADirectory => format!("{name} is not a folder"),
        _ => format!("the folder {name} cannot be listed: {error}"),
    })
}

/// Names the weights in a folder that was given for them: a run, a checkpoint, or a model of Hugging Face.
fn weights_of(folder: &Path) -> String {
    let latest = |name| follow(&folder.join(name)).join("model.safetensors");
    let usual = [
        latest("checkpoints/latest"),
        latest("latest"),
        folder.join("model.safetensors.index.json"),
        folder.join("model.safetensors"),
    ];
    let usual = usual.into_iter().find(|path| path.is_file());
    let remedy = match usual {
        Some(file) => format!("set model.weights to {}", file.display()),
        None => "set model.weights to a safetensors file in it".to_owned(),
    };
    format!("{} is a folder; {remedy}", folder.display())
}

fn readable_file(path: &Path) -> Result<(), String> {
    let name = path.display();
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => format!("the file {name} does not exist{}", home_hint(path)),
        _ => format!("the file {name} cannot be read: {error}"),
    };
    // Opening a named pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(format!("{name} is not a file"));
    }
    std::fs::File::open(path).map(drop).map_err(unreadable)
}

fn home_hint(path: &Path) -> &'static str {
    match path.iter().any(|part| part == "~") {
        true => "; `~` is not expanded in a recipe, write the whole path",
        false => "",
    }
}

/// Lists the sub-folders, for a user who gave a wrong name.
fn folders_of(root: &Path) -> String {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> =
        folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let (root, shown) = (root.display(), names[..names.len().min(8)].join(", "));
    match names.len() {
        0 => format!("{root} has no folders"),
        1 => format!("{root} has only the folder {shown}"),
        2..=8 => format!("{root} has the folders {shown}"),
        count => format!("{root} has the folders {shown} and {} more", count - 8),
    }
}
