#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixListener;

use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

/// Returns what `decode` saw in each call, until it saw `wanted` bytes.
fn seen(path: &Path, first: First, wanted: usize, bytes: &mut Vec<u8>) -> (Vec<usize>, io::Result<()>) {
    let mut calls = Vec::new();
    let outcome = decode(path, first, bytes, |bytes| {
        calls.push(bytes.len());
        if bytes.len() >= wanted { Ok(()) } else { Err(io::Error::other("more")) }
    });
    (calls, outcome)
}

#[test]
fn only_files_and_links_to_them_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("file"), b"content").unwrap();
    std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
    let mut bytes = vec![1];
    for name in ["file", "link"] {
        read(&path(name), &mut bytes).unwrap();
        assert_eq!(bytes, b"content");
        for first in [First::Header, First::Whole] {
            assert_eq!(seen(&path(name), first, 7, &mut bytes).0, [7]);
            assert_eq!(bytes, b"content");
        }
    }
    mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let _socket = UnixListener::bind(path("socket")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", path("device")).unwrap();
    for (name, words) in
        [("pipe", "a named pipe"), ("socket", "a socket"), ("device", "a device"), (".", "a folder")]
    {
        let texts = [
            read(&path(name), &mut bytes).unwrap_err(),
            seen(&path(name), First::Header, 1 << 40, &mut bytes).1.unwrap_err(),
            seen(&path(name), First::Whole, 1 << 40, &mut bytes).1.unwrap_err(),
        ];
        for text in texts.map(|error| error.to_string()) {
            assert!(text.contains(words), "{name}: {text}");
        }
    }
    let gone = read(&path("gone"), &mut bytes).unwrap_err();
    assert_eq!(gone.kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_header_takes_4_kib_of_a_file_and_more_only_if_needed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    fs::write(&path, vec![7; 200_000]).unwrap();
    let mut bytes = Vec::new();
    assert_eq!(seen(&path, First::Header, 100, &mut bytes).0, [4096]);
    assert_eq!(seen(&path, First::Header, 5000, &mut bytes).0, [4096, 65536]);
    assert_eq!(seen(&path, First::Header, 70_000, &mut bytes).0, [4096, 65536, 200_000]);
    // A whole file is decoded once, and the next one of its size takes one read.
    assert_eq!(seen(&path, First::Whole, 0, &mut bytes).0, [200_000]);
    // The memory of a large file is not kept for headers.
    assert_eq!(seen(&path, First::Header, 100, &mut bytes).0, [4096]);
    assert_eq!(bytes.capacity(), HEADER_BYTES);
}

#[test]
fn memory_is_not_written_beyond_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    fs::write(&path, b"content").unwrap();
    let mut bytes = vec![7; 1 << 20];
    assert_eq!(seen(&path, First::Whole, 7, &mut bytes).0, [7]);
    // SAFETY: all bytes were written above.
    let value = |byte: &std::mem::MaybeUninit<u8>| unsafe { byte.assume_init() };
    let spare = bytes.spare_capacity_mut();
    assert!(spare.len() > 1000 && spare.iter().all(|byte| value(byte) == 7), "a small file cost a large one");
}

proptest! {
    #[test]
    fn every_byte_of_a_file_is_offered(length in 0usize..150_000, whole: bool, room in 0usize..100_000) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let content: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        fs::write(&path, &content).unwrap();
        let mut bytes = Vec::with_capacity(room);
        let first = if whole { First::Whole } else { First::Header };
        let (calls, outcome) = seen(&path, first, usize::MAX, &mut bytes);
        prop_assert!(outcome.is_err());
        prop_assert_eq!(calls.last(), Some(&length));
        prop_assert!(bytes == content);
    }
}
