//! Images per second of dtrain's loader, for `cargo xtask bench loader`: `loader-bench FOLDER SIZE BATCH EPOCHS`.
//!
//! One thread reads, decodes, resizes and normalises the JPEG files in the class folders below FOLDER; this thread only takes
//! its batches, as PyTorch's peer, tests/bench/loader.py, does. Writes one JSON object to standard output.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use dtrain_worker::data::{ImageFolder, ImageIndex, ImageOptions, Loader, LoaderOptions, MicroBatch};

type Failure = Box<dyn std::error::Error>;

/// Every so many rows and columns a value is looked at, to see that both loaders make the same images.
const STRIDE: usize = 16;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, size, batch, epochs] = args.as_slice() else {
        return Err("four arguments are needed: FOLDER SIZE BATCH EPOCHS".into());
    };
    let (size, batch, epochs): (u32, usize, u64) = (size.parse()?, batch.parse()?, epochs.parse()?);
    if size == 0 || batch == 0 || epochs == 0 {
        return Err("SIZE, BATCH and EPOCHS must be at least 1".into());
    }

    // The folder plays the part of a split: its class folders lie directly in it.
    let folder = Path::new(folder).canonicalize()?;
    let (Some(root), Some(split)) = (folder.parent(), folder.file_name().and_then(|name| name.to_str()))
    else {
        return Err("FOLDER must have a name in UTF-8".into());
    };
    let index = ImageIndex::scan(root, split, None)?;
    let samples = u32::try_from(index.len())?;
    let dataset = Arc::new(ImageFolder::new(index, ImageOptions::square(size)));

    let pass = |epoch| one_pass(&dataset, samples, size as usize, batch, epoch);
    pass(0)?;
    let cpu_before = cpu_seconds()?;
    let (mut images, mut seconds, mut mean) = (0, 0.0, 0.0);
    for epoch in 1..=epochs {
        let taken = pass(epoch)?;
        images += taken.images;
        seconds += taken.seconds;
        mean = taken.mean;
    }
    let result = serde_json::json!({
        "images": images,
        "seconds": seconds,
        // Over all images of the passes, also those of the first batch.
        "all_images": epochs * u64::from(samples),
        "cpu_seconds": cpu_seconds()? - cpu_before,
        "mean": mean,
    });
    println!("{result}");
    Ok(())
}

/// Processor time of all threads so far.
fn cpu_seconds() -> Result<f64, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name in parentheses may hold spaces; utime and stime are the 14th and 15th field.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: Vec<u64> = fields
        .skip(11)
        .take(2)
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<u64>() as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// What was seen of one pass.
struct Pass {
    /// Images after the first batch.
    images: usize,
    /// From the first batch to the last.
    seconds: f64,
    /// Of the values that were looked at.
    mean: f64,
}

fn one_pass(
    dataset: &Arc<ImageFolder>,
    samples: u32,
    size: usize,
    batch: usize,
    epoch: u64,
) -> Result<Pass, Failure> {
    let options = LoaderOptions {
        threads: 1,
        prefetch_batches: 4,
        seed: 1,
        augment: false,
    };
    let work: Vec<MicroBatch> = (0..samples)
        .collect::<Vec<u32>>()
        .chunks(batch)
        .map(|indices| MicroBatch {
            epoch,
            indices: indices.to_vec(),
        })
        .collect();
    let mut loader = Loader::start(dataset.clone(), options, work.into_iter())?;
    let mut begun = None;
    let (mut images, mut sum, mut looked_at) = (0, 0.0, 0usize);
    while let Some(batch) = loader.next() {
        let batch = batch?;
        if let Some(bad) = batch.bad.first() {
            return Err(format!("{} cannot be read: {}", bad.path, bad.reason).into());
        }
        let values = batch
            .column("image")
            .and_then(|column| column.as_f32())
            .ok_or("a batch has no images")?;
        for plane in values.chunks_exact(size * size) {
            for row in plane.chunks_exact(size).step_by(STRIDE) {
                sum += row
                    .iter()
                    .step_by(STRIDE)
                    .map(|value| f64::from(*value))
                    .sum::<f64>();
                looked_at += size.div_ceil(STRIDE);
            }
        }
        match begun {
            None => begun = Some(Instant::now()),
            Some(_) => images += batch.indices.len(),
        }
        loader.recycle(batch);
    }
    let seconds = begun.map_or(0.0, |begun| begun.elapsed().as_secs_f64());
    if images == 0 {
        return Err(
            format!("{samples} images are too few: there must be more than one batch of {batch}").into(),
        );
    }
    Ok(Pass {
        images,
        seconds,
        mean: sum / looked_at as f64,
    })
}
