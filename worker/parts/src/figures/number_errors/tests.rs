#![allow(clippy::unwrap_used)]
use super::*;
use crate::parity::OfFigures;

#[test]
fn figures_are_those_of_scikit_learn_in_every_cut() {
    let known = OfFigures::read();
    let vectors = |figure: &dyn Figure, expected: &[&str]| {
        known.compare(figure, ["numbers.output", "numbers.target"], 3, expected)
    };
    // By number too.
    vectors(&Mae::default(), &["mae", "maes"]);
    vectors(&Rmse::default(), &["rmse"]);
    vectors(&R2::default(), &["r2"]);
    let maps = |figure: &dyn Figure, expected: &[&str]| {
        known.compare(figure, ["maps.output", "maps.holes"], 1, expected)
    };
    maps(&Mae { interval: Some(true), ..Mae::default() }, &["maps.mae", "maps.mae.interval"]);
    let bands = Some(vec![-0.5, 0.25, 1.0]);
    maps(&Rmse { bands, ..Rmse::default() }, &["maps.rmse", "maps.rmse.0", "maps.rmse.1", "maps.rmse.2"]);
    maps(&R2::default(), &["maps.r2"]);
    for power in 1..=3 {
        maps(&Delta { power, ..Delta::default() }, &[&format!("delta{power}")]);
    }
}

#[test]
fn bands_have_their_lower_edge_and_may_be_empty() {
    let figure = Mae { bands: Some(vec![0.0, 1.0, 5.0]), ..Mae::default() };
    let values =
        [[0.5f64, 1.0, -1.0, 7.0], [0.0, 1.0, -3.0, f64::NAN]].map(|of| Tensor::from_slice(&of).view([4, 1]));
    let sums = figure
        .add(&[&values[0], &values[1]], &Tensor::ones([4], (Kind::Float, tch::Device::Cpu)), 1)
        .unwrap();
    let sums = Vec::<f64>::try_from(sums).unwrap();
    assert!((figure.figure(&sums) - 2.5 / 3.0).abs() < 1e-12);
    let bands = figure.further(&sums);
    assert!((bands[0] - 0.5).abs() < 1e-12 && bands[1] == 0.0 && bands[2].is_nan(), "{bands:?}");
}

#[test]
fn an_interval_is_of_one_number() {
    let check = |numbers| {
        Mae { interval: Some(true), ..Mae::default() }
            .check(&[vec![None, Some(numbers)], vec![None, Some(numbers)]], None)
    };
    assert!(check(1).is_ok() && check(2).unwrap_err().contains("remove interval"));
}
