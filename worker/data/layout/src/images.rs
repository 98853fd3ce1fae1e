//! The channels that images have in common.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use dtrain_common::look::Layout;
use dtrain_data::decode::{Colours, FileKind, kind};

/// Images that are opened, spread over all.
const OPENED: usize = 32;
/// More than the headers of usual images; the directory of a TIFF file may be at its end.
const MOST_BYTES: u64 = 64 << 20;

/// Adds the channels of images, if they are other than those of pictures.
pub(crate) fn add(layout: &mut Layout, images: impl ExactSizeIterator<Item = PathBuf>) {
    let every = images.len().div_ceil(OPENED).max(1);
    let kinds: Vec<FileKind> = images.step_by(every).filter_map(|path| kind_of(&path)).collect();
    let mut channels: Vec<u16> = kinds.iter().map(channels).collect();
    channels.dedup();
    match channels.as_slice() {
        [] | [3] => {}
        [1] => layout.add("channels", 1, "the images are grey"),
        [bands] => layout.add("channels", i64::from(*bands), "bands of an image"),
        // Pictures of several kinds become RGB.
        _ => {}
    }
}

fn kind_of(path: &Path) -> Option<FileKind> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    kind(&bytes, "image")
}

fn channels(kind: &FileKind) -> u16 {
    match kind.colours {
        Colours::Grey if !kind.has_alpha => 1,
        // Satellite tiles of four bands of 16 bits.
        Colours::Rgb if kind.has_alpha && kind.format == "TIFF" && (kind.bits > 8 || kind.is_floating) => 4,
        Colours::Cmyk if kind.format == "TIFF" => 4,
        Colours::Bands(bands) => bands,
        _ => 3,
    }
}
