//! Numbers on the command line.

use std::str::FromStr;

/// Parses digits only; the standard library also accepts a plus sign.
pub(super) fn whole<T: FromStr>(text: &str) -> Option<T> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}
