#![allow(clippy::unwrap_used)]
use std::fs;

use dtrain_common::safetensors_file::{header, widest_first};
use tch::Kind;

use super::super::dtype::dtype_of;
use super::*;

/// Writes named tensors to a file, each in its dtype.
pub(crate) fn write_tensors(path: &Path, tensors: &[(&str, Tensor)]) {
    let dtype = |tensor: &Tensor| dtype_of(tensor.kind()).unwrap();
    let mut ordered: Vec<_> = tensors.iter().collect();
    ordered.sort_by_key(|(_, tensor)| widest_first(dtype(tensor)));
    let stored = ordered.iter().map(|(name, tensor)| {
        let shape = tensor.size().into_iter().map(|size| size as usize).collect();
        StoredTensor::new(*name, dtype(tensor), shape).unwrap()
    });
    let mut bytes = header(&stored.collect::<Vec<_>>(), None).unwrap();
    for (_, tensor) in ordered {
        let start = bytes.len();
        bytes.resize(start + tensor.numel() * tensor.kind().elt_size_in_bytes(), 0);
        tensor.copy_data_u8(&mut bytes[start..], tensor.numel());
    }
    fs::write(path, bytes).unwrap();
}

/// Returns a path in a new folder, which is removed with the first value.
pub(crate) fn new_file(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    (folder, path)
}

#[test]
fn every_truncation_is_a_typed_error() {
    let (folder, path) = new_file("whole.safetensors");
    let values = Tensor::from_slice(&[0.0f64, 1.0, 2.0, 3.0]);
    write_tensors(&path, &[("a", values.to_kind(Kind::Half)), ("b", values.view([2, 2]))]);
    let bytes = fs::read(&path).unwrap();
    let cut = folder.path().join("cut.safetensors");
    for length in 0..bytes.len() {
        fs::write(&cut, &bytes[..length]).unwrap();
        let error = TensorFile::open(&cut).unwrap_err();
        match &error.problem {
            WeightsProblem::Format(_) => assert!(length < 8, "{length}: {error}"),
            WeightsProblem::Size(actual, _) => assert_eq!(*actual, length as u64),
            _ => panic!("{length}: {error}"),
        }
        assert!(error.to_string().contains("cut.safetensors"));
    }
    fs::write(&cut, [&bytes[..], b"x"].concat()).unwrap();
    assert!(TensorFile::open(&cut).unwrap_err().to_string().contains("too long"));
}

#[test]
fn headers_of_any_length_are_of_safetensors() {
    let (folder, path) = new_file("w.safetensors");
    let index = folder.path().join("model.safetensors.index.json");
    fs::write(&index, r#"{"weight_map": {"a": "w.safetensors"}}"#).unwrap();
    // The first bytes are those of a pickle, of a pickle, and of JSON.
    for length in [640_u64, 896, 31520] {
        let header = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        let header = format!("{header:<0$}", length as usize);
        fs::write(&path, [&length.to_le_bytes()[..], header.as_bytes(), b"1"].concat()).unwrap();
        assert_eq!(TensorFile::open_weights(&path).unwrap().names(), ["a"]);
        assert_eq!(TensorFile::open_weights(&index).unwrap().names(), ["a"], "{length}");
        let damaged = length | 1 << 30;
        fs::write(&path, [&damaged.to_le_bytes()[..], header.as_bytes(), b"1"].concat()).unwrap();
        let text = TensorFile::open_weights(&path).unwrap_err().to_string();
        assert!(text.contains("bytes exceeds the format's limit; download or copy it again"), "{text}");
    }
}

#[test]
fn garbage_is_a_typed_error() {
    let (folder, path) = new_file("garbage");
    let with_header = |header: &str| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes
    };
    // In order: a zip (PyTorch's format), text, no JSON, a shape that does not match its data,
    // overlapping tensors, a shape that overflows, an unknown dtype.
    let cases = [
        b"PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00".to_vec(),
        b"just some text, nothing more".to_vec(),
        with_header("not json"),
        with_header(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#),
        with_header(
            r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}"#,
        ),
        with_header(
            r#"{"a":{"dtype":"F32","shape":[9223372036854775807,9223372036854775807],"data_offsets":[0,4]}}"#,
        ),
        with_header(r#"{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}"#),
    ];
    for bytes in cases {
        fs::write(&path, [&bytes[..], b"1234"].concat()).unwrap();
        let error = TensorFile::open(&path).unwrap_err();
        let is_zip = matches!(error.problem, WeightsProblem::Foreign(Content::Zip, _));
        assert!(is_zip || matches!(error.problem, WeightsProblem::Format(_)), "{error}");
        assert_eq!(is_zip, bytes.starts_with(b"PK"), "{error}");
    }
    assert!(matches!(
        TensorFile::open(folder.path()),
        Err(WeightsError { problem: WeightsProblem::Format(_), .. })
    ));
    assert!(matches!(
        TensorFile::open(&folder.path().join("none")),
        Err(WeightsError { problem: WeightsProblem::Read(_), .. })
    ));
}

#[test]
fn a_tensor_is_read_into_any_layout() {
    let (_folder, path) = new_file("file.safetensors");
    let values = Tensor::from_slice(&[0.5f64, 1.0, 2.0, 3.0, 4.0, 5.0]).view([2, 3]);
    write_tensors(&path, &[("a", values.shallow_clone())]);
    let file = TensorFile::open(&path).unwrap();
    assert!(file.read("a").unwrap().equal(&values));
    for kind in [Kind::Double, Kind::Float] {
        let buffer = Tensor::full([3, 4], -1.0, (kind, Device::Cpu));
        // Contiguous, transposed, and with gaps.
        for target in [
            buffer.narrow(0, 1, 2).view([8]).narrow(0, 1, 6).view([2, 3]),
            buffer.narrow(1, 1, 2).transpose(0, 1),
        ] {
            let _ = tch::no_grad(|| buffer.shallow_clone().fill_(-1.0));
            file.read_into("a", &target).unwrap();
            assert!(target.to_kind(Kind::Double).equal(&values));
            assert_eq!((&buffer + 1.0).count_nonzero(None::<i64>).int64_value(&[]), 6);
        }
    }
    let leaf = Tensor::zeros([2, 3], (Kind::Double, Device::Cpu)).set_requires_grad(true);
    file.read_into("a", &leaf).unwrap();
    assert!(leaf.equal(&values) && leaf.is_leaf());
    assert!(file.read_into("a", &values.view([-1])).is_err());
    assert_eq!(file.shape("a").unwrap(), [2, 3]);
}

#[test]
fn a_hostile_empty_shape_and_an_unknown_dtype_are_errors() {
    let (_folder, path) = new_file("odd");
    let header = r#"{"a":{"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]},"b":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), b"1"].concat();
    fs::write(&path, bytes).unwrap();
    let file = TensorFile::open(&path).unwrap();
    assert!(matches!(
        file.read("a"),
        Err(ModelError::Weights(WeightsError { problem: WeightsProblem::Format(_), .. }))
    ));
    assert!(matches!(
        file.read("b"),
        Err(ModelError::Weights(WeightsError { problem: WeightsProblem::Dtype { .. }, .. }))
    ));
}

fn every_kind() -> Vec<(&'static str, Tensor)> {
    let values = Tensor::from_slice(&[0.0f64, 1.0, 2.0, 3.0, 4.0, 5.0]);
    [
        ("bool", Kind::Bool),
        ("u8", Kind::Uint8),
        ("i8", Kind::Int8),
        ("i16", Kind::Int16),
        ("i32", Kind::Int),
        ("i64", Kind::Int64),
        ("f16", Kind::Half),
        ("bf16", Kind::BFloat16),
        ("f32", Kind::Float),
        ("f64", Kind::Double),
    ]
    .into_iter()
    .map(|(name, kind)| (name, values.to_kind(kind).view([2, 3])))
    .chain([("empty", Tensor::zeros([0, 4], (Kind::Float, Device::Cpu)))])
    .chain([("scalar", Tensor::from(7i64)), ("strided", values.view([2, 3]).transpose(0, 1))])
    .collect()
}

#[test]
fn every_dtype_survives_a_round_trip() {
    let (_folder, path) = new_file("tensors.safetensors");
    let tensors = every_kind();
    write_tensors(&path, &tensors);

    let file = TensorFile::open(&path).unwrap();
    assert_eq!(file.tensors.len(), tensors.len());
    for (name, tensor) in &tensors {
        let back = file.read(name).unwrap();
        assert_eq!((back.size(), back.kind()), (tensor.size(), tensor.kind()), "{name}");
        assert!(back.equal(tensor), "{name}");
    }
    assert!(matches!(
        file.read("f80"),
        Err(ModelError::Weights(WeightsError { problem: WeightsProblem::NoTensor(_), .. }))
    ));
    // The format's own reader agrees.
    let bytes = fs::read(&path).unwrap();
    assert_eq!(safetensors::SafeTensors::deserialize(&bytes).unwrap().len(), tensors.len());
}
