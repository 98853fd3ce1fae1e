//! The outputs of a program that a task uses.

use std::collections::BTreeMap;

use super::binding::lengths;
use crate::models::Port;
use crate::tasks::program_error::Unfit;
use crate::tensors::is_floating;

/// The main output and the auxiliary ones with their weights, by number.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Chosen {
    pub(super) main: usize,
    pub(super) auxiliary: Vec<(usize, f64)>,
}

impl Chosen {
    /// Returns the numbers of all outputs that have a loss.
    pub(super) fn all(&self) -> impl Iterator<Item = usize> + '_ {
        std::iter::once(self.main).chain(self.auxiliary.iter().map(|(at, _)| *at))
    }
}

fn names(outputs: &[Port]) -> Vec<String> {
    outputs.iter().map(|port| port.name.clone()).collect()
}

fn position(outputs: &[Port], name: &str) -> Option<usize> {
    outputs.iter().position(|port| port.name == name)
}

/// Returns the number of the output of this name, which `key` of a recipe states.
pub(in crate::tasks) fn named(outputs: &[Port], name: &str, key: &str) -> Result<usize, Unfit> {
    let missing = || Unfit::NoPort { key: key.to_owned(), name: name.to_owned(), known: names(outputs) };
    position(outputs, name).ok_or_else(missing)
}

/// Chooses the main output: `stated` (`model.output`), else the only one, else the first of the `usual` names.
pub(super) fn choose(
    outputs: &[Port],
    stated: Option<&str>,
    usual: &[&str],
    auxiliary: &BTreeMap<String, f64>,
) -> Result<Chosen, Unfit> {
    let weighted = |(name, weight): (&String, &f64)| Ok((named(outputs, name, "model.auxiliary")?, *weight));
    let auxiliary: Vec<_> = auxiliary.iter().map(weighted).collect::<Result<_, Unfit>>()?;
    let main = match (stated, outputs) {
        (_, []) => return Err(Unfit::NoOutputs),
        (Some(name), _) => named(outputs, name, "model.output")?,
        (None, [_]) => 0,
        (None, _) => {
            let found = usual.iter().find_map(|name| position(outputs, name));
            found.ok_or_else(|| Unfit::NoMain(names(outputs)))?
        }
    };
    Ok(Chosen { main, auxiliary })
}

/// Checks that an output is of floating-point numbers and of a shape that `fits`; `expected` says which.
pub(in crate::tasks) fn check(
    output: &Port,
    expected: &str,
    fits: &dyn Fn(&[Option<i64>]) -> bool,
) -> Result<(), Unfit> {
    match is_floating(output.kind) && fits(&output.shape) {
        true => Ok(()),
        false => Err(unfit(output, expected)),
    }
}

/// Returns the error for an output that is not as `expected` says.
pub(in crate::tasks) fn unfit(output: &Port, expected: &str) -> Unfit {
    let kind = if is_floating(output.kind) {
        String::new()
    } else {
        format!(" of {:?}", output.kind).to_lowercase()
    };
    let shape = match output.shape.split_first() {
        Some((None, [])) => "N".to_owned(),
        Some((None, rest)) => format!("N x {}", lengths(rest)),
        Some(_) => lengths(&output.shape),
        None => "of a scalar".to_owned(),
    };
    Unfit::Output {
        output: output.name.clone(),
        shape: format!("{shape}{kind}"),
        expected: expected.to_owned(),
    }
}
