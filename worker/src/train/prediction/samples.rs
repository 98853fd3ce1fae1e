//! The names and the needs of input images.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use dtrain_recipe::Recipe;

use crate::data::{Needs, Pictures, Samples};

/// Returns the names of samples: the paths of their first images below the input, or their lines in a table.
pub(super) fn names(samples: &Samples) -> Vec<String> {
    let files = samples.images().next();
    (0..samples.count())
        .map(|at| files.map_or_else(|| samples.describe(at), |files| files.paths.get(at)))
        .collect()
}

/// Returns the names of the images to write, without a folder: those of the inputs with the ending `.png`. Inputs that differ only
/// in the ending keep it, and a name that is taken gets a number.
pub(super) fn image_names(names: &[String]) -> Vec<PathBuf> {
    let stem = |name: &str| Path::new(name).with_extension("");
    let mut counts: HashMap<PathBuf, usize> = HashMap::new();
    names.iter().for_each(|name| *counts.entry(stem(name)).or_default() += 1);
    let of = |name: &String| match counts.get(&stem(name)) {
        Some(1) => stem(name),
        _ => PathBuf::from(name),
    };
    let (mut taken, mut next) = (HashSet::new(), HashMap::<PathBuf, usize>::new());
    let free = |stem: PathBuf| {
        let mut name = stem.clone();
        while !taken.insert(name.clone()) {
            let number = next.entry(stem.clone()).or_insert(2);
            let mut numbered = stem.clone().into_os_string();
            numbered.push(format!("-{number}"));
            *number += 1;
            name = numbered.into();
        }
        name
    };
    names.iter().map(of).map(free).collect()
}

/// Returns the needs of the input images, whatever their size.
pub(super) fn needs(recipe: &Recipe) -> Needs {
    Pictures::needs(recipe.data.channels, recipe.data.orientation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_one_stem_keep_their_endings() {
        let names = ["a/b.jpg", "a/b.png", "a/c.v2.png", "d"].map(str::to_owned);
        let written = image_names(&names);
        assert_eq!(written, ["a/b.jpg", "a/b.png", "a/c.v2", "d"].map(PathBuf::from));
        // The third would be the first's, and a table may name an image twice.
        let names = ["a.jpg", "a.png", "a.jpg.png", "x.png", "x.png"].map(str::to_owned);
        assert_eq!(image_names(&names), ["a.jpg", "a.png", "a.jpg-2", "x.png", "x.png-2"].map(PathBuf::from));
    }
}
