//! Measures dtrain's loader in images per second: `loader-bench FOLDER SIZE BATCH EPOCHS CACHE_MIB`.
//!
//! One thread reads, decodes, resizes and normalises the JPEG files in the class folders below FOLDER, and
//! caches them in CACHE_MIB of memory. The main thread only takes batches, as tests/bench/loader.py does for
//! PyTorch. One loader serves all epochs, as in a training. Writes one JSON object to standard output.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use dtrain_tests::cpu;
use dtrain_worker::data::sources::classes;
use dtrain_worker::data::{CacheBudget, FileSet, ImageOptions, Loader, LoaderOptions, MicroBatch};

type Failure = Box<dyn std::error::Error>;

/// Checks one value per this many rows and columns, to see that both loaders make the same images.
const STRIDE: usize = 16;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, size, batch, epochs, cache] = args.as_slice() else {
        return Err("usage: loader-bench FOLDER SIZE BATCH EPOCHS CACHE_MIB".into());
    };
    let (size, batch, epochs): (u32, usize, u64) = (size.parse()?, batch.parse()?, epochs.parse()?);
    let cache: u64 = cache.parse()?;
    if size == 0 || batch == 0 || epochs == 0 {
        return Err("SIZE, BATCH and EPOCHS must be at least 1".into());
    }
    dtrain_torch_shim::keep_freed_memory()?;

    // FOLDER acts as a split: it contains the class folders directly.
    let folder = Path::new(folder).canonicalize()?;
    let (Some(root), Some(split)) = (folder.parent(), folder.file_name().and_then(|name| name.to_str()))
    else {
        return Err("the name of FOLDER must be UTF-8".into());
    };
    let index = classes::scan(root, split, None)?;
    let samples = u32::try_from(index.count())?;
    let dataset = FileSet::new(
        index,
        ImageOptions { cache: CacheBudget::new(cache << 20), ..ImageOptions::square(size) },
    );
    let options = LoaderOptions { threads: 1, prefetch_batches: 4, seed: 1, augment: false };
    // Adds a pass before the counted ones and a pass after: the threads load ahead at both ends.
    let passes = (0..=epochs + 1).flat_map(move |epoch| {
        let all: Vec<u32> = (0..samples).collect();
        let batches = all.chunks(batch).map(|indices| MicroBatch::of(epoch, indices.to_vec()));
        batches.collect::<Vec<_>>()
    });
    let mut loader = Loader::start(Arc::new(dataset), options, passes)?;

    run_pass(&mut loader, samples, size)?;
    let (begun, cpu_before) = (Instant::now(), cpu::time());
    let mut mean = 0.0;
    for _ in 0..epochs {
        mean = run_pass(&mut loader, samples, size)?;
    }
    let images = epochs * u64::from(samples);
    let result = serde_json::json!({
        "images": images,
        "seconds": begun.elapsed().as_secs_f64(),
        "cpu_seconds": (cpu::time() - cpu_before).as_secs_f64(),
        "mean": mean,
    });
    println!("{result}");
    Ok(())
}

/// Takes all batches of a pass; returns the mean of the checked values.
fn run_pass(loader: &mut Loader, samples: u32, size: u32) -> Result<f64, Failure> {
    let (size, samples) = (size as usize, samples as usize);
    let (mut taken, mut sum, mut checked) = (0, 0.0, 0usize);
    while taken < samples {
        let batch = loader.next().ok_or("the loader ended early")??;
        if let Some(bad) = batch.bad.first() {
            return Err(format!("cannot read {}: {}", bad.sample.path, bad.sample.reason).into());
        }
        let values =
            batch.column("image").and_then(|column| column.as_f32()).ok_or("a batch has no images")?;
        for plane in values.chunks_exact(size * size) {
            for row in plane.chunks_exact(size).step_by(STRIDE) {
                let seen = row.iter().step_by(STRIDE);
                sum += seen.map(|value| f64::from(*value)).sum::<f64>();
                checked += size.div_ceil(STRIDE);
            }
        }
        taken += batch.weights.len();
        loader.recycle(batch);
    }
    Ok(sum / checked as f64)
}
