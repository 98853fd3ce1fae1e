#![allow(clippy::unwrap_used)]

use std::fs;

use proptest::prelude::*;

use super::*;

fn with_header(text: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes.extend(data);
    bytes
}

fn open(bytes: &[u8]) -> Result<SafetensorsFile, SafetensorsError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    fs::write(&path, bytes).unwrap();
    SafetensorsFile::open(&path)
}

#[track_caller]
fn refused(bytes: &[u8]) -> String {
    match open(bytes).unwrap_err() {
        error @ (SafetensorsError::Io(_) | SafetensorsError::NotRegular) => panic!("{error}"),
        error => error.to_string(),
    }
}

fn sample() -> Vec<u8> {
    let tensors = [
        StoredTensor::new("n", Dtype::I64, vec![]).unwrap(),
        StoredTensor::new("a.weight", Dtype::F32, vec![2, 3]).unwrap(),
        StoredTensor::new("none", Dtype::F32, vec![0, 7]).unwrap(),
        StoredTensor::new("half", Dtype::BF16, vec![2]).unwrap(),
    ];
    let mut bytes = header(&tensors, None).unwrap();
    assert_eq!(bytes.len() % 8, 0);
    bytes.extend(0..36_u8);
    bytes
}

#[test]
fn written_tensors_read_back() {
    let file = open(&sample()).unwrap();
    let shown: Vec<_> = file
        .tensors
        .iter()
        .map(|tensor| (tensor.name.as_str(), tensor.dtype, tensor.elements(), tensor.bytes))
        .collect();
    assert_eq!(
        shown,
        [
            ("n", Dtype::I64, 1, 8),
            ("a.weight", Dtype::F32, 6, 24),
            ("none", Dtype::F32, 0, 0),
            ("half", Dtype::BF16, 2, 4)
        ]
    );
    let mut buffer = [0; 4];
    file.read(&file.tensors[1], 20, &mut buffer).unwrap();
    assert_eq!(buffer, [28, 29, 30, 31]);
    for offset in [21, u64::MAX] {
        file.read(&file.tensors[1], offset, &mut buffer).unwrap_err();
    }
}

/// One case for every error.
#[test]
fn every_damage_of_a_header_has_its_error() {
    let content = "its header cannot be read: ";
    let one = |text: &str, bytes: usize| refused(&with_header(text, &vec![0; bytes]));
    assert!(refused(b"1234567").starts_with("it has 7 bytes, fewer than the 8"));
    assert!(refused(&[9, 0, 0, 0, 0, 0, 0, 0, b'{']).ends_with("a header of 9 bytes, and 1 follow"));
    assert!(refused(&[255; 64]).contains(&format!("a header of {} bytes, and", u64::MAX)));
    assert_eq!(refused(b"PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00"), "it is a zip archive");
    let long = SafetensorsError::HeaderLength { announced: MAX_HEADER_BYTES + 1, left: u64::MAX };
    assert!(long.to_string().ends_with("and the format allows 100000000"), "{long}");
    assert_eq!(one("", 4), "it is a file of zero bytes");
    for text in [
        "not json",
        "[]",
        "{} x",
        r#"{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1]}}"#,
    ] {
        assert!(one(text, 4).starts_with(content), "{text}");
    }
    for shape in ["[9223372036854775807,9223372036854775807]", "[4611686018427387904]"] {
        let text = format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,4]}}}}"#);
        assert!(one(&text, 4).starts_with(content), "{shape}");
    }
    for offsets in ["[0,8]", "[4,0]", "[18446744073709551615,3]"] {
        let text = format!(r#"{{"a":{{"dtype":"F32","shape":[1],"data_offsets":{offsets}}}}}"#);
        assert!(one(&text, 8).starts_with(content), "{offsets}");
    }
    let two = |second: &str| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},"b":{{"dtype":"U8","shape":[2],"data_offsets":{second}}}}}"#
        )
    };
    for (second, bytes) in [("[2,4]", 4), ("[5,7]", 7), ("[1,3]", 6)] {
        assert!(one(&two(second), bytes).starts_with(content), "{second}");
    }
    for bytes in [0, 5, 7, 100] {
        assert!(one(&two("[4,6]"), bytes).starts_with("its tensors take 6 bytes"), "{bytes}");
    }
    assert!(open(&with_header(&two("[4,6]"), &[0; 6])).is_ok());
    assert!(open(&with_header("{}", &[])).unwrap().tensors.is_empty());
}

#[test]
fn truncated_files_are_errors() {
    let whole = sample();
    for length in 0..whole.len() {
        refused(&whole[..length]);
    }
    refused(&[&whole[..], b"x"].concat());
}

#[test]
fn a_folder_a_pipe_and_a_missing_file_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(SafetensorsFile::open(folder.path()), Err(SafetensorsError::NotRegular)));
    let missing = SafetensorsFile::open(&folder.path().join("none"));
    assert!(matches!(missing, Err(SafetensorsError::Io(_))));
    // Nobody writes to the pipe, and opening does not wait.
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
    assert!(matches!(SafetensorsFile::open(&pipe), Err(SafetensorsError::NotRegular)));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        prop_assert!(open(&bytes).is_err());
        let announced = (bytes.len() as u64).to_le_bytes();
        let _ = open(&[&announced[..], &bytes].concat());
    }

    /// A valid file with changed bytes: if it opens, every tensor is inside the file.
    #[test]
    fn any_damage_is_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut bytes = sample();
        for (index, byte) in &changes {
            let index = index.index(bytes.len());
            bytes[index] = *byte;
        }
        if let Ok(file) = open(&bytes) {
            let taken: u64 = file.tensors.iter().map(|tensor| tensor.bytes).sum();
            prop_assert!(taken <= bytes.len() as u64);
            let mut end = 0;
            for tensor in &file.tensors {
                prop_assert_eq!(tensor.begin, end);
                end += tensor.bytes;
            }
        }
    }
}
