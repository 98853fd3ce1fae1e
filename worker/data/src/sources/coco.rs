//! A folder of images, and masks that are drawn from a file of annotations in COCO's format.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use dtrain_common::text::counted;
use dtrain_recipe::Unannotated;

use super::super::annotation_problem::AnnotationProblem as Problem;
use super::super::annotations::{Annotation, Annotations, ImageEntry};
use super::super::decode::fits_in_memory;
use super::super::drawings::{Drawing, Drawings, Shape};
use super::super::error::DataError;
use super::super::ignored::{Ignored, is_image};
use super::super::mask_rule::{MaskKind, MaskRule};
use super::super::names::listed;
use super::super::paths::Listing;
use super::super::regular;
use super::super::samples::{Files, List, ListValues, Samples};
use super::listing::{SPLITS, image_files};
use super::target_table::below;
use super::{Reading, Request};

/// The class of pixels without annotation.
const BACKGROUND: &str = "background";

/// Lists the images that the annotations name: the fields `image` and `mask`, in the order of the images' names. Class 0 is the
/// background, and the categories follow by their ids. Categories of other sets have the numbers of the training set's, by name.
pub(super) fn list(request: &Request<'_>) -> Result<Samples, DataError> {
    let Request { root, set, targets, ref reading, .. } = *request;
    let path = root.join(targets);
    let wrong = |problem| DataError::Annotations(path.clone(), Box::new(problem));
    let all = read(&path)?;
    let (classes, names) = classes(&all, reading).map_err(wrong)?;
    if usize::try_from(reading.mask.ignore).is_ok_and(|ignore| ignore < names.len()) {
        let (ignore, classes) = (reading.mask.ignore, names.len());
        return Err(wrong(Problem::IgnoredClass { ignore, classes }));
    }
    let mut ignored = Ignored::default();
    let images = images(&all, root, set, &mut ignored)?.map_err(wrong)?;
    let mut by_image = by_image(&all, &images, &classes).map_err(wrong)?;
    let images = annotated(images, &by_image, reading.unannotated, &mut ignored).map_err(wrong)?;
    let mut drawings = Vec::with_capacity(images.len());
    let mut unusable = BTreeMap::<_, Vec<i64>>::new();
    for image in &images {
        let mut annotations = by_image.remove(&image.id).unwrap_or_default();
        // Smaller ones are drawn over larger ones.
        annotations.sort_by(|one, other| other.area().total_cmp(&one.area()));
        let mut drawing = Drawing { size: (image.width, image.height), shapes: Vec::new() };
        for annotation in annotations {
            match annotation.parts(drawing.size) {
                Ok(parts) => drawing.shapes.push(Shape { class: classes[&annotation.category_id], parts }),
                Err(reason) => unusable.entry(reason).or_default().push(annotation.id),
            }
        }
        drawings.push(drawing);
    }
    let most = unusable.into_iter().max_by_key(|(reason, ids)| (ids.len(), Reverse(*reason)));
    if let Some((reason, mut ids)) = most {
        ids.sort_unstable();
        return Err(wrong(Problem::Unusable { reason, ids }));
    }
    let rule = MaskRule { kind: MaskKind::Index, classes: names.len(), ignore: reading.mask.ignore, names };
    let files = Files::new(set, paths(&images).pack()?);
    let masks = ListValues::Drawn(Drawings::write(targets, &drawings)?, rule.into());
    Ok(Samples {
        root: root.to_path_buf(),
        set: set.to_owned(),
        table: None,
        sources: Vec::new(),
        lists: vec![List::new("image", ListValues::Images(vec![files])), List::new("mask", masks)],
        size: None,
        ignored,
    })
}

fn read(path: &Path) -> Result<Annotations, DataError> {
    let mut bytes = Vec::new();
    regular::read(path, &mut bytes).map_err(|source| {
        let remedy = "set data.train_masks and data.test_masks to the files of the annotations";
        DataError::UnreadableTable(path.to_owned(), source, remedy)
    })?;
    let wrong = |problem| DataError::Annotations(path.to_owned(), Box::new(problem));
    let all: Annotations =
        serde_json::from_slice(&bytes).map_err(|error| wrong(Problem::Format(error.to_string())))?;
    let is_empty = [
        ("images", all.images.is_empty()),
        ("annotations", all.annotations.is_empty()),
        ("categories", all.categories.is_empty()),
    ];
    match is_empty.iter().find(|(_, is_empty)| *is_empty) {
        Some((name, _)) => Err(wrong(Problem::Empty(name))),
        None => Ok(all),
    }
}

/// Returns the class of each category, and the names of the classes.
fn classes(all: &Annotations, reading: &Reading<'_>) -> Result<(HashMap<i64, u16>, Vec<String>), Problem> {
    let mut by_id = BTreeMap::new();
    for category in &all.categories {
        if by_id.insert(category.id, category.name.as_str()).is_some() {
            return Err(Problem::RepeatedCategory(format!("id {}", category.id)));
        }
        if by_id.values().filter(|name| **name == category.name).count() > 1 {
            return Err(Problem::RepeatedCategory(format!("name {:?}", category.name)));
        }
    }
    let own: Vec<String> = by_id.values().map(ToString::to_string).collect();
    let ignored = reading.ignore_classes;
    let of_train =
        reading.train.and_then(|train| train.mask_rules().next()).map(|(_, rule)| rule.names.clone());
    if let (None, Some(unknown)) = (&of_train, ignored.iter().find(|name| !own.contains(name))) {
        return Err(Problem::UnknownClass(unknown.clone(), own));
    }
    let names = of_train.unwrap_or_else(|| {
        let counted = own.iter().filter(|name| *name != BACKGROUND && !ignored.contains(name));
        std::iter::once(BACKGROUND.to_owned()).chain(counted.cloned()).collect()
    });
    let used: HashSet<i64> = all.annotations.iter().map(|annotation| annotation.category_id).collect();
    let (mut classes, mut unknown) = (HashMap::new(), Vec::new());
    for (id, name) in by_id {
        let number = names.iter().position(|known| known == name);
        match number.and_then(|number| u16::try_from(number).ok()) {
            Some(number) => drop(classes.insert(id, number)),
            // A loaded recipe has a value of 16 bits.
            None if ignored.iter().any(|other| other == name) => {
                classes.insert(id, reading.mask.ignore as u16);
            }
            None if used.contains(&id) => unknown.push(name.to_owned()),
            None => drop(classes.insert(id, 0)),
        }
    }
    if unknown.is_empty() { Ok((classes, names)) } else { Err(Problem::OtherCategories(unknown)) }
}

/// Returns the entries of the images by their paths. All are files of the folder; other images there are counted.
fn images<'a>(
    all: &'a Annotations,
    root: &Path,
    set: &str,
    ignored: &mut Ignored,
) -> Result<Result<Vec<&'a ImageEntry>, Problem>, DataError> {
    let folder = root.join(set);
    let listing = image_files(root, &folder, SPLITS, is_image, ignored)?;
    let mut there: HashSet<String> = (0..listing.len()).map(|at| listing.path(at)).collect();
    Ok((|| {
        let mut by_path: BTreeMap<&str, &ImageEntry> = BTreeMap::new();
        let mut by_id: HashMap<i64, &ImageEntry> = HashMap::new();
        let mut missing = Vec::new();
        for image in &all.images {
            let path = below(&image.file_name).map_err(|_| Problem::Path(image.file_name.clone()))?;
            if let Some(other) = by_id.insert(image.id, image) {
                return Err(Problem::RepeatedId(image.id, other.file_name.clone(), image.file_name.clone()));
            }
            if let Some(other) = by_path.insert(path, image) {
                return Err(Problem::RepeatedFile(other.id, image.id, path.to_owned()));
            }
            if !fits_in_memory(image.width, image.height) {
                return Err(Problem::Size(path.to_owned(), image.width, image.height));
            }
            if !there.remove(path) && !folder.join(path).is_file() {
                missing.push(path.to_owned());
            }
        }
        if !missing.is_empty() {
            missing.sort_unstable();
            return Err(Problem::Missing { folder: folder.display().to_string(), names: missing });
        }
        let mut left: Vec<String> = there.into_iter().collect();
        left.sort_unstable();
        if !left.is_empty() {
            let count = counted(left.len(), "image");
            ignored.note(format!(
                "{count} of {set} left out, because the annotations do not name them: {}",
                listed(&left)
            ));
        }
        Ok(by_path.into_values().collect())
    })())
}

/// Returns the annotations of each image.
fn by_image<'a>(
    all: &'a Annotations,
    images: &[&ImageEntry],
    classes: &HashMap<i64, u16>,
) -> Result<HashMap<i64, Vec<&'a Annotation>>, Problem> {
    let mut by_image: HashMap<i64, Vec<&Annotation>> =
        images.iter().map(|image| (image.id, Vec::new())).collect();
    let ids = |is_same: &dyn Fn(&Annotation) -> bool| {
        all.annotations.iter().filter(|other| is_same(other)).map(|other| other.id).collect()
    };
    for annotation in &all.annotations {
        let (image, category) = (annotation.image_id, annotation.category_id);
        if !classes.contains_key(&category) {
            return Err(Problem::UnknownCategory {
                category,
                ids: ids(&|other| other.category_id == category),
            });
        }
        match by_image.get_mut(&image) {
            Some(of_image) => of_image.push(annotation),
            None => return Err(Problem::UnknownImage { image, ids: ids(&|other| other.image_id == image) }),
        }
    }
    Ok(by_image)
}

/// Returns the images that are samples.
fn annotated<'a>(
    images: Vec<&'a ImageEntry>,
    by_image: &HashMap<i64, Vec<&Annotation>>,
    unannotated: Unannotated,
    ignored: &mut Ignored,
) -> Result<Vec<&'a ImageEntry>, Problem> {
    let is_bare = |image: &&ImageEntry| by_image.get(&image.id).is_none_or(Vec::is_empty);
    let bare: Vec<String> =
        images.iter().copied().filter(is_bare).map(|image| image.file_name.clone()).collect();
    let count = counted(bare.len(), "image");
    let what = |becomes: &str| format!("{count} without annotations {becomes}: {}", listed(&bare));
    match unannotated {
        _ if bare.is_empty() => Ok(images),
        _ if bare.len() == images.len() => Err(Problem::NothingAnnotated),
        Unannotated::Error => Err(Problem::Unannotated(bare)),
        Unannotated::Background => {
            ignored.note(what("taken for background"));
            Ok(images)
        }
        Unannotated::LeaveOut => {
            ignored.note(what("left out"));
            Ok(images.into_iter().filter(|image| !is_bare(image)).collect())
        }
    }
}

fn paths(images: &[&ImageEntry]) -> Listing {
    let (mut paths, mut numbers) = (Listing::default(), HashMap::new());
    for image in images {
        let path = below(&image.file_name).unwrap_or(&image.file_name);
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = *numbers.entry(folder).or_insert_with(|| paths.folder(folder));
        paths.add_in(folder, name);
    }
    paths
}

#[cfg(test)]
mod tests;
