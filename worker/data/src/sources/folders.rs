//! Folders of images, with what the target states.

use dtrain_recipe::Target;

use super::super::error::DataError;
use super::super::samples::Samples;
use super::{Request, class_sets, classes, list_file, numbers, pairs};

pub(super) fn list(request: &Request<'_>) -> Result<Samples, DataError> {
    let &Request { root, set, targets, pair, reading, .. } = request;
    match request.target {
        Some(Target::Mask) => pairs::scan(root, set, targets, reading.mask.clone().into(), pair),
        Some(Target::Map) => pairs::scan(root, set, targets, reading.map.into(), pair),
        Some(Target::Vector) => {
            numbers::scan(root, set, reading.separator, reading.train.map(|train| train.numbers().0))
        }
        Some(Target::Classes) => class_sets::list(request),
        Some(Target::Class | Target::Tokens) | None => {
            if let Some(list) = request.list {
                return list_file::scan(request, list);
            }
            classes::scan(root, set, reading.train.and_then(Samples::labels).map(|(names, _)| names))
        }
    }
}
