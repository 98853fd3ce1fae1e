//! The flags of `dtrain diff`.

use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// A run directory.
    #[arg(value_name = "RUN")]
    pub(crate) a: PathBuf,

    /// The run directory to compare with it.
    #[arg(value_name = "RUN")]
    pub(crate) b: PathBuf,

    /// Largest relative difference of numbers that count as equal.
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = tolerance)]
    pub(crate) tolerance: f64,

    /// Print one line of JSON instead of the tables.
    #[arg(long)]
    pub(crate) json: bool,
}

fn tolerance(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..1.0).contains(number));
    number.ok_or_else(|| "give a number from 0 to below 1, such as 1e-6".to_owned())
}

#[cfg(test)]
mod tests {
    use super::tolerance;

    #[test]
    fn a_tolerance_is_a_part_of_one() {
        assert_eq!((tolerance("1e-6"), tolerance("0")), (Ok(1e-6), Ok(0.0)));
        assert!(["1", "-1e-6", "NaN", "x"].iter().all(|text| tolerance(text).is_err()));
    }
}
