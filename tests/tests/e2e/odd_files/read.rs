//! Reads a file of a case as a run does, and returns its values.

use std::fs;
use std::path::Path;

use dtrain_common::Recipe;
use dtrain_common::recipe::Tokenizer;
use dtrain_worker::data::raster::{Labels, Raster, Values};
use dtrain_worker::data::{
    ImageIndex, ImageList, MaskIndex, MaskKind, MaskRule, Target, TargetIndex, TextIndex, Tokens, decode,
};
use dtrain_worker::models::{Registry, Renames, load_renamed};
use tch::{Device, Kind, Tensor};

use super::{Case, Settings};

/// Returns the values of the file, or the error of the run.
pub(super) fn values(case: &Case, folder: &Path, settings: &Settings) -> Result<Vec<f32>, String> {
    match case.kind.as_str() {
        "image" => image(settings),
        "mask" => mask(settings),
        "text" => text(settings),
        "table" => table(folder),
        "weights" => weights(case, settings),
        "classes" => classes(folder),
        _ => pairs(folder),
    }
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Returns planes.
fn image(settings: &Settings) -> Result<Vec<f32>, String> {
    let bytes = fs::read(&settings.path).unwrap();
    let (mut raw, mut found) = (Vec::new(), Raster::default());
    decode::header(&bytes, settings.channels).map_err(said)?;
    decode::pixels(&bytes, settings.channels, &mut raw, &mut found).map_err(said)?;
    let values: Vec<f32> = match found.values {
        Values::U8(values) => values.into_iter().map(f32::from).collect(),
        Values::F32(values) => values,
    };
    // Pictures have their three colours beside each other.
    Ok(match settings.channels {
        3 => (0..3).flat_map(|channel| values[channel..].iter().step_by(3).copied()).collect(),
        _ => values,
    })
}

fn mask(settings: &Settings) -> Result<Vec<f32>, String> {
    let bytes = fs::read(&settings.path).unwrap();
    let (mut raw, mut found) = (Vec::new(), Labels::default());
    decode::mask_header(&bytes).map_err(said)?;
    decode::mask(&bytes, &mut raw, &mut found).map_err(said)?;
    Ok(found.values.into_iter().map(f32::from).collect())
}

fn text(settings: &Settings) -> Result<Vec<f32>, String> {
    let index = TextIndex::scan(&settings.path, Tokenizer::Bytes).map_err(said)?;
    Ok(match &*index.load().map_err(said)?.tokens {
        Tokens::U8(tokens) => tokens.iter().map(|token| f32::from(*token)).collect(),
        other => return Err(format!("{} tokens of another size", other.count())),
    })
}

fn table(folder: &Path) -> Result<Vec<f32>, String> {
    let index = TargetIndex::scan(folder, "train", None).map_err(said)?;
    let numbers = |sample| match index.target(sample) {
        Target::Vector(numbers) => numbers.to_vec(),
        _ => Vec::new(),
    };
    Ok((0..index.count()).flat_map(numbers).collect())
}

fn weights(case: &Case, settings: &Settings) -> Result<Vec<f32>, String> {
    let set = format!("model.weights={:?}", settings.path);
    Recipe::load("demo", &[set]).and_then(|recipe| recipe.check_paths()).map_err(said)?;
    let mut registry = Registry::new(Device::Cpu);
    let mut root = registry.root();
    let zeros = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
    let mut conv = root.sub("stem");
    let mut conv = conv.sub("conv");
    let _ = conv.parameter("weight", &zeros(&[4, 3, 3, 3])).unwrap();
    let _ = conv.parameter("bias", &zeros(&[4])).unwrap();
    let _ = root.sub("blocks").sub("0").parameter("weight", &zeros(&[5, 4])).unwrap();
    let _ = root.sub("blocks").sub("1").parameter("weight", &zeros(&[4, 5])).unwrap();
    let _ = root.sub("head").parameter("weight", &zeros(&[3, 4])).unwrap();
    let _ = root.sub("head").parameter("bias", &zeros(&[3])).unwrap();
    let renames = Renames::new(&settings.renames).map_err(said)?;
    let report = load_renamed(&registry, &settings.path, settings.mode, &renames).map_err(said)?.to_string();
    if !report.contains(&case.said) {
        return Err(format!("no {:?} in the report: {report}", case.said));
    }
    let mut entries: Vec<_> = registry
        .state()
        .iter()
        .filter(|entry| case.head == 1 || !entry.name().starts_with("head."))
        .collect();
    entries.sort_by_key(|entry| entry.name());
    let flat = |entry: &&dtrain_worker::models::Entry| {
        Vec::<f32>::try_from(&entry.tensor().detach().reshape([-1])).unwrap()
    };
    Ok(entries.iter().flat_map(flat).collect())
}

fn classes(folder: &Path) -> Result<Vec<f32>, String> {
    let train = ImageIndex::scan(folder, "train", None).map_err(said)?;
    let test = ImageIndex::scan(folder, "test", Some(&train.classes)).map_err(said)?;
    assert_eq!(test.classes, train.classes);
    Ok(Vec::new())
}

fn pairs(folder: &Path) -> Result<Vec<f32>, String> {
    let rule = MaskRule { kind: MaskKind::Index, classes: 5, ignore: 255 };
    let index = MaskIndex::scan(folder, "images", "masks", rule).map_err(said)?;
    assert_eq!(index.count(), 2);
    Ok(Vec::new())
}
