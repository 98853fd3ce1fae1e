//! Pairs of images and masks by patterns of their names.

use std::path::Path;

use dtrain_common::text::counted;
use dtrain_recipe::{NamePattern, Pair};

use super::super::error::DataError;
use super::super::ignored::{Ignored, is_mask};
use super::super::names::listed;
use super::super::paths::Listing;

/// The files of one side whose names are of the form of its pattern, by what stands for `{id}`.
struct Side {
    files: Listing,
    /// The id and the place of each file, by id.
    ids: Vec<(String, usize)>,
}

/// Files without a partner.
pub(super) struct Unpaired {
    pub(super) images: Vec<String>,
    pub(super) masks: Vec<String>,
    /// The remedy, if it differs from that of other names.
    pub(super) remedy: Option<String>,
}

/// Keeps the files that pair up, by their ids; the error has files without a partner. Files of other names are noted in `ignored`.
/// In one folder a file that is of both forms is a mask.
pub(super) fn pair_up(
    pair: &Pair,
    folders: [&Path; 2],
    [images, masks]: [Listing; 2],
    ignored: &mut Ignored,
) -> Result<Result<[Listing; 2], Unpaired>, DataError> {
    let is_one_folder = folders[0] == folders[1];
    let is_of_mask = |path: &str| is_one_folder && id(&pair.masks, path).is_some();
    let is_of_image = |path: &str| is_one_folder && id(&pair.images, path).is_some();
    let image = Side::of(&pair.images, folders[0], images, &is_of_mask, &|_| false, ignored)?;
    let mask = Side::of(&pair.masks, folders[1], masks, &|_| false, &is_of_image, ignored)?;
    let lonely = |one: &Side, other: &Side| {
        let is_alone =
            |(id, _): &&(String, usize)| other.ids.binary_search_by(|(known, _)| known.cmp(id)).is_err();
        one.ids.iter().filter(is_alone).map(|(_, at)| one.files.path(*at)).collect::<Vec<_>>()
    };
    let (images, masks) = (lonely(&image, &mask), lonely(&mask, &image));
    Ok(match images.is_empty() && masks.is_empty() {
        true => Ok([image.ordered(), mask.ordered()]),
        false => Err(Unpaired { remedy: Some(remedy(pair, &images, &masks)), images, masks }),
    })
}

/// Says which mask the first image without one has by the pattern.
fn remedy(pair: &Pair, images: &[String], masks: &[String]) -> String {
    let expected = |from: &NamePattern, to: &NamePattern, path: &String| {
        Some((path.clone(), to.with_id(id(from, path)?)))
    };
    let of_image = images
        .first()
        .and_then(|path| expected(&pair.images, &pair.masks, path))
        .map(|found| ("mask", found));
    let of_mask = || {
        masks.first().and_then(|path| expected(&pair.masks, &pair.images, path)).map(|found| ("image", found))
    };
    let example = of_image
        .or_else(of_mask)
        .map(|(kind, (path, other))| format!(", the {kind} of `{path}` is `{other}`"));
    format!(
        "by data.pair = \"{pair}\"{}; correct the pattern, or remove files without a partner",
        example.unwrap_or_default()
    )
}

/// Returns what stands for `{id}` in a path. A pattern without an ending is one of the path without its ending.
fn id<'a>(pattern: &NamePattern, path: &'a str) -> Option<&'a str> {
    let name_from = path.rfind('/').map_or(0, |at| at + 1);
    let end = path[name_from..].rfind('.').map_or(path.len(), |at| name_from + at);
    pattern.id(if is_mask(pattern.as_str()) { path } else { &path[..end] })
}

impl Side {
    /// Finds the files of a pattern, without those of the other side: `is_taken` whatever their form, `is_other` if they are not of
    /// the pattern's form.
    fn of(
        pattern: &NamePattern,
        folder: &Path,
        files: Listing,
        is_taken: &dyn Fn(&str) -> bool,
        is_other: &dyn Fn(&str) -> bool,
        ignored: &mut Ignored,
    ) -> Result<Self, DataError> {
        let (mut ids, mut others) = (Vec::new(), Vec::new());
        for at in 0..files.len() {
            let path = files.path(at);
            match id(pattern, &path) {
                _ if is_taken(&path) => {}
                Some(id) => ids.push((id.to_owned(), at)),
                None if is_other(&path) => {}
                None => others.push(path),
            }
        }
        if ids.is_empty() {
            others.sort_unstable();
            return Err(DataError::NoNames(folder.to_owned(), pattern.as_str().to_owned(), others));
        }
        if !others.is_empty() {
            others.sort_unstable();
            let (count, folder) = (counted(others.len(), "file"), folder.display());
            ignored.note(format!(
                "{count} in {folder} not used, because the names are not of the form {} of data.pair: {}",
                pattern.as_str(),
                listed(&others)
            ));
        }
        ids.sort_unstable_by(|(one, at), (other, other_at)| {
            one.cmp(other).then_with(|| files.path(*at).cmp(&files.path(*other_at)))
        });
        match ids.windows(2).find(|two| two[0].0 == two[1].0) {
            None => Ok(Self { files, ids }),
            Some(two) => {
                let names = Box::new([two[0].1, two[1].1].map(|at| files.path(at)));
                Err(DataError::SameId(
                    folder.to_owned(),
                    names,
                    two[0].0.clone(),
                    pattern.as_str().to_owned(),
                ))
            }
        }
    }

    /// Returns the files by id.
    fn ordered(mut self) -> Listing {
        self.files.take(self.ids.iter().map(|(_, at)| *at));
        self.files
    }
}
