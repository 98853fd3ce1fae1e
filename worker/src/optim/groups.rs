//! Which parameters belong to which optimizer group, by globs on their names.
//!
//! A glob is matched against a parameter's whole dotted name. `*` matches any text, dots included (`backbone.*` matches
//! `backbone.layer1.0.conv1.weight`), `?` one character, `[ab]` one of several and `{x,y}` either of two.

use std::collections::BTreeSet;

use globset::{Glob, GlobMatcher};
use thiserror::Error;

#[cfg(test)]
mod tests;

/// How many names an error suggests.
const SUGGESTIONS: usize = 3;

/// What must be known of a parameter to assign it to a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParameterInfo<'a> {
    /// Its dotted name, such as `layer1.0.conv1.weight`.
    pub name: &'a str,
    /// The number of its dimensions.
    pub dims: usize,
}

/// One `[[optim.group]]` of a recipe.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupRule {
    /// Globs; the rule is for the parameters that any of them matches.
    pub patterns: Vec<String>,
    /// The group's learning rate as a multiple of the schedule's.
    pub lr_factor: f64,
    /// The group's weight decay where it is not the optimizer's. A decay that is stated here is meant for every parameter
    /// that the rule matches, norms and biases included, also under [`DecayOn::Weights`].
    pub weight_decay: Option<f64>,
}

/// Which parameters decay where no rule states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DecayOn {
    /// All of them, as torch's optimizers.
    #[default]
    All,
    /// Those of at least 2 dimensions: matrices and convolutions, but no norm and no bias (Goyal et al. 2017, arXiv
    /// 1706.02677, section 5.1; He et al. 2019, arXiv 1812.01187, section 3.1).
    Weights,
}

/// Parameters that are updated with the same settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// The learning rate as a multiple of the schedule's.
    pub lr_factor: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// Indices into the parameters, rising; at least one.
    pub members: Vec<usize>,
}

/// Globs or rules that are certainly a mistake. None of them names the recipe's key: the caller knows it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GroupError {
    /// A glob cannot be read.
    #[error("{glob:?} is not a pattern for parameter names: {reason}")]
    Glob {
        /// The glob.
        glob: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A glob matches nothing.
    #[error("{glob:?} matches no parameter{}", suggestion(.nearest))]
    NoMatch {
        /// The glob.
        glob: String,
        /// The nearest parameter names, and prefixes of them as globs, nearest first; none where there is no parameter.
        nearest: Vec<String>,
    },
    /// A rule has no glob.
    #[error("optimizer group {rule} has no pattern; give it one, or remove the group")]
    Empty {
        /// The rule, counted from 1.
        rule: usize,
    },
    /// All that a rule matches belongs to earlier rules.
    #[error(
        "optimizer group {rule} ({}) has no parameter left: group {earlier} comes before it and takes {example} first. Move the \
         narrower group up, or remove it",
        quoted(.globs)
    )]
    Shadowed {
        /// The rule, counted from 1.
        rule: usize,
        /// Its globs.
        globs: Vec<String>,
        /// The earlier rule that takes `example`, counted from 1.
        earlier: usize,
        /// A parameter that it matches.
        example: String,
    },
}

/// Assigns every parameter to exactly one group. The first rule that matches a parameter has it; what no rule matches has
/// the factor 1 and the decay `weight_decay`. Rules of equal settings share a group, and groups without a member do not
/// exist. The groups come in the order of their first members: the same on every rank.
///
/// `parameters` are all of the model, also those that are frozen for now, so that a rule may name them.
///
/// # Errors
/// Where a glob or a rule is without effect; see [`GroupError`].
pub fn assign(
    parameters: &[ParameterInfo<'_>],
    rules: &[GroupRule],
    weight_decay: f64,
    decay_on: DecayOn,
) -> Result<Vec<Group>, GroupError> {
    let owners = owners(parameters, rules)?;
    let rule_of: Vec<Option<&GroupRule>> = owners
        .into_iter()
        .map(|owner| owner.map(|owner| &rules[owner]))
        .collect();
    Ok(group(parameters, &rule_of, weight_decay, decay_on))
}

/// As [`assign`], where the rule of every parameter is known, as from [`owners`].
pub fn group(
    parameters: &[ParameterInfo<'_>],
    rule_of: &[Option<&GroupRule>],
    weight_decay: f64,
    decay_on: DecayOn,
) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, (parameter, rule)) in parameters.iter().zip(rule_of).enumerate() {
        let inherited = match decay_on {
            DecayOn::Weights if parameter.dims < 2 => 0.0,
            DecayOn::All | DecayOn::Weights => weight_decay,
        };
        let lr_factor = rule.map_or(1.0, |rule| rule.lr_factor);
        let weight_decay = rule.and_then(|rule| rule.weight_decay).unwrap_or(inherited);
        let same = |group: &&mut Group| group.lr_factor == lr_factor && group.weight_decay == weight_decay;
        match groups.iter_mut().find(same) {
            Some(group) => group.members.push(index),
            None => groups.push(Group {
                lr_factor,
                weight_decay,
                members: vec![index],
            }),
        }
    }
    groups
}

/// For each of `names`, whether any of `patterns` matches it: what a list of globs freezes or unfreezes.
///
/// # Errors
/// Where a pattern is no glob or matches none of the names.
pub fn matching<N: AsRef<str>, P: AsRef<str>>(names: &[N], patterns: &[P]) -> Result<Vec<bool>, GroupError> {
    let mut matched = vec![false; names.len()];
    for pattern in patterns {
        let pattern = pattern.as_ref();
        let matcher = compile(pattern)?;
        let mut any = false;
        for (name, matched) in names.iter().zip(&mut matched) {
            let matches = matcher.is_match(name.as_ref());
            *matched |= matches;
            any |= matches;
        }
        if !any {
            return Err(GroupError::NoMatch {
                glob: pattern.to_owned(),
                nearest: nearest(pattern, names),
            });
        }
    }
    Ok(matched)
}

/// For each parameter the first rule that matches it.
///
/// # Errors
/// As [`assign`].
pub fn owners(
    parameters: &[ParameterInfo<'_>],
    rules: &[GroupRule],
) -> Result<Vec<Option<usize>>, GroupError> {
    let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name).collect();
    let mut owners: Vec<Option<usize>> = vec![None; names.len()];
    for (number, rule) in rules.iter().enumerate() {
        if rule.patterns.is_empty() {
            return Err(GroupError::Empty { rule: number + 1 });
        }
        let matched = matching(&names, &rule.patterns)?;
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

fn compile(pattern: &str) -> Result<GlobMatcher, GroupError> {
    Glob::new(pattern)
        .map(|glob| glob.compile_matcher())
        .map_err(|error| GroupError::Glob {
            glob: pattern.to_owned(),
            reason: error.kind().to_string(),
        })
}

/// The names, and prefixes of names as globs (`layer1.*`), that look most like `pattern`.
fn nearest<N: AsRef<str>>(pattern: &str, names: &[N]) -> Vec<String> {
    let mut candidates = BTreeSet::new();
    for name in names.iter().map(AsRef::as_ref) {
        candidates.insert(name.to_owned());
        let ends = name.match_indices('.').map(|(end, _)| end);
        candidates.extend(ends.map(|end| format!("{}.*", &name[..end])));
    }
    let mut ranked: Vec<(f64, String)> = candidates
        .into_iter()
        .map(|candidate| {
            (
                strsim::normalized_damerau_levenshtein(pattern, &candidate),
                candidate,
            )
        })
        .collect();
    // Stable: names that are equally near stay in the order of the alphabet.
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    ranked.truncate(SUGGESTIONS);
    ranked.into_iter().map(|(_, candidate)| candidate).collect()
}

fn suggestion(nearest: &[String]) -> String {
    if nearest.is_empty() {
        return ": the model has none".to_owned();
    }
    format!("; the nearest are {}. A `*` also matches dots", quoted(nearest))
}

fn quoted(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    words.join(", ")
}
