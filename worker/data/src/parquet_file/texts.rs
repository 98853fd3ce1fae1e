//! Whole columns of texts and numbers, as texts.

use std::io;

use parquet::basic::{ConvertedType, LogicalType};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType;

use super::{ParquetFile, damage, guarded};

/// Values that are decoded at once.
const AT_ONCE: usize = 8192;

impl ParquetFile {
    /// Returns whether [`ParquetFile::texts`] reads a leaf: texts, whole numbers, floats and booleans, one in each row.
    pub(in super::super) fn is_plain(&self, leaf: usize) -> bool {
        let leaf = self.metadata.file_metadata().schema_descr().column(leaf);
        let is_known = match leaf.logical_type_ref() {
            None | Some(LogicalType::String | LogicalType::Enum | LogicalType::Integer(_)) => true,
            Some(_) => false,
        };
        use parquet::basic::Type::{BOOLEAN, BYTE_ARRAY, DOUBLE, FLOAT, INT32, INT64};
        // Old writers state the converted type alone.
        use ConvertedType::{
            ENUM, INT_8, INT_16, INT_32, INT_64, NONE, UINT_8, UINT_16, UINT_32, UINT_64, UTF8,
        };
        let is_text = matches!(leaf.converted_type(), UTF8 | ENUM) || leaf.logical_type_ref().is_some();
        let is_number = matches!(
            leaf.converted_type(),
            NONE | INT_8 | INT_16 | INT_32 | INT_64 | UINT_8 | UINT_16 | UINT_32 | UINT_64
        );
        let has_values = match leaf.physical_type() {
            BOOLEAN | INT32 | INT64 | FLOAT | DOUBLE => is_number,
            BYTE_ARRAY => is_text,
            _ => false,
        };
        is_known && has_values && leaf.max_rep_level() == 0
    }

    /// Returns whether a leaf of [`ParquetFile::texts`] has texts.
    pub(in super::super) fn is_text(&self, leaf: usize) -> bool {
        let leaf = self.metadata.file_metadata().schema_descr().column(leaf);
        leaf.physical_type() == parquet::basic::Type::BYTE_ARRAY
    }

    /// Returns the values of a leaf as texts; empty ones for cells without a value.
    pub(in super::super) fn texts(&self, leaf: usize) -> io::Result<Vec<String>> {
        let descriptor = self.metadata.file_metadata().schema_descr().column(leaf);
        let unsigned = matches!(descriptor.logical_type_ref(), Some(LogicalType::Integer(kind)) if !kind.is_signed)
            || matches!(descriptor.converted_type(), ConvertedType::UINT_32 | ConvertedType::UINT_64);
        let most = descriptor.max_def_level();
        let mut texts = Vec::new();
        for group in 0..self.metadata.num_row_groups() {
            match self.reader(group, leaf)? {
                ColumnReader::BoolColumnReader(reader) => {
                    append(reader, most, &mut texts, |value| Ok(u8::from(*value).to_string()))?;
                }
                ColumnReader::Int32ColumnReader(reader) => append(reader, most, &mut texts, |value| {
                    Ok(if unsigned { value.cast_unsigned().to_string() } else { value.to_string() })
                })?,
                ColumnReader::Int64ColumnReader(reader) => append(reader, most, &mut texts, |value| {
                    Ok(if unsigned { value.cast_unsigned().to_string() } else { value.to_string() })
                })?,
                ColumnReader::FloatColumnReader(reader) => {
                    append(reader, most, &mut texts, |value| Ok(value.to_string()))?
                }
                ColumnReader::DoubleColumnReader(reader) => {
                    append(reader, most, &mut texts, |value| Ok(value.to_string()))?
                }
                ColumnReader::ByteArrayColumnReader(reader) => append(reader, most, &mut texts, |value| {
                    let text = std::str::from_utf8(value.data());
                    text.map(str::to_owned).map_err(|_| damage("a text is not UTF-8"))
                })?,
                _ => return Err(damage("the column has another type")),
            }
        }
        if texts.len() as u64 == self.rows() { Ok(texts) } else { Err(damage("a column has not all rows")) }
    }
}

fn append<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    most: i16,
    texts: &mut Vec<String>,
    text: impl Fn(&T::T) -> io::Result<String>,
) -> io::Result<()> {
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    loop {
        levels.clear();
        values.clear();
        let (read, _, _) = guarded(|| reader.read_records(AT_ONCE, Some(&mut levels), None, &mut values))?;
        if read == 0 {
            return Ok(());
        }
        let mut found = values.iter();
        for row in 0..read {
            let has_value = most == 0 || levels.get(row) == Some(&most);
            let value = if has_value { found.next() } else { None };
            texts.push(value.map(&text).transpose()?.unwrap_or_default());
        }
    }
}
