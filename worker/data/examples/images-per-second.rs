//! Measures how many JPEG files one thread makes into tensors in a second of processor time, without libtorch:
//! `images-per-second FOLDER SIZE PASSES centre|random exact|scaled [CHANGES]`.
//!
//! `tests/bench/images_per_second.py` does the same with Pillow and torchvision. `random` is `RandomResizedCrop` and
//! `RandomHorizontalFlip`, `centre` is `Resize` and `CenterCrop`. FOLDER has a folder for each class. CHANGES is JSON with more
//! random changes, such as `[{"name": "jitter"}]`.

use std::error::Error;
use std::path::Path;

use dtrain_data::rng::{Domain, keyed};
use dtrain_data::sources::classes;
use dtrain_data::{Changes, Column, Dataset, FileSet, ImageOptions};
use dtrain_recipe::{Augment, Decode};
use rustix::time::{ClockId, clock_gettime};

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, size, passes, crop, decode, more @ ..] = args.as_slice() else {
        return Err("usage: images-per-second FOLDER SIZE PASSES centre|random exact|scaled [CHANGES]".into());
    };
    let (size, passes): (u32, u64) = (size.parse()?, passes.parse()?);
    let folder = Path::new(folder).canonicalize()?;
    let (Some(root), Some(split)) = (folder.parent(), folder.file_name().and_then(|name| name.to_str()))
    else {
        return Err("the name of FOLDER must be UTF-8".into());
    };
    let mut changes = if crop == "random" { Augment::ResizedCropFlip.changes() } else { Vec::new() };
    for list in more {
        changes.extend(serde_json::from_str::<Vec<_>>(list)?);
    }
    let is_random = !changes.is_empty();
    let options = ImageOptions {
        changes: Changes::new(&changes),
        decode: if decode == "scaled" { Decode::Scaled } else { Decode::Exact },
        ..ImageOptions::square(size)
    };
    let set = FileSet::new(classes::scan(root, split, None)?, options);
    let mut columns: Vec<Column> = set.fields().iter().map(|field| Column::of(field, 1)).collect();
    let (mut sum, mut begun) = (0.0, processor_seconds());
    // The first pass fills memory and the cache of the kernel.
    for pass in 0..=passes {
        if pass == 1 {
            begun = processor_seconds();
        }
        for at in 0..set.len() {
            let mut random = keyed(Domain::Augment, 1, pass, at as u64);
            set.load(at, is_random.then_some(&mut random), &mut columns)?;
            // As in a training on a CPU, whose tensors are floats.
            sum += columns[0].as_f32().map_or(0.0, |values| f64::from(values[0]));
        }
    }
    let seconds = processor_seconds() - begun;
    println!(
        "{:.1} images per second of processor time; {sum:.3}",
        (passes * set.len() as u64) as f64 / seconds
    );
    Ok(())
}
