//! Numbers as people read them.

/// Writes a number with four significant digits, such as `0.7312`, `12.35`, `1,234` and `1.00e-5`; a dash for NaN.
pub(super) fn short(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let size = value.abs();
    if value == value.trunc() && size < 1e15 {
        let sign = if value < 0.0 { "-" } else { "" };
        return sign.to_owned() + &dtrain_common::text::grouped(size as u64);
    }
    if !(1e-3..1e6).contains(&size) {
        return format!("{value:.2e}");
    }
    let before = if size < 1.0 { 0 } else { size.log10().floor() as usize + 1 };
    format!("{value:.*}", 4usize.saturating_sub(before))
}

/// Writes a part of a whole as a percentage: `0.4%`, `12%`.
pub(super) fn percent(part: f64) -> String {
    let percent = 100.0 * part;
    if !percent.is_finite() {
        return "–".to_owned();
    }
    if percent > 0.0 && percent < 9.95 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let numbers = [0.731_24, 12.345, 123.456, 1234.56, 1234.0, 1e-5, 2.5e7 + 0.5, -0.25, 0.0, f64::NAN];
        let texts = ["0.7312", "12.35", "123.5", "1235", "1,234", "1.00e-5", "2.50e7", "-0.2500", "0", "–"];
        assert_eq!(numbers.map(short), texts);
        assert_eq!([0.004, 0.5, 0.12345, f64::NAN].map(percent), ["0.4%", "50%", "12%", "–"]);
    }
}
