//! The rules, their errors, and that every parameter is in exactly one group.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const PARAMETERS: [ParameterInfo<'static>; 7] = [
    info("backbone.conv1.weight", 4),
    info("backbone.bn1.weight", 1),
    info("backbone.bn1.bias", 1),
    info("backbone.layer1.0.conv1.weight", 4),
    info("backbone.layer1.0.bn1.weight", 1),
    info("head.weight", 2),
    info("head.bias", 1),
];

const fn info(name: &'static str, dims: usize) -> ParameterInfo<'static> {
    ParameterInfo { name, dims }
}

fn rule(patterns: &[&str], lr_factor: f64, weight_decay: Option<f64>) -> OptimGroup {
    OptimGroup {
        patterns: patterns.iter().map(|pattern| (*pattern).to_owned()).collect(),
        lr_factor,
        weight_decay,
        betas: None,
        eps: None,
        muon: None,
        clip_adaptive: None,
    }
}

/// Returns the groups as (factor, decay, members).
fn groups(rules: &[OptimGroup], decay_on: Decay) -> Vec<(f64, f64, Vec<usize>)> {
    assign(&PARAMETERS, rules, 0.05, decay_on)
        .unwrap()
        .into_iter()
        .map(|(options, members)| (options.lr_factor, options.weight_decay, members))
        .collect()
}

/// Returns (options, members) of every group.
fn assign(
    parameters: &[ParameterInfo<'_>],
    rules: &[OptimGroup],
    weight_decay: f64,
    decay_on: Decay,
) -> Result<Vec<(GroupOptions, Vec<usize>)>, GroupError> {
    let owners = match_rules(parameters, rules)?;
    let rule_of: Vec<Option<&OptimGroup>> = owners.into_iter().map(|owner| Some(&rules[owner?])).collect();
    let frozen = vec![false; parameters.len()];
    let layer_factors = &vec![1.0; parameters.len()];
    let inherited = Inherited { weight_decay, decay_on, layer_factors, muon: None };
    let (group_of, groups) = assign_groups(parameters, &rule_of, &frozen, &inherited);
    let members = |number: usize| (0..group_of.len()).filter(|&row| group_of[row] == Some(number)).collect();
    let all = groups.iter().enumerate();
    Ok(all.map(|(number, options)| (*options, members(number))).collect())
}

fn error(rules: &[OptimGroup]) -> GroupError {
    assign(&PARAMETERS, rules, 0.05, Decay::All).unwrap_err()
}

#[test]
fn without_rules_groups_differ_only_by_decay() {
    assert_eq!(groups(&[], Decay::All), [(1.0, 0.05, vec![0, 1, 2, 3, 4, 5, 6])]);
    assert_eq!(groups(&[], Decay::Weights), [(1.0, 0.05, vec![0, 3, 5]), (1.0, 0.0, vec![1, 2, 4, 6])]);
    assert_eq!(assign(&[], &[], 0.05, Decay::All).unwrap(), []);
}

#[test]
fn the_first_rule_wins_and_a_star_crosses_dots() {
    let rules = [rule(&["backbone.layer1.*"], 0.5, None), rule(&["backbone.*"], 0.1, None)];
    assert_eq!(
        groups(&rules, Decay::All),
        [(0.1, 0.05, vec![0, 1, 2]), (0.5, 0.05, vec![3, 4]), (1.0, 0.05, vec![5, 6])]
    );
}

#[test]
fn a_rule_s_decay_applies_to_all_its_parameters() {
    let rules = [rule(&["head.*"], 1.0, Some(0.2)), rule(&["*.conv1.*"], 0.1, None)];
    assert_eq!(
        groups(&rules, Decay::Weights),
        [(0.1, 0.05, vec![0, 3]), (1.0, 0.0, vec![1, 2, 4]), (1.0, 0.2, vec![5, 6])]
    );
}

#[test]
fn equal_settings_share_a_group_and_empty_ones_vanish() {
    let rules =
        [rule(&["head.bias"], 2.0, None), rule(&["*.bn1.bias"], 2.0, Some(0.05)), rule(&["*"], 1.0, None)];
    assert_eq!(groups(&rules, Decay::All), [(1.0, 0.05, vec![0, 1, 3, 4, 5]), (2.0, 0.05, vec![2, 6])]);
    // No parameter remains for the default group.
    assert_eq!(groups(&rules[2..], Decay::All).len(), 1);
}

#[test]
fn alternatives_and_classes_are_globs_too() {
    let names = PARAMETERS.map(|parameter| parameter.name);
    let matched = |pattern: &str| {
        let matched = match_names(&names, &[pattern]).unwrap();
        matched.iter().filter(|matched| **matched).count()
    };
    assert_eq!(matched("*.{weight,bias}"), 7);
    assert_eq!(matched("backbone.layer[0-9].*"), 2);
    assert_eq!(matched("backbone.bn?.*"), 2);
    assert_eq!(matched("**"), 7);
    assert_eq!(match_names(&names, &[] as &[&str]).unwrap(), [false; 7]);
    let frozen = match_names(&names, &["head.bias", "backbone.conv1.weight"]).unwrap();
    assert_eq!(frozen, [true, false, false, false, false, false, true]);
}

#[test]
fn an_unmatched_glob_suggests_similar_names() {
    let found = error(&[rule(&["head.*", "backbone.layers1.*"], 0.1, None)]);
    let GroupError::NoMatch { glob, nearest } = &found else {
        panic!("{found}");
    };
    assert_eq!((glob.as_str(), nearest[0].as_str()), ("backbone.layers1.*", "backbone.layer1.*"));
    let text = found.to_string();
    assert!(text.contains("matches no parameter") && text.contains("\"backbone.layer1.*\""), "{text}");
    let text = error(&[rule(&["haed.weight"], 0.1, None)]).to_string();
    assert!(text.contains("\"head.weight\""), "{text}");
    // A prefix of a name does not match: globs are for whole names.
    let text = error(&[rule(&["backbone"], 0.1, None)]).to_string();
    assert!(text.contains("\"backbone.*\""), "{text}");
    let none = match_names::<&str, _>(&[], &["*"]).unwrap_err();
    assert!(none.to_string().contains("the model has no parameters"), "{none}");
}

#[test]
fn mistaken_globs_and_rules_are_errors() {
    for bad in ["layer[0", "{a,b", "a]b[", "x[z-a]"] {
        let found = error(&[rule(&[bad], 0.1, None)]);
        assert!(
            matches!(&found, GroupError::Glob { glob, reason } if glob == bad && !reason.is_empty()),
            "{found}"
        );
    }
    assert_eq!(error(&[rule(&[], 0.1, None)]), GroupError::Empty { rule: 1 });
    let shadowed = error(&[
        rule(&["head.*"], 2.0, None),
        rule(&["backbone.*"], 0.1, None),
        rule(&["*.layer1.*", "*.conv1.weight"], 0.5, None),
    ]);
    let wanted = GroupError::Shadowed {
        rule: 3,
        globs: vec!["*.layer1.*".into(), "*.conv1.weight".into()],
        earlier: 2,
        example: "backbone.conv1.weight".into(),
    };
    assert_eq!(shadowed, wanted);
    assert!(shadowed.to_string().contains("group 2 comes before it"), "{shadowed}");
}

proptest! {
    #[test]
    fn every_parameter_is_in_exactly_one_group(
        names in prop::collection::btree_set("[ab](\\.[abc]){0,3}", 1..30),
        dims in prop::collection::vec(0usize..5, 30),
        patterns in prop::collection::vec(prop::collection::vec("[abc*?.]{1,4}", 1..3), 0..4),
        factors in prop::collection::vec(prop::sample::select(vec![0.1, 1.0, 2.0]), 4),
        decays in prop::collection::vec(prop::sample::select(vec![None, Some(0.0), Some(0.05)]), 4),
        weights in any::<bool>(),
    ) {
        let parameters: Vec<ParameterInfo<'_>> = names
            .iter()
            .zip(&dims)
            .map(|(name, dims)| ParameterInfo { name, dims: *dims })
            .collect();
        let rules: Vec<OptimGroup> = patterns
            .into_iter()
            .zip(factors.iter().zip(&decays))
            .map(|(patterns, (lr_factor, weight_decay))| OptimGroup {
                muon: None,
                clip_adaptive: None,
                patterns,
                lr_factor: *lr_factor,
                weight_decay: *weight_decay,
                betas: None,
                eps: None,
            })
            .collect();
        let decay_on = if weights { Decay::Weights } else { Decay::All };
        // Drops invalid rules; the others remain.
        let mut kept: Vec<OptimGroup> = Vec::new();
        for rule in rules {
            kept.push(rule);
            if assign(&parameters, &kept, 0.05, decay_on).is_err() {
                kept.pop();
            }
        }
        let groups = assign(&parameters, &kept, 0.05, decay_on).unwrap();
        let mut seen: Vec<usize> = groups.iter().flat_map(|(_, members)| members.clone()).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..parameters.len()).collect::<Vec<_>>());
        for (index, (options, members)) in groups.iter().enumerate() {
            prop_assert!(!members.is_empty() && members.is_sorted());
            for other in &groups[..index] {
                prop_assert!(other.1[0] < members[0]);
                prop_assert!(other.0 != *options);
            }
            for &member in members {
                let name = [parameters[member].name];
                let first = kept
                    .iter()
                    .find(|rule| rule.patterns.iter().any(|glob| match_names(&name, &[glob]).is_ok()));
                prop_assert_eq!(options.lr_factor, first.map_or(1.0, |rule| rule.lr_factor));
            }
        }
    }
}
