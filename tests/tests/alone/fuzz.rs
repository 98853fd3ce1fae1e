//! Gives changed files to the readers of checkpoints: no panic, and not much more memory than file length.
//!
//! `cargo xtask fuzz` tries many more files.

use std::fs;
use std::path::{Path, PathBuf};

use dtrain_common::manifest::{FILE_NAME, Manifest};
use dtrain_tests::runs::Sandbox;
use dtrain_worker::models::TensorFile;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

/// The variable with the number of files of each kind, for longer runs.
const CASES: &str = "DTRAIN_FUZZ";

const RECIPE: &str = r#"
task = "lm"
[data]
kind = "generated"
train_samples = 4
test_samples = 2
[model]
name = "gpt"
width = 2
depth = 1
heads = 1
context = 2
[train]
effective_batch = 4
steps = 1
"#;

/// A change of a file.
#[derive(Debug, Clone)]
enum Change {
    Byte(Index, u8),
    Bit(Index, u8),
    /// Replaces the length of a header, or a number in JSON.
    Number(Index, u64),
    Cut(Index),
    Insert(Index, Vec<u8>),
    Remove(Index, Index),
    Repeat(Index, Index, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    let large = prop_oneof![any::<u64>(), Just(u64::MAX), Just(1 << 40), Just(100_000_000), 0u64..1000];
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        (at(), 0u8..8).prop_map(|(at, bit)| Change::Bit(at, bit)),
        (at(), large).prop_map(|(at, number)| Change::Number(at, number)),
        at().prop_map(Change::Cut),
        (at(), prop::collection::vec(any::<u8>(), 0..20)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (at(), at()).prop_map(|(from, to)| Change::Remove(from, to)),
        (at(), at(), 1usize..50).prop_map(|(from, to, times)| Change::Repeat(from, to, times)),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    if bytes.is_empty() {
        return;
    }
    let range = |from: &Index, to: &Index, bytes: &[u8]| {
        let (one, other) = (from.index(bytes.len()), to.index(bytes.len()));
        one.min(other)..one.max(other)
    };
    match change {
        Change::Byte(at, byte) => {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        Change::Bit(at, bit) => {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        Change::Number(at, number) => {
            // Half of them change the header's length.
            let at = if number % 2 == 0 { 0 } else { at.index(bytes.len()) };
            match bytes[at].is_ascii_digit() {
                true => {
                    let end = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                    bytes.splice(at..at + end, number.to_string().bytes());
                }
                false => {
                    let end = (at + 8).min(bytes.len());
                    let length = end - at;
                    bytes[at..end].copy_from_slice(&number.to_le_bytes()[..length]);
                }
            }
        }
        Change::Cut(at) => bytes.truncate(at.index(bytes.len())),
        Change::Insert(at, more) => {
            let at = at.index(bytes.len());
            bytes.splice(at..at, more.iter().copied());
        }
        Change::Remove(from, to) => {
            let range = range(from, to, bytes);
            bytes.drain(range);
        }
        Change::Repeat(from, to, times) => {
            let range = range(from, to, bytes);
            let part = bytes[range.clone()].to_vec();
            if part.len() * times < 1 << 20 {
                bytes.splice(range.end..range.end, part.repeat(*times));
            }
        }
    }
}

/// Returns the peak memory of this process in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// Reads the folder: any content must be read or rejected with a message.
fn read(folder: &Path) -> Result<(), TestCaseError> {
    match Manifest::read(folder) {
        Ok(manifest) => {
            let verified = manifest.verify(folder);
            let errors = manifest.errors(folder, |_| true, |_| ());
            prop_assert_eq!(verified.is_ok(), errors.is_empty());
        }
        Err(error) => prop_assert!(!error.to_string().is_empty()),
    }
    for file in ["model.safetensors", "optimizer-00000-of-00001.safetensors"] {
        let path = folder.join(file);
        if let Ok(file) = TensorFile::open(&path) {
            for name in file.names() {
                let _ = file.read(&name);
            }
        }
    }
    Ok(())
}

#[test]
fn changed_files_read_or_fail_without_panic() {
    let _alone = crate::alone();
    /// More than the largest file of this test takes in any form.
    const MOST: u64 = 64 << 20;
    let cases = std::env::var(CASES).map_or(1500, |cases| cases.parse().unwrap());
    let sandbox = Sandbox::new(RECIPE);
    let run = sandbox.train(1, "run", &[]);
    let whole = run.0.checkpoint(1);
    let names = ["model.safetensors", "optimizer-00000-of-00001.safetensors", FILE_NAME];
    let contents = names.map(|name| fs::read(whole.join(name)).unwrap());
    // In memory if possible: the test writes files very often.
    let parent = Some(PathBuf::from("/dev/shm")).filter(|shm| shm.is_dir());
    let scratch = tempfile::tempdir_in(parent.unwrap_or_else(std::env::temp_dir)).unwrap();
    let folder = scratch.path().join("step-00000001");
    fs::create_dir(&folder).unwrap();
    for (name, content) in names.iter().zip(&contents) {
        fs::write(folder.join(name), content).unwrap();
    }
    read(&folder).unwrap();
    Manifest::read(&folder).unwrap().verify(&folder).unwrap();
    let before = peak();

    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let changes = (0..names.len(), prop::collection::vec(change(), 1..6));
    TestRunner::new(config)
        .run(&changes, |(file, changes)| {
            let mut bytes = contents[file].clone();
            for change in &changes {
                apply(&mut bytes, change);
            }
            fs::write(folder.join(names[file]), &bytes).unwrap();
            let same = bytes == contents[file];
            let outcome = read(&folder);
            let whole = Manifest::read(&folder).is_ok_and(|manifest| manifest.verify(&folder).is_ok());
            fs::write(folder.join(names[file]), &contents[file]).unwrap();
            outcome?;
            prop_assert_eq!(whole, same, "a change is never unseen");
            Ok(())
        })
        .unwrap();
    let more = peak().saturating_sub(before);
    assert!(more < MOST, "{more} bytes");
}
