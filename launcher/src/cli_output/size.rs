//! `--log-max-size`.

use dtrain_common::units::ByteSize;
use std::fmt;
use std::str::FromStr;

/// Smaller logs than this would hold no more than a few lines.
const SMALLEST: u64 = 4096;

/// The size that a log file may reach; `None` for any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogSize(pub(crate) Option<u64>);

impl Default for LogSize {
    fn default() -> Self {
        Self(Some(1 << 30))
    }
}

impl FromStr for LogSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<ByteSize>().map_err(|error| error.to_string())?.0 {
            0 => Ok(Self(None)),
            size if size < SMALLEST => Err("give at least 4 KiB, or 0 for no bound".into()),
            size => Ok(Self(Some(size))),
        }
    }
}

impl fmt::Display for LogSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&ByteSize(self.0.unwrap_or(0)).exact())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_have_units_and_zero_is_no_bound() {
        let parse = |text: &str| text.parse::<LogSize>();
        assert_eq!(parse("0").unwrap(), LogSize(None));
        assert_eq!(parse("1 GiB").unwrap(), LogSize::default());
        assert_eq!(parse("4096").unwrap(), LogSize(Some(4096)));
        for wrong in ["", "-1", "4095", "1 B", "much", "1 GiBs"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn sizes_come_back_from_their_text(size in SMALLEST..) {
            let size = LogSize(Some(size));
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }
    }
}
