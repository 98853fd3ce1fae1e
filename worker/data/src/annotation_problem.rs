//! What is wrong with a file of annotations.

use super::annotations::Unusable;
use super::names::listed;

/// A problem with a file of annotations.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnnotationProblem {
    #[error(
        "the file is not in COCO's format: {0}; it needs `images` with id, file_name, width and height, `annotations` with image_id, \
         category_id and segmentation, and `categories` with id and name"
    )]
    Format(String),
    #[error("`{0}` is empty; name the file of the annotations of this set")]
    Empty(&'static str),
    #[error("two categories have the {0}; give each its own")]
    RepeatedCategory(String),
    #[error("the images with the ids {0} and {1} are both the file `{2}`; remove one of the two")]
    RepeatedFile(i64, i64, String),
    #[error("two images have the id {0}: `{1}` and `{2}`; give each its own")]
    RepeatedId(i64, String, String),
    #[error("{0:?} is not a path below the folder of the images; write one such as 0001.jpg")]
    Path(String),
    #[error(
        "the image `{0}` has {1}x{2} pixels, more or fewer than a mask may have; correct its width and height"
    )]
    Size(String, u32, u32),
    #[error(
        "{} of an image that `images` lacks (id {image}): {}; remove them, or add the image", counted(.ids.len(), "annotation is", "annotations are"),
        numbers(.ids)
    )]
    UnknownImage { image: i64, ids: Vec<i64> },
    #[error(
        "{} of a category that `categories` lacks (id {category}): {}; remove them, or add the category",
        counted(.ids.len(), "annotation is", "annotations are"), numbers(.ids)
    )]
    UnknownCategory { category: i64, ids: Vec<i64> },
    #[error(
        "{} {reason}: {}; correct or remove {}", counted(.ids.len(), "annotation has", "annotations have"), numbers(.ids),
        if .ids.len() == 1 { "it" } else { "them" }
    )]
    Unusable { reason: Unusable, ids: Vec<i64> },
    #[error(
        "{} of {folder}: {}; restore the files, or remove their entries", counted(.names.len(), "image is no file", "images are no files"),
        listed(.names)
    )]
    Missing { folder: String, names: Vec<String> },
    #[error(
        "{} no annotations: {}; annotate them, or set data.unannotated to \"background\" or \"leave-out\"",
        counted(.0.len(), "image has", "images have"), listed(.0)
    )]
    Unannotated(Vec<String>),
    #[error("no image has annotations; name the file of the annotations of this set")]
    NothingAnnotated,
    #[error(
        "{} that the training annotations lack: {}; give both files the same names, or remove the annotations",
        counted(.0.len(), "category", "categories"), listed(.0)
    )]
    OtherCategories(Vec<String>),
    #[error("no category has the name {0:?} of data.ignore_classes; the names are {names}", names = listed(.1))]
    UnknownClass(String, Vec<String>),
    #[error("data.ignore = {ignore} is the number of a class, of {classes}; set it to a larger number")]
    IgnoredClass { ignore: i64, classes: usize },
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn numbers(ids: &[i64]) -> String {
    let ids: Vec<String> = ids.iter().map(|id| format!("id {id}")).collect();
    listed(&ids)
}
