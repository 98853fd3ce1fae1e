//! The values of one tensor, a few MiB at a time.

use super::plan::Output;
use crate::ckpt::names::Form;
use crate::ckpt::round::convert;
use crate::ckpt::tensors::TensorFile;
use std::io;

/// Why the file was not written.
#[derive(Debug)]
pub(super) enum Unwritten {
    /// The file system refused, also in making it.
    Io(io::Error),
    /// By this signal.
    Stopped(i32),
    /// Anything else, in words.
    Other(anyhow::Error),
}

impl From<io::Error> for Unwritten {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What is read at a time; a multiple of every type's size.
const CHUNK: u64 = 4 << 20;
/// What is held of a matrix that is transposed. More than [`CHUNK`]: its rows are read in pieces of a strip's width, and every piece is
/// a call of the system.
const STRIP: u64 = 32 << 20;
/// The rows of a matrix that are transposed together, so that values that lie side by side are written side by side.
const ROWS: usize = 32;

/// Reads the values of an output's source and puts them in their new form and type, in order. Returns how many finite numbers became
/// infinite.
pub(super) fn tensor(
    file: &TensorFile,
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
        // Only tensors of floating-point numbers have a new type.
        overflows += convert(output.source.dtype, floats, bytes, &mut converted).unwrap_or(0);
        put(&converted)
    };
    let all = output.source.bytes();
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

/// So many bytes from an offset on, as they are.
fn range(
    file: &TensorFile,
    output: &Output,
    (mut offset, mut left): (u64, u64),
    each: &mut impl FnMut(&[u8]) -> Result<(), Unwritten>,
) -> Result<(), Unwritten> {
    let mut buffer = vec![0; left.min(CHUNK) as usize];
    while left > 0 {
        let length = left.min(CHUNK);
        let chunk = &mut buffer[..length as usize];
        read(file, output, offset, chunk)?;
        each(chunk)?;
        offset += length;
        left -= length;
    }
    Ok(())
}

/// A matrix by its columns: as many at a time as [`STRIP`] holds, or one that is longer.
fn transposed(
    file: &TensorFile,
    output: &Output,
    each: &mut impl FnMut(&[u8]) -> Result<(), Unwritten>,
) -> Result<(), Unwritten> {
    let [rows, columns] = output.source.shape[..] else {
        return range(file, output, (0, output.source.bytes()), each);
    };
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    let wide = output.source.width();
    let (element, height) = (wide as usize, rows as usize);
    let most = (STRIP / (rows * wide)).clamp(1, columns);
    let mut strip = vec![0; (most * rows * wide) as usize];
    let mut lines = vec![0; (most * wide) as usize * ROWS];
    let mut column = 0;
    while column < columns {
        let width = most.min(columns - column);
        let line = (width * wide) as usize;
        let mut row = 0;
        while row < height {
            let many = ROWS.min(height - row);
            for (at, line) in (row as u64..).zip(lines[..many * line].chunks_exact_mut(line)) {
                read(file, output, (at * columns + column) * wide, line)?;
            }
            for at in 0..width as usize {
                let place = (at * height + row) * element;
                let values = strip[place..place + many * element].chunks_exact_mut(element);
                for (value, line) in values.zip(lines.chunks_exact(line)) {
                    value.copy_from_slice(&line[at * element..(at + 1) * element]);
                }
            }
            row += many;
        }
        each(&strip[..(width * rows * wide) as usize])?;
        column += width;
    }
    Ok(())
}

fn read(file: &TensorFile, output: &Output, offset: u64, buffer: &mut [u8]) -> Result<(), Unwritten> {
    file.read(&output.source, offset, buffer)
        .map_err(|error| Unwritten::Other(error.into()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::ckpt::tensors::{Tensor, header};
    use proptest::prelude::*;
    use safetensors::Dtype;
    use std::fs;

    /// What is made of a matrix of 0, 1, 2 ... in this form.
    fn made(rows: u64, columns: u64, form: Form, floats: Option<Dtype>) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let source = Tensor::new("x", Dtype::F32, vec![rows, columns]).unwrap();
        let mut bytes = header([&source], None).unwrap();
        bytes.extend((0..rows * columns).flat_map(|value| (value as f32).to_le_bytes()));
        fs::write(&path, bytes).unwrap();
        let file = TensorFile::open(&path).unwrap();
        let output = Output {
            file: 0,
            target: source.clone(),
            source: file.tensors()[0].clone(),
            form,
            floats,
        };
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
    fn expect_transposed(rows: u64, columns: u64) {
        let found = numbers(&made(rows, columns, Form::Transposed, None));
        let expected: Vec<_> = (0..columns)
            .flat_map(|column| (0..rows).map(move |row| (row * columns + column) as f32))
            .collect();
        assert!(found == expected, "{rows} x {columns}");
    }

    /// Also where it is read in several strips, and where the last strip is narrower.
    #[test]
    fn a_large_matrix_is_transposed_in_strips() {
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
    fn what_is_longer_than_a_chunk_is_whole() {
        let found = numbers(&made(1, (CHUNK / 4) * 2 + 5, Form::Same, None));
        assert!(found.iter().enumerate().all(|(at, value)| *value == at as f32));
        let half = made(2, 2, Form::Transposed, Some(Dtype::BF16));
        assert_eq!(half, [0, 0, 0, 0x40, 0x80, 0x3f, 0x40, 0x40]);
    }

    proptest! {
        #[test]
        fn any_matrix_is_transposed(rows in 0_u64..40, columns in 0_u64..40) {
            expect_transposed(rows, columns);
        }
    }
}
