//! The header of a safetensors file. Everything it says is checked before it is believed.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use super::{Dtype, MAX_HEADER_BYTES, PREFIX_BYTES, ZIP_MARK};

/// The key of what is said of the file as a whole.
const METADATA: &str = "__metadata__";

/// What is wrong with a header.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// It is not UTF-8.
    #[error("its header is not UTF-8")]
    NotText,
    /// There is no room for the length of a header.
    #[error("it has {bytes} bytes, fewer than the {PREFIX_BYTES} of its length field")]
    TooShort {
        /// The file's length.
        bytes: u64,
    },
    /// The header would be longer than the file.
    #[error("its first 8 bytes announce a header of {announced} bytes, and {left} follow")]
    Cut {
        /// The header's length by the file.
        announced: u64,
        /// The bytes after the length field.
        left: u64,
    },
    /// The header is longer than the format allows.
    #[error(
        "its first 8 bytes announce a header of {announced} bytes, and the format allows {MAX_HEADER_BYTES}"
    )]
    TooLong {
        /// The header's length by the file.
        announced: u64,
    },
    /// The file is one of `torch.save`.
    #[error("it is a zip, as torch.save writes; convert it with safetensors.torch.save_file")]
    Zip,
    /// The header is not JSON of the expected shape; also an unknown type, a negative size, or a name that stands twice.
    #[error("its header cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// Shape and type make more bytes than can be counted.
    #[error("{tensor:?} has the shape {shape:?}, which is more than can be counted")]
    Overflow {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// A tensor's place is not as long as its shape and type make it.
    #[error("{tensor:?} lies from {begin} to {end}, and its shape and type make {expected} bytes")]
    Length {
        /// The tensor.
        tensor: String,
        /// Where it begins.
        begin: u64,
        /// Where it ends.
        end: u64,
        /// What it should take.
        expected: u64,
    },
    /// A tensor does not begin where the one before it ends.
    #[error(
        "{tensor:?} begins at {begin}, and what is before it ends at {expected}: tensors overlap or leave a gap"
    )]
    Place {
        /// The tensor.
        tensor: String,
        /// Where it begins.
        begin: u64,
        /// Where the one before ends.
        expected: u64,
    },
    /// The file does not end where its tensors do.
    #[error("its tensors take {expected} bytes and it holds {got}; it is cut short or has bytes to spare")]
    End {
        /// By the header.
        expected: u64,
        /// By the file's length.
        got: u64,
    },
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, such as `layer1.0.conv1.weight`.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its sizes, outermost first; empty for a single number.
    pub shape: Vec<u64>,
    /// Where its values begin, counted from the end of the header.
    pub(super) begin: u64,
    bytes: u64,
}

impl Tensor {
    /// A tensor to be written, of no place yet; none where it is larger than can be counted.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: Vec<u64>) -> Option<Self> {
        let elements = shape
            .iter()
            .try_fold(1_u64, |product, size| product.checked_mul(*size))?;
        Some(Self {
            name: name.into(),
            dtype,
            bytes: elements.checked_mul(dtype.bytes())?,
            shape,
            begin: 0,
        })
    }

    /// The size of its values in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of its elements.
    pub fn elements(&self) -> u64 {
        self.bytes / self.dtype.bytes()
    }
}

/// The header's length by the first bytes of a file of `length` bytes, checked against that.
pub(super) fn length(prefix: [u8; PREFIX_BYTES as usize], length: u64) -> Result<u64, HeaderError> {
    let announced = u64::from_le_bytes(prefix);
    let left = length.saturating_sub(PREFIX_BYTES);
    if announced > left || announced > MAX_HEADER_BYTES {
        return Err(if prefix.starts_with(ZIP_MARK) {
            HeaderError::Zip
        } else if announced > left {
            HeaderError::Cut { announced, left }
        } else {
            HeaderError::TooLong { announced }
        });
    }
    Ok(announced)
}

/// The tensors of a header, in the order of their places, which are end to end in `data_bytes`.
pub(super) fn parse(text: &[u8], data_bytes: u64) -> Result<Vec<Tensor>, HeaderError> {
    // As text: what is skipped in bytes need not be UTF-8, and other readers would refuse it.
    let text = std::str::from_utf8(text).map_err(|_| HeaderError::NotText)?;
    let Entries(entries) = serde_json::from_str(text)?;
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let Entry {
            dtype,
            shape,
            data_offsets: (begin, end),
        } = entry;
        let Some(mut tensor) = Tensor::new(name.as_str(), dtype, shape.clone()) else {
            return Err(HeaderError::Overflow { tensor: name, shape });
        };
        if end.checked_sub(begin) != Some(tensor.bytes) {
            return Err(HeaderError::Length {
                tensor: name,
                begin,
                end,
                expected: tensor.bytes,
            });
        }
        tensor.begin = begin;
        tensors.push(tensor);
    }
    // Empty tensors stand before the one that begins at the same place.
    tensors.sort_by_key(|tensor| (tensor.begin, tensor.bytes));
    let mut expected = 0;
    for tensor in &tensors {
        if tensor.begin != expected {
            return Err(HeaderError::Place {
                tensor: tensor.name.clone(),
                begin: tensor.begin,
                expected,
            });
        }
        // No overflow: `begin` and `bytes` add up to an offset of the header.
        expected += tensor.bytes;
    }
    if expected != data_bytes {
        return Err(HeaderError::End {
            expected,
            got: data_bytes,
        });
    }
    Ok(tensors)
}

/// The beginning of a file in which the values of these tensors follow each other: the length field and the header, padded so
/// that the values begin at a multiple of 8. With the metadata that PyTorch's own writer puts there.
///
/// # Errors
/// The header would be longer than the format allows, or the tensors larger than can be counted.
pub fn header(tensors: &[Tensor]) -> Result<Vec<u8>, HeaderError> {
    header_with(tensors, [])
}

/// As [`header`], with more metadata: keys and texts, as the format has it.
///
/// # Errors
/// As [`header`].
pub fn header_with<'a>(
    tensors: &[Tensor],
    metadata: impl IntoIterator<Item = (&'a str, String)>,
) -> Result<Vec<u8>, HeaderError> {
    let mut map = Map::new();
    let mut about = json!({"format": "pt"});
    for (key, text) in metadata {
        about[key] = text.into();
    }
    map.insert(METADATA.into(), about);
    let mut begin = 0_u64;
    for tensor in tensors {
        let end = begin
            .checked_add(tensor.bytes)
            .ok_or_else(|| HeaderError::Overflow {
                tensor: tensor.name.clone(),
                shape: tensor.shape.clone(),
            })?;
        let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end]});
        map.insert(tensor.name.clone(), entry);
        begin = end;
    }
    let mut text = serde_json::to_vec(&Value::Object(map))?;
    text.resize(text.len().next_multiple_of(PREFIX_BYTES as usize), b' ');
    let announced = text.len() as u64;
    if announced > MAX_HEADER_BYTES {
        return Err(HeaderError::TooLong { announced });
    }
    let mut bytes = announced.to_le_bytes().to_vec();
    bytes.append(&mut text);
    Ok(bytes)
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: Dtype,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The members of the header's object but for the metadata. A map type would let a name that stands twice pass.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut names = HashSet::new();
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format!("{name:?} stands there twice")));
            }
            if name == METADATA {
                map.next_value::<IgnoredAny>()?;
            } else {
                entries.push((name, map.next_value()?));
            }
        }
        Ok(Entries(entries))
    }
}
