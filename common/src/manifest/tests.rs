#![allow(clippy::unwrap_used)]

use std::fs;

use proptest::prelude::*;

use super::*;

fn recipe() -> AnyRecipe {
    AnyRecipe::load("demo", &[]).unwrap()
}

pub(crate) fn sample() -> Manifest {
    Manifest {
        format: FORMAT,
        dtrain: "0.1.0".into(),
        libtorch: "2.11.0".into(),
        task: "classify".into(),
        model: "resnet18".into(),
        classes: 10,
        class_names: Vec::new(),
        parameters: 11_181_642,
        step: 120,
        epoch: 1,
        step_in_epoch: 2,
        stage: None,
        samples: 7680,
        world_size: 2,
        loss_scale: None,
        ema_updates: None,
        extra: serde_json::Value::Null,
        fields: Vec::new(),
        data_periods: Vec::new(),
        program: None,
        base: None,
        recipe: recipe(),
        metrics: [("loss".to_string(), 0.1 + 0.2)].into(),
        best: None,
        stopping: None,
        evaluation_missing: false,
        data: None,
        files: Vec::new(),
    }
}

/// Makes a folder with one file and its manifest.
fn checkpoint() -> (tempfile::TempDir, Manifest) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("model.safetensors"), b"abc").unwrap();
    let mut manifest = sample();
    let entry = FileEntry::of(&dir.path().join("model.safetensors"), "model.safetensors");
    manifest.files.push(entry.unwrap());
    manifest.write(dir.path()).unwrap();
    (dir, manifest)
}

/// Computes the part for these bytes with `FileEntry::of`.
fn part(dir: &Path, bytes: &[u8]) -> Part {
    let path = dir.join("part");
    fs::write(&path, bytes).unwrap();
    FileEntry::of(&path, "part").unwrap().parts.remove(0)
}

fn parse(text: impl AsRef<[u8]>) -> Result<Manifest, ManifestError> {
    Manifest::parse(text.as_ref(), Path::new("manifest.json"))
}

#[test]
fn round_trips_and_verifies() {
    let (dir, manifest) = checkpoint();
    let read = Manifest::read(dir.path()).unwrap();
    assert_eq!(read, manifest);
    read.check_sizes(dir.path()).unwrap();
    read.verify(dir.path()).unwrap();
    assert!(read.recipe.differences(&recipe(), &[]).is_empty());
}

#[test]
fn a_metric_that_is_not_a_number_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut manifest = sample();
    manifest.metrics.insert("loss".into(), f64::NEG_INFINITY);
    manifest.write(dir.path()).unwrap();
    assert!(Manifest::read(dir.path()).unwrap().metrics["loss"].is_nan());
}

#[test]
fn damage_is_found() {
    let (dir, manifest) = checkpoint();
    let file = dir.path().join("model.safetensors");
    fs::write(&file, b"abd").unwrap();
    manifest.check_sizes(dir.path()).unwrap();
    let error = manifest.verify(dir.path()).unwrap_err();
    assert!(matches!(error, ManifestError::Checksum { .. }), "{error}");
    assert!(error.to_string().contains("model.safetensors"), "{error}");
    fs::write(&file, b"ab").unwrap();
    assert!(matches!(manifest.verify(dir.path()), Err(ManifestError::Size { expected: 3, got: 2, .. })));
    fs::remove_file(&file).unwrap();
    assert!(matches!(manifest.verify(dir.path()), Err(ManifestError::Io { .. })));
    fs::create_dir(&file).unwrap();
    assert!(matches!(manifest.verify(dir.path()), Err(ManifestError::Io { .. })));
}

#[test]
fn a_folder_without_a_manifest_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Manifest::read(dir.path()), Err(ManifestError::Missing { .. })));
    assert!(matches!(Manifest::read(&dir.path().join("no")), Err(ManifestError::Io { .. })));
    let path = dir.path().join(FILE_NAME);
    fs::write(&path, vec![b' '; MAX_BYTES as usize + 1]).unwrap();
    let error = Manifest::read(dir.path()).unwrap_err();
    assert!(matches!(error, ManifestError::TooLarge { .. }) && !error.is_damage(), "{error}");
    fs::write(&path, b"{\"format\": 1}").unwrap();
    let error = Manifest::read(dir.path()).unwrap_err();
    assert!(matches!(error, ManifestError::Json { .. }), "{error}");
    assert!(error.to_string().contains("missing field"), "{error}");
}

#[test]
fn a_newer_format_is_its_own_error() {
    let error = parse(r#"{"format": 5, "shape": "unknown"}"#).unwrap_err();
    assert!(matches!(error, ManifestError::NewerFormat { format: 5, .. }), "{error}");
    assert!(matches!(parse(r#"{"format": 0}"#), Err(ManifestError::UnknownFormat(_, 0))));
    assert!(matches!(parse(r#"{"format": -1}"#), Err(ManifestError::Json { .. })));
}

#[test]
fn a_checkpoint_of_a_task_that_is_gone_is_not_damaged() {
    let text = add_checksum(b"{\n  \"format\": 4,\n  \"recipe\": { \"task\": \"torchscript\" }\n}".to_vec());
    let error = parse(text).unwrap_err();
    assert!(matches!(error, ManifestError::OtherContent(..)) && !error.is_damage(), "{error}");
    assert!(error.to_string().contains("model.safetensors as model.weights"), "{error}");
}

#[test]
fn names_outside_of_the_folder_are_errors() {
    let (dir, manifest) = checkpoint();
    let good = manifest.files[0].clone();
    for name in ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "a\0b", "a\nb", FILE_NAME] {
        let mut manifest = manifest.clone();
        manifest.files[0].name = name.into();
        assert!(matches!(manifest.write(dir.path()), Err(ManifestError::FileName { .. })), "{name:?}");
        assert!(matches!(manifest.verify(dir.path()), Err(ManifestError::FileName { .. })), "{name:?}");
        // Also a manifest whose checksum was computed again.
        let text = add_checksum(serde_json::to_vec_pretty(&manifest).unwrap());
        assert!(matches!(parse(text), Err(ManifestError::FileName { .. })), "{name:?}");
    }
    let mut twice = manifest.clone();
    twice.files.push(good);
    assert!(matches!(twice.write(dir.path()), Err(ManifestError::FileName { .. })));
    for digits in ["", "abc", &"A".repeat(64), &"g".repeat(64), &"0".repeat(65)] {
        let mut manifest = manifest.clone();
        manifest.files[0].parts[0].checksum = Checksum::Blake3(digits.into());
        assert!(matches!(manifest.write(dir.path()), Err(ManifestError::ChecksumForm { .. })), "{digits:?}");
    }
    assert_eq!(Manifest::read(dir.path()).unwrap(), manifest, "a refused write changes nothing");
}

/// A file that several ranks wrote is whole only if all of its parts are.
#[test]
fn parts_are_checked_one_by_one() {
    let (dir, mut manifest) = checkpoint();
    let path = dir.path().join("model.safetensors");
    let content: Vec<u8> = (0..1000_u32).map(|at| (at * 7) as u8).collect();
    fs::write(&path, &content).unwrap();
    let ends = [0, 1, 400, 400, 999, 1000];
    let part = |range: &[usize]| part(dir.path(), &content[range[0]..range[1]]);
    manifest.files[0].bytes = 1000;
    manifest.files[0].parts = ends.windows(2).map(part).collect();
    manifest.write(dir.path()).unwrap();
    let read = Manifest::read(dir.path()).unwrap();
    assert_eq!(read, manifest);
    read.verify(dir.path()).unwrap();
    for at in [0, 1, 399, 400, 998, 999] {
        let mut damaged = content.clone();
        damaged[at] ^= 0x10;
        fs::write(&path, &damaged).unwrap();
        let error = read.verify(dir.path()).unwrap_err();
        assert!(matches!(error, ManifestError::Checksum { .. }), "{at}: {error}");
    }
    for bytes in [0, 999, 1001, u64::MAX] {
        let mut other = manifest.clone();
        other.files[0].bytes = bytes;
        let error = other.write(dir.path()).unwrap_err();
        assert!(matches!(error, ManifestError::Parts { .. }), "{error}");
    }
    let mut none = manifest.clone();
    none.files[0].parts.clear();
    assert!(matches!(none.write(dir.path()), Err(ManifestError::Parts { .. })));
}

/// All damage is reported, file by file and part by part, with the progress of reading.
#[test]
fn all_damage_is_listed() {
    let (dir, mut manifest) = checkpoint();
    let part = |bytes: &[u8]| part(dir.path(), bytes);
    fs::write(dir.path().join("two"), b"abcdef").unwrap();
    manifest.files.push(FileEntry { name: "two".into(), bytes: 6, parts: vec![part(b"abc"), part(b"def")] });
    let read = std::sync::atomic::AtomicU64::new(0);
    let damage = |wanted: &dyn Fn(&str) -> bool| {
        let count = |bytes| {
            read.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        };
        let found = manifest.errors(dir.path(), wanted, count);
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(damage(&|_| true), [""; 0]);
    assert_eq!(read.load(std::sync::atomic::Ordering::Relaxed), 9);
    fs::write(dir.path().join("two"), b"abcdeX").unwrap();
    fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    let found = damage(&|_| true);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("cannot read") && found[0].contains("model.safetensors"));
    assert!(found[1].contains("in bytes 3 to 6;"), "{found:?}");
    assert_eq!(damage(&|name| name == "two").len(), 1);
    fs::write(dir.path().join("two"), b"XbcdeX").unwrap();
    assert_eq!(damage(&|name| name == "two").len(), 2);
}

/// A resume needs only the first error of a damaged checkpoint.
#[test]
fn reading_ends_with_the_first_damage() {
    let (dir, mut manifest) = checkpoint();
    fs::write(dir.path().join("model.safetensors"), vec![1; 1000]).unwrap();
    manifest.files[0].bytes = 1000;
    manifest.files[0].parts = vec![part(dir.path(), b"0"); 1000];
    let errors = |first_only| entry::errors(&manifest.files, dir.path(), first_only, |_| ()).len();
    assert_eq!(errors(false), 1000);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    assert!((1..=threads).contains(&errors(true)));
}

/// Manifests with one checksum for a file, and files of several ranks up to format 3.
#[test]
fn earlier_formats_are_read() {
    let (dir, mut manifest) = checkpoint();
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let entry = &mut manifest.files[0];
    entry.parts[0].checksum = Checksum::Sha256(abc.into());
    let text = serde_json::to_string(&manifest).unwrap();
    assert!(text.contains("\"sha256\"") && !text.contains("parts"), "{text}");
    let first = text.replace(&format!("\"format\":{FORMAT}"), "\"format\":1");
    let read = parse(first).unwrap();
    assert_eq!((read.format, &read.files), (1, &manifest.files));
    read.verify(dir.path()).unwrap();
    let parts = format!("\"parts\":[{{\"bytes\":3,\"sha256\":\"{abc}\"}}]");
    let second = text
        .replace(&format!("\"format\":{FORMAT}"), "\"format\":2")
        .replace(&format!("\"sha256\":\"{abc}\""), &parts);
    assert_eq!(parse(second).unwrap().files, manifest.files);
    fs::write(dir.path().join("model.safetensors"), b"abd").unwrap();
    assert!(matches!(read.verify(dir.path()), Err(ManifestError::Checksum { .. })));
}

#[test]
fn a_malformed_checksum_is_an_error() {
    let (_dir, manifest) = checkpoint();
    let text = serde_json::to_string(&manifest).unwrap();
    let old = text.replace(&format!("\"format\":{FORMAT}"), "\"format\":1");
    parse(&old).unwrap();
    let refused = |text: &str, why: &str| {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    let with = |checksum: &str| old.replace("\"blake3\"", checksum);
    refused(&with("\"sha256\":\"0\",\"blake3\""), "expected 64 lower-case hexadecimal digits");
    refused(&with("\"parts\":[{\"bytes\":3}],\"other\""), "no variant of enum Checksum");
    assert!(matches!(parse(with("\"blake3\":5,\"other\"")), Err(ManifestError::Parts { .. })));
    assert!(matches!(parse(with("\"other\"")), Err(ManifestError::Parts { .. })));
}

/// The manifest matters as much as the tensors: no changed bit may go unnoticed.
#[test]
fn every_bit_of_a_manifest_counts() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("step-00000120");
    fs::create_dir(&folder).unwrap();
    let mut manifest = sample();
    manifest.step = 120;
    manifest.write(&folder).unwrap();
    assert_eq!(Manifest::read(&folder).unwrap(), manifest);
    let bytes = fs::read(folder.join(FILE_NAME)).unwrap();
    for place in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1 << bit;
            assert!(parse(damaged).is_err(), "bit {bit} of byte {place}");
        }
        assert!(parse(&bytes[..place]).is_err(), "the first {place} bytes");
        let without = [&bytes[..place], &bytes[place + 1..]].concat();
        assert!(parse(without).is_err(), "without byte {place}");
    }
    assert!(parse([&bytes[..], b" "].concat()).is_err());
    // The checkpoint of another step under this name.
    let other = dir.path().join("step-00000121");
    fs::rename(&folder, &other).unwrap();
    let error = Manifest::read(&other).unwrap_err();
    assert!(matches!(error, ManifestError::OtherStep(_, 120)), "{error}");
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        prop_assert!(parse(bytes).is_err());
    }

    /// A valid manifest with some bytes changed or cut off.
    #[test]
    fn any_damage_is_read_or_an_error(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut bytes = sample().to_bytes(Path::new("manifest.json")).unwrap();
        for (index, byte) in &changes {
            let index = index.index(bytes.len());
            bytes[index] = *byte;
        }
        let _ = parse(&bytes);
        bytes.truncate(keep.index(bytes.len()));
        prop_assert!(parse(&bytes).is_err(), "a part is never a manifest");
    }
}

#[test]
fn deep_nesting_is_an_error_not_a_crash() {
    for text in ["[".repeat(1 << 20), "{\"format\":".repeat(1 << 18)] {
        assert!(parse(text).is_err());
    }
}

#[test]
fn an_interrupted_evaluation_keeps_its_key() {
    let manifest = Manifest { evaluation_missing: true, ..sample() };
    let bytes = manifest.to_bytes(Path::new("manifest.json")).unwrap();
    assert!(String::from_utf8(bytes).unwrap().contains("\"evaluation_owed\": true"));
}

/// One more character in the name of a class, and no resume would read the manifest.
#[test]
fn a_manifest_that_no_resume_reads_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut manifest = sample();
    let length = |manifest: &Manifest| manifest.to_bytes(Path::new("m")).unwrap().len() as u64;
    manifest.class_names = vec!["x".to_owned()];
    let rest = length(&manifest) - 1;
    manifest.class_names = vec!["x".repeat((MAX_BYTES - rest) as usize)];
    assert_eq!(length(&manifest), MAX_BYTES);
    manifest.write(dir.path()).unwrap();
    assert_eq!(Manifest::read(dir.path()).unwrap(), manifest);
    // Files, parts and figures still come.
    let error = manifest.check_room(dir.path(), 0).unwrap_err();
    assert!(matches!(error, ManifestError::Unwritable { .. }), "{error}");
    manifest.class_names[0].push('x');
    let error = manifest.write(dir.path()).unwrap_err().to_string();
    assert!(error.contains("more than the 16.00 MiB that a resume reads: class names 16.00 MiB"), "{error}");
    manifest.class_names[0].truncate(1 << 20);
    manifest.check_room(dir.path(), 0).unwrap();
    // The parts of a terabyte have their checksums.
    assert!(
        manifest.check_room(dir.path(), 1 << 40).is_ok() && manifest.check_room(dir.path(), 1 << 46).is_err()
    );
}

#[test]
fn sizes_of_the_data_are_kept_in_order() {
    let period = |step, train_samples| DataPeriod { step, train_samples };
    let of = |train_samples| {
        Some(DataFingerprint {
            train_samples,
            test_samples: 5,
            val_samples: None,
            sha256: String::new(),
            form: 0,
        })
    };
    let first = Manifest { data: of(80), ..sample() };
    assert_eq!(first.periods_with(80), []);
    let changed = [period(0, 80), period(120, 40)];
    assert_eq!(first.periods_with(40), changed);
    // A requeued run has the same periods, wherever it was stopped.
    let second = Manifest { data: of(40), data_periods: changed.into(), step: 130, ..sample() };
    assert_eq!(second.periods_with(40), changed);
    assert_eq!(second.periods_with(80), [period(0, 80), period(120, 40), period(130, 80)]);
    // Stopped before a step with the new data.
    let unused = Manifest { step: 120, ..second.clone() };
    assert_eq!(
        (unused.periods_with(80), unused.periods_with(60)),
        (vec![], vec![period(0, 80), period(120, 60)])
    );
    let read = parse(second.to_bytes(Path::new("m")).unwrap()).unwrap();
    assert_eq!(read.data_periods, changed);
    // Earlier versions did not store the size: 7680 samples in an epoch and 2 steps of 64.
    assert_eq!((sample().recipe.train.effective_batch, sample().periods_with(7552)), (64, vec![]));
    assert_eq!(sample().periods_with(80), [period(0, 7552), period(120, 80)]);
}
