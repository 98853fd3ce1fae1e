//! Which dimension of a value is that of the samples, by the lengths that an export states.

use std::collections::HashSet;

use super::schema::Size;

/// The place of the samples in a value's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Axis {
    /// The length of this dimension is the number of samples.
    Samples(usize),
    /// The length of this dimension is a multiple of it.
    Rows(usize),
    /// No length depends on the number of samples.
    Shared,
    /// Anything else.
    Unknown,
}

/// The symbols of a program's lengths.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    /// Those of the number of samples, the first lengths of the inputs; none if that number is fixed.
    samples: HashSet<String>,
    /// Those of all lengths of the inputs. Others are found in a run, and may depend on the samples.
    inputs: HashSet<String>,
}

impl Symbols {
    /// Adds the symbols of an input with these lengths.
    pub(super) fn add(&mut self, input: &[Size]) {
        let symbol = |length: &Size| match length {
            Size::AsExpr(length) => length.symbol().map(str::to_owned),
            Size::AsInt(_) => None,
        };
        self.samples.extend(input.first().and_then(symbol));
        self.inputs.extend(input.iter().filter_map(symbol));
    }

    /// Returns the axis of a value with these lengths.
    pub(super) fn axis(&self, lengths: &[Size]) -> Axis {
        if self.samples.is_empty() {
            return Axis::Unknown;
        }
        let mut found = Axis::Shared;
        for (dim, length) in lengths.iter().enumerate() {
            let Size::AsExpr(length) = length else { continue };
            let is_known = length.is_product() && length.symbols().all(|symbol| self.inputs.contains(symbol));
            let axis = match length.symbols().filter(|symbol| self.samples.contains(*symbol)).count() {
                _ if !is_known => Axis::Unknown,
                0 => continue,
                1 if length.symbol().is_some() => Axis::Samples(dim),
                1 => Axis::Rows(dim),
                _ => Axis::Unknown,
            };
            found = if found == Axis::Shared { axis } else { Axis::Unknown };
        }
        found
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn lengths(json: &str) -> Vec<Size> {
        serde_json::from_str(json).unwrap()
    }

    fn axis(json: &str) -> Axis {
        let mut symbols = Symbols::default();
        symbols.add(&lengths(r#"[{"as_expr": {"expr_str": "s77"}}, {"as_expr": {"expr_str": "s3"}}]"#));
        symbols.axis(&lengths(json))
    }

    #[test]
    fn the_samples_are_where_the_symbol_is() {
        let of = |text: &str| format!(r#"{{"as_expr": {{"expr_str": "{text}"}}}}"#);
        let (int, symbol) = (r#"{"as_int": 7}"#, of("s77"));
        let written = of("Symbol('s77', positive=True, integer=True)");
        for (json, expected) in [
            (format!("[{symbol}, {int}]"), Axis::Samples(0)),
            (format!("[{written}, {int}]"), Axis::Samples(0)),
            (format!("[{int}, {symbol}, {int}]"), Axis::Samples(1)),
            (format!("[{int}, {}]", of("s3")), Axis::Shared),
            (format!("[{}, {int}]", of("u0")), Axis::Unknown),
            (format!("[{symbol}, {}]", of("u0")), Axis::Unknown),
            (format!("[{int}]"), Axis::Shared),
            (format!("[{}, {int}]", of("12*s77")), Axis::Rows(0)),
            (
                format!("[{}]", of("Mul(Integer(12), Symbol('s77', positive=True, integer=True))")),
                Axis::Rows(0),
            ),
            (format!("[{}]", of("s3*s77")), Axis::Rows(0)),
            (format!("[{}]", of("s77 + 1")), Axis::Unknown),
            (format!("[{}]", of("Add(Symbol('s77', integer=True), Integer(1))")), Axis::Unknown),
            (format!("[{}]", of("s77**2")), Axis::Unknown),
            (format!("[{}]", of("s77*s77")), Axis::Unknown),
            (format!("[{}]", of("s77//2")), Axis::Unknown),
            (format!("[{}]", of("Max(1, s77)")), Axis::Unknown),
            (format!("[{symbol}, {symbol}]"), Axis::Unknown),
        ] {
            assert_eq!(axis(&json), expected, "{json}");
        }
        assert_eq!(Symbols::default().axis(&lengths(&format!("[{symbol}]"))), Axis::Unknown);
    }
}
