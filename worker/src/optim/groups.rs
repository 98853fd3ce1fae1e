//! The assignment of parameters to optimizer groups, by globs on their names.
//!
//! A glob matches a parameter's whole dotted name. `*` matches any text, dots included (`backbone.*` matches
//! `backbone.layer1.0.conv1.weight`), `?` one character, `[ab]` one of several, `{x,y}` one of two.

use std::collections::BTreeSet;

use dtrain_common::text::counted;
use dtrain_recipe::{Decay, OptimGroup};
use globset::Glob;
use thiserror::Error;

use super::GroupOptions;

#[cfg(test)]
mod tests;

const SUGGESTIONS: usize = 3;

/// The properties of a parameter that determine its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ParameterInfo<'a> {
    pub(crate) name: &'a str,
    pub(crate) dims: usize,
}

/// Mistakes in globs or rules. The caller adds the recipe's key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GroupError {
    #[error("{glob:?} is not a pattern for parameter names: {reason}; correct it")]
    Glob { glob: String, reason: String },
    #[error(
        "muon = true, but {name:?} has {}, and Muon needs a matrix; remove muon, or match other parameters",
        counted(*.dims, "dimension")
    )]
    NoMatrix { name: String, dims: usize },
    #[error(
        "the group of {} has betas or eps of AdamW, but Muon updates all its parameters; remove them, or set muon = false",
        quoted(.globs)
    )]
    NoAdamw { globs: Vec<String> },
    #[error("{glob:?} matches no parameter{}", suggestion(.nearest))]
    NoMatch { glob: String, nearest: Vec<String> },
    #[error("optimizer group {rule} has no pattern; give it one, or remove the group")]
    Empty { rule: usize },
    #[error(
        "optimizer group {rule} ({}) has no parameter left: group {earlier} comes before it and takes {example} first; move the \
         narrower group up, or remove it",
        quoted(.globs)
    )]
    Shadowed { rule: usize, globs: Vec<String>, earlier: usize, example: String },
}

/// The settings of parameters without a rule.
pub(crate) struct Inherited<'a> {
    pub(crate) weight_decay: f64,
    pub(crate) decay_on: Decay,
    /// By parameter: the factor of the learning rate of its layer.
    pub(crate) layer_factors: &'a [f64],
    /// With Muon; the decay above is then for matrices.
    pub(crate) muon: Option<BesideMuon<'a>>,
}

/// Which parameters Muon updates, and the settings of AdamW for the others.
pub(crate) struct BesideMuon<'a> {
    /// By parameter.
    pub(crate) is_matrix: &'a [bool],
    /// The learning rate of AdamW divided by that of Muon.
    pub(crate) lr_factor: f64,
    pub(crate) weight_decay: f64,
}

/// Returns the group's number of every parameter that is not `frozen`, and the options of all groups.
/// `rule_of` is the rule of each parameter by [`match_rules`]. Without a rule, the factor is that of the layer and the decay
/// that of the recipe; [`Decay::Weights`] spares parameters of fewer than 2 dimensions, norms and biases (Goyal
/// et al. 2017, arXiv 1706.02677, section 5.1). A rule's factor multiplies that of the layer, and its decay applies to all its
/// parameters. Equal settings share a group.
pub(crate) fn assign_groups(
    parameters: &[ParameterInfo<'_>],
    rule_of: &[Option<&OptimGroup>],
    frozen: &[bool],
    Inherited { weight_decay, decay_on, layer_factors, muon }: &Inherited<'_>,
) -> (Vec<Option<usize>>, Vec<GroupOptions>) {
    let mut groups: Vec<GroupOptions> = Vec::new();
    let mut number = |(row, frozen): (usize, &bool)| {
        let (parameter, rule) = (&parameters[row], rule_of[row]);
        let is_matrix = muon.as_ref().is_some_and(|muon| muon.is_matrix[row]);
        let (factor, decay) = match muon {
            Some(muon) if !is_matrix => (muon.lr_factor, muon.weight_decay),
            _ => (1.0, *weight_decay),
        };
        let inherited = match decay_on {
            Decay::Weights if parameter.dims < 2 => 0.0,
            Decay::All | Decay::Weights => decay,
        };
        let options = GroupOptions {
            lr_factor: rule.map_or(1.0, |rule| rule.lr_factor) * layer_factors[row] * factor,
            weight_decay: rule.and_then(|rule| rule.weight_decay).unwrap_or(inherited),
            betas: rule.and_then(|rule| rule.betas).filter(|_| !is_matrix),
            eps: rule.and_then(|rule| rule.eps).filter(|_| !is_matrix),
            is_matrix,
            clip_adaptive: rule.and_then(|rule| rule.clip_adaptive).unwrap_or(true),
        };
        (!frozen).then(|| {
            let known = groups.iter().position(|group| *group == options);
            known.unwrap_or_else(|| {
                groups.push(options);
                groups.len() - 1
            })
        })
    };
    let group_of = frozen.iter().enumerate().map(&mut number).collect();
    (group_of, groups)
}

/// Returns for each of `names` whether any of `patterns` matches it, to freeze or unfreeze it.
pub(crate) fn match_names<N: AsRef<str>, P: AsRef<str>>(
    names: &[N],
    patterns: &[P],
) -> Result<Vec<bool>, GroupError> {
    let mut matched = vec![false; names.len()];
    for pattern in patterns {
        let pattern = pattern.as_ref();
        let glob = Glob::new(pattern).map_err(|error| GroupError::Glob {
            glob: pattern.to_owned(),
            reason: error.kind().to_string(),
        })?;
        let matcher = glob.compile_matcher();
        let mut any = false;
        for (name, matched) in names.iter().zip(&mut matched) {
            let matches = matcher.is_match(name.as_ref());
            *matched |= matches;
            any |= matches;
        }
        if !any {
            return Err(GroupError::NoMatch { glob: pattern.to_owned(), nearest: nearest(pattern, names) });
        }
    }
    Ok(matched)
}

/// Returns for each parameter the first rule that matches it.
pub(crate) fn match_rules(
    parameters: &[ParameterInfo<'_>],
    rules: &[OptimGroup],
) -> Result<Vec<Option<usize>>, GroupError> {
    let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name).collect();
    let mut owners: Vec<Option<usize>> = vec![None; names.len()];
    for (number, rule) in rules.iter().enumerate() {
        if rule.patterns.is_empty() {
            return Err(GroupError::Empty { rule: number + 1 });
        }
        let matched = match_names(&names, &rule.patterns)?;
        let mut taken = None;
        let mut any = false;
        for (index, _) in matched.iter().enumerate().filter(|(_, matched)| **matched) {
            match owners[index] {
                Some(earlier) => taken = taken.or(Some((earlier, index))),
                None => {
                    owners[index] = Some(number);
                    any = true;
                }
            }
        }
        if let (false, Some((earlier, index))) = (any, taken) {
            return Err(GroupError::Shadowed {
                rule: number + 1,
                globs: rule.patterns.clone(),
                earlier: earlier + 1,
                example: names[index].to_owned(),
            });
        }
    }
    Ok(owners)
}

/// Returns the names, and prefixes as globs (`layer1.*`), that are most similar to `pattern`.
fn nearest<N: AsRef<str>>(pattern: &str, names: &[N]) -> Vec<String> {
    let mut candidates = BTreeSet::new();
    for name in names.iter().map(AsRef::as_ref) {
        candidates.insert(name.to_owned());
        let ends = name.match_indices('.').map(|(end, _)| end);
        candidates.extend(ends.map(|end| format!("{}.*", &name[..end])));
    }
    let likeness = |name: String| (strsim::normalized_damerau_levenshtein(pattern, &name), name);
    let mut ranked: Vec<_> = candidates.into_iter().map(likeness).collect();
    // The sort is stable, so names of equal similarity stay in alphabetical order.
    ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    ranked.into_iter().take(SUGGESTIONS).map(|(_, name)| name).collect()
}

fn suggestion(nearest: &[String]) -> String {
    if nearest.is_empty() {
        return ": the model has no parameters".to_owned();
    }
    format!("; the nearest are {}. A `*` also matches dots", quoted(nearest))
}

fn quoted(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    words.join(", ")
}
