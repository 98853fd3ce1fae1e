//! Values of a machine's description: sizes, compute capabilities, faults.

use serde::{Deserialize, Deserializer, de};

use super::Fault;

/// A number of bytes, in files `"40GiB"` or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

/// A compute capability, in files `"8.0"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capability(pub i32, pub i32);

/// A fault's code: the stream or collective never ends.
pub const HANG: i32 = -1;
/// A fault's code: the GPU fell off the bus.
pub const LOST: i32 = -2;

/// Faults by name.
const CODES: [(&str, i32); 8] = [
    ("assert", 710),
    ("ecc", 214),
    ("hang", HANG),
    ("illegal-address", 700),
    ("launch-failure", 719),
    ("lost", LOST),
    ("nvlink", 220),
    ("out-of-memory", 2),
];

impl Bytes {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let units =
            [("", 1.), ("KiB", 1024.), ("MiB", 1048576.), ("GiB", 1073741824.), ("MB", 1e6), ("GB", 1e9)];
        let unit = units.iter().find(|(name, _)| *name == text[digits..].trim());
        match (text[..digits].parse::<f64>(), unit) {
            (Ok(number), Some((_, scale))) => Ok(Self((number * scale) as u64)),
            _ => Err(format!("{text:?} is not a size: write 40GiB or 512MiB")),
        }
    }
}

impl Capability {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        parts
            .map(|(a, b)| Self(a, b))
            .ok_or_else(|| format!("{text:?} is not a compute capability: write 8.0"))
    }
}

impl Fault {
    /// Parses `site:n:code` or `site:n:code:rank`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<_> = text.split(':').collect();
        let (site, at, code, rank) = match parts[..] {
            [site, at, code] => (site, at, code, None),
            [site, at, code, rank] => (site, at, code, Some(rank.to_owned())),
            _ => return Err(format!("{text:?} is not a fault: write site:n:code")),
        };
        let at = at.parse().map_err(|_| format!("{at:?} in {text:?} is not the number of a call"))?;
        Ok(Self { site: site.to_owned(), at, code: code_of(code)?, rank })
    }
}

fn code_of(text: &str) -> Result<i32, String> {
    let named = CODES.iter().find(|(name, _)| *name == text).map(|(_, code)| *code);
    named.or_else(|| text.parse().ok()).ok_or_else(|| {
        let names = CODES.map(|(name, _)| name).join(", ");
        format!("unknown fault {text:?}: write a code or {names}")
    })
}

/// A number or a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    Number(u64),
    Text(String),
}

impl Word {
    fn text(self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text,
        }
    }
}

pub(super) fn code<'de, D: Deserializer<'de>>(input: D) -> Result<i32, D::Error> {
    code_of(&Word::deserialize(input)?.text()).map_err(de::Error::custom)
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        Self::parse(&Word::deserialize(input)?.text()).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Capability {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(input)?).map_err(de::Error::custom)
    }
}
