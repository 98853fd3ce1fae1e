//! The meaning of the values of masks, by all that occur.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use dtrain_common::look::Layout;
use dtrain_data::decode::{colors, lossy, mask};
use dtrain_data::raster::Labels;

/// Masks that are read, spread over all.
const READ: usize = 2000;
/// Colours of which a recipe has names.
const MOST_COLORS: usize = 64;
/// More classes than any known data set of masks has.
const MOST_CLASSES: u16 = 300;
/// The usual value of pixels that do not count.
const IGNORED: u16 = 255;

/// What masks hold.
#[derive(Debug, Default)]
struct Values {
    masks: usize,
    /// Pixels by value, of masks of numbers.
    numbers: BTreeMap<u16, u64>,
    /// Pixels by colour, of masks with colours.
    colors: BTreeMap<[u8; 3], u64>,
    is_lossy: bool,
    /// Why the first mask that cannot be read cannot.
    unreadable: Option<String>,
}

/// Adds the settings of masks to a layout.
///
/// # Errors
/// Masks of which no setting makes classes.
pub(crate) fn add(layout: &mut Layout, masks: &[PathBuf]) -> Result<(), String> {
    let every = masks.len().div_ceil(READ).max(1);
    let read: Vec<&PathBuf> = masks.iter().step_by(every).collect();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(8);
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Values::default()));
    let work = || {
        let mut own = Values::default();
        while let Some(path) = read.get(next.fetch_add(1, Ordering::Relaxed)) {
            own.read(path);
        }
        found.lock().unwrap_or_else(PoisonError::into_inner).join(own);
    };
    thread::scope(|scope| {
        // Without more threads, this one does all.
        (1..threads).for_each(|_| drop(thread::Builder::new().spawn_scoped(scope, work)));
        work();
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner).add(layout)
}

impl Values {
    fn read(&mut self, path: &Path) {
        let Ok(bytes) = fs::read(path) else { return };
        self.is_lossy |= lossy(&bytes).ok().flatten().is_some();
        let (mut raw, mut labels) = (Vec::new(), Labels::default());
        if mask(&bytes, &mut raw, &mut labels).is_ok() {
            self.masks += 1;
            for run in labels.values.chunk_by(|a, b| a == b) {
                *self.numbers.entry(run[0]).or_default() += run.len() as u64;
            }
            return;
        }
        let mut rgb = Vec::new();
        match colors(&bytes, &mut raw, &mut rgb) {
            Ok(_) => {
                self.masks += 1;
                for run in rgb.as_chunks::<3>().0.chunk_by(|a, b| a == b) {
                    *self.colors.entry(run[0]).or_default() += run.len() as u64;
                }
                // A photo has no classes: its colours need no memory.
                while self.colors.len() > 1 << 16 {
                    self.colors.pop_last();
                }
            }
            Err(error) => drop(self.unreadable.get_or_insert_with(|| format!("{}: {error}", path.display()))),
        }
    }

    fn join(&mut self, other: Self) {
        self.masks += other.masks;
        self.is_lossy |= other.is_lossy;
        self.unreadable = self.unreadable.take().or(other.unreadable);
        for (value, count) in other.numbers {
            *self.numbers.entry(value).or_default() += count;
        }
        for (color, count) in other.colors {
            *self.colors.entry(color).or_default() += count;
        }
    }

    fn add(self, layout: &mut Layout) -> Result<(), String> {
        if self.masks == 0 {
            let why = self.unreadable.unwrap_or_else(|| "there is none".to_owned());
            return Err(format!("no mask can be read: {why}"));
        }
        if !self.colors.is_empty() {
            return self.add_colors(layout);
        }
        let values: Vec<u16> = self.numbers.keys().copied().collect();
        let classes: Vec<u16> = values.iter().copied().filter(|value| *value != IGNORED).collect();
        let largest = classes.last().copied().unwrap_or(0);
        match values.as_slice() {
            [0, other] if !self.is_lossy => {
                layout.add(
                    "masks",
                    "binary",
                    &format!("the masks have the values 0 and {other}: two classes"),
                );
            }
            _ if self.is_lossy || self.is_of_two_levels(&values) => {
                layout.add("masks", "threshold", "bright pixels are class 1, dark ones class 0");
            }
            _ if largest < MOST_CLASSES => {
                let ignored = values.contains(&IGNORED);
                let about = match ignored {
                    true => format!("the masks have the values 0 to {largest}; pixels of 255 do not count"),
                    false => format!(
                        "the masks have values up to {largest}; a value that is no class goes into ignore"
                    ),
                };
                layout.add("classes", i64::from(largest) + 1, &about);
                if ignored {
                    layout.add("ignore", i64::from(IGNORED), "this value is no class");
                }
            }
            _ => {
                return Err(format!(
                    "the masks have {} values up to {largest}, which are no classes; is this a folder of maps? `dtrain new regress` takes these",
                    values.len()
                ));
            }
        }
        Ok(())
    }

    /// Returns whether most pixels are black or white, and the others between: the grey edges of drawings.
    fn is_of_two_levels(&self, values: &[u16]) -> bool {
        let all: u64 = self.numbers.values().sum();
        let ends = self.numbers.iter().filter(|(value, _)| **value <= 16 || (239..=255).contains(*value));
        let ends: u64 = ends.map(|(_, count)| count).sum();
        values.len() > 16
            && values.last().is_some_and(|last| (239..=255).contains(last))
            && ends * 10 >= all * 9
    }

    fn add_colors(self, layout: &mut Layout) -> Result<(), String> {
        // Grey pixels of masks in which all values agree are colours, too.
        let mut colors = self.colors;
        for (value, count) in self.numbers {
            if let Ok(value) = u8::try_from(value) {
                *colors.entry([value; 3]).or_default() += count;
            }
        }
        if colors.len() > MOST_COLORS || self.is_lossy {
            let why =
                if self.is_lossy { "their compression has changed their colours" } else { "such as photos" };
            return Err(format!(
                "the masks have {} colours, {why}; name the colours of the classes in a recipe with data.mask_colors, as docs/data.md shows",
                colors.len()
            ));
        }
        let name = |(number, [red, green, blue]): (usize, &[u8; 3])| {
            toml::Value::from(format!("class{number} #{red:02X}{green:02X}{blue:02X}"))
        };
        let named: Vec<toml::Value> = colors.keys().enumerate().map(name).collect();
        layout.add("mask_colors", named, "the colours of all masks; give the classes their names");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use image::{GrayImage, Luma, Rgb, RgbImage};

    use super::*;

    fn grey(values: &[u8]) -> Result<Layout, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.png");
        GrayImage::from_fn(values.len() as u32, 4, |x, _| Luma([values[x as usize]])).save(&path).unwrap();
        let mut layout = Layout::new("a", "b");
        add(&mut layout, &[path])?;
        Ok(layout)
    }

    #[test]
    fn values_decide_what_masks_mean() {
        let binary = grey(&[0, 255, 0]).unwrap();
        assert_eq!(binary.value("masks"), Some("\"binary\""));
        assert_eq!(grey(&[0, 1]).unwrap().value("masks"), Some("\"binary\""));
        let index = grey(&[0, 1, 2, 11]).unwrap();
        assert_eq!(
            (index.value("classes"), index.value("ignore"), index.value("masks")),
            (Some("12"), None, None)
        );
        let ignored = grey(&[0, 1, 2, 255]).unwrap();
        assert_eq!((ignored.value("classes"), ignored.value("ignore")), (Some("3"), Some("255")));
        let mut edges = [[0u8; 100], [255; 100]].concat();
        edges.extend((0..20).map(|level| level * 12));
        assert_eq!(grey(&edges).unwrap().value("masks"), Some("\"threshold\""));
    }

    #[test]
    fn colours_get_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.png");
        let colours = [[0, 0, 0], [128, 64, 128], [0, 0, 0]];
        RgbImage::from_fn(3, 2, |x, _| Rgb(colours[x as usize])).save(&path).unwrap();
        let mut layout = Layout::new("a", "b");
        add(&mut layout, std::slice::from_ref(&path)).unwrap();
        assert_eq!(layout.value("mask_colors"), Some("[\"class0 #000000\", \"class1 #804080\"]"));
        RgbImage::from_fn(90, 2, |x, y| Rgb([x as u8, y as u8, 7])).save(&path).unwrap();
        let error = add(&mut layout, &[path]).unwrap_err();
        assert!(error.contains("180 colours") && error.contains("data.mask_colors"), "{error}");
    }
}
