//! Checks of a network's settings, with the recipe's names.

use super::error::ModelError;

/// Converts to libtorch's size type. Larger values become the maximum, which fails to allocate.
pub(super) fn size(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Returns a size, or the error if it is 0.
pub(super) fn check_positive(value: usize, error: ModelError) -> Result<i64, ModelError> {
    if value == 0 { Err(error) } else { Ok(size(value)) }
}

/// Checks a setting that must be at least 1.
pub(super) fn check_at_least_one(key: &'static str, value: usize) -> Result<i64, ModelError> {
    let reason = "it must be at least 1".to_owned();
    check_positive(value, ModelError::Setting { key, value, reason })
}

/// Checks a setting that must divide another.
pub(super) fn check_divides(
    (key, value): (&'static str, usize),
    (of_key, of): (&'static str, usize),
) -> Result<(), ModelError> {
    check_at_least_one(key, value)?;
    check_at_least_one(of_key, of)?;
    if of.is_multiple_of(value) {
        return Ok(());
    }
    let divisor = (1..=value.min(of)).rev().find(|candidate| of.is_multiple_of(*candidate)).unwrap_or(1);
    let reason = format!("it does not divide `{of_key} = {of}`; use {divisor}, or another divisor");
    Err(ModelError::Setting { key, value, reason })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn messages_name_the_key_and_a_valid_value() {
        let error = check_divides(("model.heads", 5), ("model.width", 48)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`model.heads = 5`: it does not divide `model.width = 48`; use 4, or another divisor"
        );
        let error = check_divides(("model.heads", 60), ("model.width", 48)).unwrap_err();
        assert!(error.to_string().contains("use 48"), "{error}");
        for (heads, width, key) in [(0, 48, "model.heads"), (4, 0, "model.width")] {
            let error = check_divides(("model.heads", heads), ("model.width", width)).unwrap_err();
            assert_eq!(error.to_string(), format!("`{key} = 0`: it must be at least 1"));
        }
        assert!(check_divides(("model.heads", 6), ("model.width", 48)).is_ok());
        assert_eq!(check_at_least_one("model.depth", 3).unwrap(), 3);
        assert_eq!(size(usize::MAX), i64::MAX);
    }
}
