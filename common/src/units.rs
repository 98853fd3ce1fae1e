//! Sizes in bytes and lengths of training, as people write them. GiB is 1024^3 bytes and GB is 1000^3.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Error for a text that is not a size or span.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum UnitError {
    #[error(
        "{text:?} is not a size; write for example \"14 GiB\", \"512 MiB\", \"1 GB\" or a number of bytes"
    )]
    ByteSize { text: String },
    #[error("{text:?} is too many bytes")]
    TooLarge { text: String },
    #[error(
        "{text:?} is not a length of training; write for example \"5 epochs\", \"0.5 epochs\" or \"100 steps\""
    )]
    Span { text: String },
}

/// A number of bytes. Reads `14 GiB`, `512MiB`, `1 GB` and `123`; shows two decimals of a binary unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

const BINARY: [(&str, u64); 5] =
    [("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
const DECIMAL: [(&str, u64); 6] = [
    ("PB", 1_000_000_000_000_000),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

impl ByteSize {
    /// Writes the exact size, which reads back as equal: in the largest binary unit that divides it.
    pub fn exact(self) -> String {
        match BINARY.iter().find(|(_, size)| self.0 > 0 && self.0.is_multiple_of(*size)) {
            Some((unit, size)) => format!("{} {unit}", self.0 / size),
            None => self.0.to_string(),
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match BINARY.iter().find(|(_, size)| self.0 >= *size) {
            Some((unit, size)) => write!(f, "{:.2} {unit}", self.0 as f64 / *size as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError::ByteSize { text: text.into() };
        let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
        let size = match unit {
            "" => 1,
            _ => BINARY
                .iter()
                .chain(&DECIMAL)
                .find(|(name, _)| name.eq_ignore_ascii_case(unit))
                .map(|(_, size)| *size)
                .ok_or_else(wrong)?,
        };
        let too_large = || UnitError::TooLarge { text: text.into() };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(size).map(Self).ok_or_else(too_large);
        }
        if size == 1 && number.contains('.') {
            return Err(wrong());
        }
        let bytes = (number.parse::<f64>().map_err(|_| wrong())? * size as f64).round();
        // 2^64 as f64; a smaller value converts exactly or rounds down into range.
        if bytes >= 18_446_744_073_709_551_616.0 { Err(too_large()) } else { Ok(Self(bytes as u64)) }
    }
}

/// Writes the exact size, such as `25 MiB`.
impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.exact())
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a size such as \"14 GiB\" or a number of bytes")]
        enum Form {
            Bytes(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Bytes(bytes) => Ok(Self(bytes)),
            Form::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

/// A length of training: `5 epochs`, `1 epoch`, `0.5 epochs` or `100 steps`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Span {
    Steps(u64),
    /// Passes over the training set; finite and not negative if it was read from text.
    Epochs(f64),
}

impl Span {
    /// Returns the span in optimizer steps, rounded to the nearest; at least 1 unless the span is zero.
    pub fn steps(&self, steps_per_epoch: u64) -> u64 {
        match *self {
            Self::Steps(steps) => steps,
            Self::Epochs(epochs) if epochs > 0.0 => ((epochs * steps_per_epoch as f64).round() as u64).max(1),
            Self::Epochs(_) => 0,
        }
    }

    pub fn is_zero(&self) -> bool {
        match *self {
            Self::Steps(steps) => steps == 0,
            Self::Epochs(epochs) => epochs <= 0.0,
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Steps(1) => f.write_str("1 step"),
            Self::Steps(steps) => write!(f, "{steps} steps"),
            Self::Epochs(1.0) => f.write_str("1 epoch"),
            Self::Epochs(epochs) => write!(f, "{epochs} epochs"),
        }
    }
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError::Span { text: text.into() };
        let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
        match unit {
            "step" | "steps" => number.parse().map(Self::Steps).map_err(|_| wrong()),
            "epoch" | "epochs" => match number.parse::<f64>() {
                Ok(epochs) if epochs.is_finite() => Ok(Self::Epochs(epochs)),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }
}

crate::as_text!(Span);

/// Splits `1.5 GiB` into an unsigned decimal number and a unit, which may be empty; `None` without a number.
fn number_and_unit(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    number.starts_with(|c: char| c.is_ascii_digit()).then_some((number, unit.trim()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_read() {
        for (text, bytes) in [
            ("14 GiB", 14 << 30),
            ("512MiB", 512 << 20),
            ("1 GB", 1_000_000_000),
            ("1gb", 1_000_000_000),
            ("123", 123),
            ("123 B", 123),
            (" 0.5 KiB ", 512),
            ("1.5 TiB", 3 << 39),
            ("0", 0),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse::<ByteSize>().unwrap(), ByteSize(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_errors() {
        for text in ["", "GiB", "-1", "1.5", "1.5 B", "1 G", "1 GiB/s", "1..5 GiB", "1e9", "nan", "1 2", "é"]
        {
            assert!(matches!(text.parse::<ByteSize>(), Err(UnitError::ByteSize { .. })), "{text}");
        }
        for text in ["18446744073709551616 B", "20 EiB", "16777216 TiB", "99999999999 PiB", "1e30 GiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_show() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (13_249_974_108, "12.34 GiB"),
            (14 << 30, "14.00 GiB"),
            (u64::MAX, "16384.00 PiB"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }

    #[test]
    fn exact_sizes_lose_nothing() {
        for (bytes, text) in
            [(0, "0"), (1000, "1000"), (1024, "1 KiB"), (25 << 20, "25 MiB"), ((4 << 30) + 1, "4294967297")]
        {
            assert_eq!(ByteSize(bytes).exact(), text);
        }
    }

    #[test]
    fn sizes_in_json_are_text_or_number() {
        for json in ["\"1 KiB\"", "1024", "\"1024\""] {
            assert_eq!(serde_json::from_str::<ByteSize>(json).unwrap(), ByteSize(1024), "{json}");
        }
        for json in ["-1", "1.5", "true", "\"x\"", "null"] {
            assert!(serde_json::from_str::<ByteSize>(json).is_err(), "{json}");
        }
        assert_eq!(serde_json::to_string(&ByteSize(7)).unwrap(), "\"7\"");
    }

    #[test]
    fn spans_read_and_show() {
        for (text, span, shown) in [
            ("5 epochs", Span::Epochs(5.0), "5 epochs"),
            ("1 epoch", Span::Epochs(1.0), "1 epoch"),
            ("0.5epochs", Span::Epochs(0.5), "0.5 epochs"),
            ("100 steps", Span::Steps(100), "100 steps"),
            ("1 step", Span::Steps(1), "1 step"),
            ("0 steps", Span::Steps(0), "0 steps"),
        ] {
            assert_eq!(text.parse::<Span>().unwrap(), span, "{text}");
            assert_eq!(span.to_string(), shown);
        }
        for text in
            ["", "5", "epochs", "-1 epochs", "1.5 steps", "1 Epoch s", "nan epochs", "10 min", "1.2.3 epochs"]
        {
            let error = text.parse::<Span>().unwrap_err();
            assert!(error.to_string().contains("epochs"), "{error}");
        }
        let many = format!("{} epochs", "9".repeat(400));
        assert!(many.parse::<Span>().is_err(), "an infinite span");
    }

    #[test]
    fn spans_in_steps() {
        assert_eq!(Span::Steps(7).steps(100), 7);
        assert_eq!(Span::Epochs(1.0).steps(100), 100);
        assert_eq!(Span::Epochs(0.5).steps(5), 3);
        assert_eq!(Span::Epochs(0.001).steps(100), 1, "a span that is not zero has a step");
        assert_eq!(Span::Epochs(0.0).steps(100), 0);
        assert_eq!(Span::Epochs(1e300).steps(u64::MAX), u64::MAX);
        assert!(Span::Steps(0).is_zero() && Span::Epochs(0.0).is_zero() && !Span::Epochs(0.1).is_zero());
    }

    proptest! {
        #[test]
        fn any_text_reads_or_is_an_error(text: String) {
            let _ = text.parse::<ByteSize>();
            let _ = text.parse::<Span>();
        }

        #[test]
        fn spans_round_trip(steps: u64, epochs in 0.0f64..1e6) {
            for span in [Span::Steps(steps), Span::Epochs(epochs)] {
                prop_assert_eq!(span.to_string().parse::<Span>().unwrap(), span);
                let json = serde_json::to_string(&span).unwrap();
                prop_assert_eq!(serde_json::from_str::<Span>(&json).unwrap(), span);
            }
        }

        #[test]
        fn byte_counts_round_trip(bytes: u64) {
            prop_assert_eq!(bytes.to_string().parse::<ByteSize>().unwrap(), ByteSize(bytes));
            for size in [ByteSize(bytes), ByteSize(bytes & !0x3fff_ffff), ByteSize((bytes % 1000) << 20)] {
                prop_assert_eq!(size.exact().parse::<ByteSize>().unwrap(), size);
            }
        }
    }
}
