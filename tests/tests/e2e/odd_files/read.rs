//! Reads a file of a case as a run does, and returns its values.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use dtrain_recipe::Recipe;
use dtrain_recipe::{Documents, Orientation, Resize, Separator, Tokenizer};
use dtrain_worker::data::raster::{Labels, Raster, Values};
use dtrain_worker::data::{
    Depth, MaskKind, MaskRule, Needs, TextIndex, TextRoot, Tokens, check, decode, sources,
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
    for bytes in [padded(&bytes), bytes] {
        checks_find(&bytes, settings.channels, (found.width, found.height))?;
    }
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

/// Returns a longer file of the same picture, in which the header's first read ends before the pixels if the format allows it.
fn padded(bytes: &[u8]) -> Vec<u8> {
    const PADDING: usize = 5000;
    let padding = [0; PADDING];
    if bytes.starts_with(b"\x89PNG") {
        let after_header = 33;
        let body = [&b"paDd"[..], &padding].concat();
        let bit = |sum: u32| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
        let add = |sum: u32, byte: &u8| (0..8).fold(sum ^ u32::from(*byte), |sum, _| bit(sum));
        let sum = !body.iter().fold(!0, add);
        let chunk = [&(PADDING as u32).to_be_bytes()[..], &body, &sum.to_be_bytes()].concat();
        return [&bytes[..after_header], &chunk, &bytes[after_header..]].concat();
    }
    if bytes.starts_with(b"\xff\xd8") {
        let length = (PADDING as u16 + 2).to_be_bytes();
        return [&b"\xff\xd8\xff\xfe"[..], &length, &padding, &bytes[2..]].concat();
    }
    // Other formats have places in the file, so nothing can be put before them.
    [bytes, &padding].concat()
}

/// Checks a file as before a run, at both depths.
fn checks_find(bytes: &[u8], channels: usize, size: (u32, u32)) -> Result<(), String> {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("train/class")).unwrap();
    fs::write(root.path().join("train/class/x.png"), bytes).unwrap();
    let index = sources::classes::scan(root.path(), "train", None).map_err(said)?;
    for orientation in [Orientation::Stored, Orientation::Exif] {
        let needs = Needs { channels, resize: Resize::None, orientation, nodata: None, fill: None };
        let sizes = [Depth::Header, Depth::Full].map(|depth| {
            let report = check(&index, needs, depth, 1, &mut |_, _| ());
            index.without_bad(&report).map(|good| good.size).map_err(said)
        });
        match sizes {
            [Ok(Some(header)), Ok(Some(full))] if header == full => {
                if orientation == Orientation::Stored && full != size {
                    return Err(format!("the check found the size {full:?}"));
                }
            }
            other => return Err(format!("the checks found {other:?} with {orientation:?}")),
        }
    }
    Ok(())
}

fn mask(settings: &Settings) -> Result<Vec<f32>, String> {
    let bytes = fs::read(&settings.path).unwrap();
    let (mut raw, mut found) = (Vec::new(), Labels::default());
    let rule = MaskRule::unnamed(MaskKind::Index, 5, 255);
    rule.check_loss(decode::lossy(&bytes).map_err(said)?).map_err(said)?;
    decode::mask_header(&bytes).map_err(said)?;
    decode::mask(&bytes, &mut raw, &mut found).map_err(said)?;
    let padded = padded(&bytes);
    let sizes = [decode::mask_header(&padded), decode::mask_header(&padded[..4096])];
    let [Ok(size), start] = sizes else { return Err("no size of the padded file".to_owned()) };
    if size != (found.width, found.height) || start.is_ok_and(|start| start != size) {
        return Err(format!("the padded file has the size {size:?}"));
    }
    Ok(found.values.into_iter().map(f32::from).collect())
}

fn text(settings: &Settings) -> Result<Vec<f32>, String> {
    let index = TextIndex::scan(
        &[TextRoot { path: &settings.path, weight: None }],
        Tokenizer::Bytes,
        Documents::None,
    )
    .map_err(said)?;
    Ok(match &*index.load().map_err(said)?.tokens {
        Tokens::U8(tokens) => tokens.iter().map(|token| f32::from(*token)).collect(),
        other => return Err(format!("{} tokens of another size", other.count())),
    })
}

fn table(folder: &Path) -> Result<Vec<f32>, String> {
    let index = sources::numbers::scan(folder, "train", Separator::Auto, None).map_err(said)?;
    Ok(index.numbers().1.to_vec())
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
    let report = load_renamed(&registry, &settings.path, settings.mode, &renames, &BTreeSet::new());
    let report = report.map_err(said)?.to_string();
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
    let train = sources::classes::scan(folder, "train", None).map_err(said)?;
    let test = sources::classes::scan(folder, "test", Some(train.classes().0)).map_err(said)?;
    assert_eq!(test.classes().0, train.classes().0);
    Ok(Vec::new())
}

fn pairs(folder: &Path) -> Result<Vec<f32>, String> {
    let rule = MaskRule::unnamed(MaskKind::Index, 5, 255);
    let index = sources::pairs::scan(folder, "images", "masks", rule.into(), None).map_err(said)?;
    assert_eq!(index.count(), 2);
    Ok(Vec::new())
}
