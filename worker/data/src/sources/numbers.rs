//! Images under `root/split/` and the numbers in its table.

use std::path::Path;

use dtrain_recipe::Separator;

use super::super::error::DataError;
use super::super::packed::Packed;
use super::super::samples::{Files, List, ListValues, Samples};
use super::super::table_problem::TARGETS;
use super::target_table::{self, Beside};

/// Lists the images below `root/split` by path and reads `root/split/targets.csv`: the fields `image` and `targets`.
/// Every image needs a line and every line an image. `names` are those of the training split, which other splits
/// must have.
pub fn scan(
    root: &Path,
    split: &str,
    separator: Separator,
    names: Option<&[String]>,
) -> Result<Samples, DataError> {
    let parse = |text: &str, example| target_table::numbers(text, separator, example);
    let found = Beside::NUMBERS.read(root, split, parse)?;
    if let Some(names) = names.filter(|names| *names != found.names) {
        return Err(DataError::OtherTargets(root.join(split).join(TARGETS), found.names, names.to_vec()));
    }
    let values = Packed::write(found.rows.iter().flat_map(|row| row.value.iter().copied()))?;
    let paths = found.images.pack()?;
    let images = ListValues::Images(vec![Files::new(split, paths)]);
    let targets = ListValues::Numbers { names: found.names, values };
    Ok(Samples {
        root: root.to_path_buf(),
        set: split.to_owned(),
        table: None,
        sources: Vec::new(),
        lists: vec![List::new("image", images), List::new("targets", targets)],
        size: None,
        ignored: found.ignored,
    })
}

#[cfg(test)]
mod tests;
