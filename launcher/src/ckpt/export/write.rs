//! Writes the values of one tensor, a few MiB at a time.

use super::outputs::Output;
use crate::ckpt::names::Form;
use crate::ckpt::round::convert;
use crate::ckpt::tensors::{TensorFileError, read};
use dtrain_common::safetensors_file::SafetensorsFile;
use std::io;

/// Why the file was not written.
#[derive(Debug)]
pub(super) enum Unwritten {
    /// An error of the file system, also at the file's creation.
    Io(io::Error),
    /// A signal stopped the export.
    Stopped(i32),
    /// Any other error.
    Other(anyhow::Error),
}

impl From<io::Error> for Unwritten {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<TensorFileError> for Unwritten {
    fn from(error: TensorFileError) -> Self {
        Self::Other(error.into())
    }
}

/// Bytes read at a time.
const CHUNK: usize = 4 << 20;

/// Writes the values of an output's source in their new form and type. Returns the number of overflows.
pub(super) fn tensor(
    file: &SafetensorsFile,
    output: &Output,
    put: &mut impl FnMut(&[u8]) -> Result<(), Unwritten>,
) -> Result<u64, Unwritten> {
    let mut overflows = 0;
    let mut converted = Vec::new();
    let mut each = |bytes: &[u8]| {
        let Some(floats) = output.floats else {
            return put(bytes);
        };
        converted.clear();
        // Only floating-point numbers are converted.
        overflows += convert(output.source.dtype, floats, bytes, &mut converted).unwrap_or(0);
        put(&converted)
    };
    let all = output.source.bytes;
    match output.form {
        Form::Same => range(file, output, (0, all), &mut each)?,
        Form::Third(part) => {
            let length = all / 3;
            range(file, output, (length * u64::from(part), length), &mut each)?;
        }
        Form::Transposed => transposed(file, output, &mut each)?,
    }
    Ok(overflows)
}

/// Passes a number of bytes from an offset on to `each`, unchanged.
fn range(
    file: &SafetensorsFile,
    output: &Output,
    (mut offset, mut left): (u64, u64),
    each: &mut impl FnMut(&[u8]) -> Result<(), Unwritten>,
) -> Result<(), Unwritten> {
    let mut buffer = vec![0; left.min(CHUNK as u64) as usize];
    while left > 0 {
        let length = left.min(CHUNK as u64);
        let chunk = &mut buffer[..length as usize];
        read(file, &output.source, offset, chunk)?;
        each(chunk)?;
        offset += length;
        left -= length;
    }
    Ok(())
}

/// Passes a matrix to `each` by columns. Only this form holds a whole tensor in memory.
fn transposed(
    file: &SafetensorsFile,
    output: &Output,
    each: &mut impl FnMut(&[u8]) -> Result<(), Unwritten>,
) -> Result<(), Unwritten> {
    let [_, columns] = output.source.shape[..] else {
        return range(file, output, (0, output.source.bytes), each);
    };
    let width = output.source.width() as usize;
    let mut matrix = vec![0; output.source.bytes as usize];
    read(file, &output.source, 0, &mut matrix)?;
    let mut transposed = Vec::with_capacity(matrix.len());
    for column in (0..columns).filter(|_| !matrix.is_empty()) {
        let value = column * width..(column + 1) * width;
        for row in matrix.chunks_exact(columns * width) {
            transposed.extend_from_slice(&row[value.clone()]);
        }
    }
    transposed.chunks(CHUNK).try_for_each(each)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use dtrain_common::safetensors_file::{Dtype, StoredTensor, header};
    use proptest::prelude::*;
    use std::fs;

    /// Returns the output for a matrix of 0, 1, 2 ... in this form.
    fn made(rows: usize, columns: usize, form: Form, floats: Option<Dtype>) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let source = StoredTensor::new("x", Dtype::F32, vec![rows, columns]).unwrap();
        let mut bytes = header([&source], None).unwrap();
        bytes.extend((0..rows * columns).flat_map(|value| (value as f32).to_le_bytes()));
        fs::write(&path, bytes).unwrap();
        let file = SafetensorsFile::open(&path).unwrap();
        let output =
            Output { file: 0, target: source.clone(), source: file.tensors[0].clone(), form, floats };
        let mut out = Vec::new();
        let overflows = tensor(&file, &output, &mut |bytes| {
            out.extend_from_slice(bytes);
            Ok(())
        });
        assert_eq!(overflows.unwrap(), 0);
        out
    }

    fn numbers(bytes: &[u8]) -> Vec<f32> {
        let chunks = bytes.as_chunks().0.iter();
        chunks.map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    #[track_caller]
    fn expect_transposed(rows: usize, columns: usize) {
        let found = numbers(&made(rows, columns, Form::Transposed, None));
        let expected: Vec<_> = (0..columns)
            .flat_map(|column| (0..rows).map(move |row| (row * columns + column) as f32))
            .collect();
        assert!(found == expected, "{rows} x {columns}");
    }

    /// The output is written in several pieces, the last one shorter.
    #[test]
    fn a_large_matrix_is_transposed() {
        expect_transposed((1 << 20) + 1, 9);
        expect_transposed(3, 2_800_001);
    }

    #[test]
    fn a_third_is_of_the_rows() {
        let thirds = (0..3).map(|part| numbers(&made(6, 2, Form::Third(part), None)));
        assert_eq!(
            thirds.collect::<Vec<_>>(),
            [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]
        );
    }

    #[test]
    fn tensors_longer_than_a_chunk_are_written_whole() {
        let found = numbers(&made(1, (CHUNK / 4) * 2 + 5, Form::Same, None));
        assert!(found.iter().enumerate().all(|(at, value)| *value == at as f32));
        let half = made(2, 2, Form::Transposed, Some(Dtype::BF16));
        assert_eq!(half, [0, 0, 0, 0x40, 0x80, 0x3f, 0x40, 0x40]);
    }

    proptest! {
        #[test]
        fn any_matrix_is_transposed(rows in 0_usize..40, columns in 0_usize..40) {
            expect_transposed(rows, columns);
        }
    }
}
