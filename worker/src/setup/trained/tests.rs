//! Tests of globs and phases.
#![allow(clippy::unwrap_used)]
use super::*;
use crate::course::Needs;
use tch::{Device, Kind, Tensor};

const NAMES: [&str; 5] = ["stem.w", "block.1.w", "block.2.w", "block.3.w", "head.w"];

fn registry() -> Registry {
    let mut registry = Registry::new(Device::Cpu);
    for name in NAMES {
        let tensor = Tensor::zeros([2, 3], (Kind::Float, Device::Cpu));
        let _ = registry.root().parameter(name, &tensor).unwrap();
    }
    registry
}

fn phases_of(text: &str) -> Result<Vec<Vec<Trained>>, WorkerError> {
    let text = format!("task = \"classify\"\n[data]\nkind = \"generated\"\n{text}");
    let recipe = Recipe::parse("test", &text, &[]).unwrap();
    let plan = RunPlan::new(&recipe, 1, 96, &Needs::default()).unwrap();
    phases(&recipe, &registry(), &plan)
}

fn stage(name: &str, lines: &str) -> String {
    format!("[[stage]]\nname = {name:?}\nepochs = 12\n{lines}\n")
}

/// Returns the trained parameters by stage and phase, as the digits and first letters of their names.
fn trained(text: &str) -> Vec<Vec<String>> {
    let letter = |name: &str| name.split('.').rev().nth(1).unwrap()[..1].to_owned();
    let words = |phase: &Trained| -> String {
        let trained = phase.group_of.iter().zip(NAMES);
        trained.filter_map(|(group, name)| group.map(|_| letter(name))).collect()
    };
    let phases = phases_of(text).unwrap();
    phases.iter().map(|stage| stage.iter().map(words).collect()).collect()
}

#[test]
fn a_stage_that_unfreezes_begins_as_the_one_before_ended() {
    let backbone = "freeze = [\"stem.*\", \"block.*\"]";
    let unfreeze = "unfreeze = [{ at = 0, match = \"block.3.*\" }, { at = 0.3333, match = \"block.2.*\" }, { at = 0.6667, match = \
                    \"*\" }]";
    let text = stage("decoder", backbone) + &stage("full", unfreeze);
    assert_eq!(trained(&text), [vec!["h"], vec!["3h", "23h", "s123h"]]);
    // A stage that neither freezes nor unfreezes trains everything.
    let text = stage("decoder", backbone) + &stage("full", "");
    assert_eq!(trained(&text), [vec!["h"], vec!["s123h"]]);
    // A stage with `freeze` begins with these parameters frozen.
    let own = "freeze = [\"stem.*\"]\nunfreeze = [{ at = 0.5, match = \"stem.*\" }]";
    let text = stage("decoder", backbone) + &stage("full", own);
    assert_eq!(trained(&text), [vec!["h"], vec!["123h", "s123h"]]);
}

#[test]
fn every_stage_begins_with_model_freeze() {
    let base = "[model]\nfreeze = [\"stem.*\"]\n[train]\nseed = 1\n";
    let freeze = "freeze = [\"block.*\"]";
    let text = format!("{base}{}{}", stage("a", freeze), stage("b", ""));
    assert_eq!(trained(&text), [["h"], ["123h"]]);
    let thaw = "unfreeze = [{ at = 0.5, match = \"*\" }]";
    let text = format!("{base}{}{}", stage("a", thaw), stage("b", ""));
    assert_eq!(trained(&text), [vec!["123h", "s123h"], vec!["123h"]]);
    assert_eq!(trained("[model]\nfreeze = [\"stem.*\"]\n[train]\nepochs = 1\n"), [["123h"]]);
}

#[test]
fn groups_of_a_stage_come_before_groups_of_the_recipe() {
    let common = "[optim]\nweight_decay = 0.5\ngroup = [{ match = \"block.*\", lr_factor = 0.1 }]\n";
    let own = "group = [{ match = \"block.3.*\", weight_decay = 0.0 }]\nfreeze = [\"stem.*\"]";
    let phases = phases_of(&format!("{common}{}{}", stage("a", own), stage("b", ""))).unwrap();
    let of = |phase: &Trained, index: usize| {
        phase.group_of[index].map(|group| (phase.groups[group].lr_factor, phase.groups[group].weight_decay))
    };
    let settings = |phase| (0..5).map(|index| of(phase, index)).collect::<Vec<_>>();
    assert_eq!(
        settings(&phases[0][0]),
        [None, Some((0.1, 0.5)), Some((0.1, 0.5)), Some((1.0, 0.0)), Some((1.0, 0.5))]
    );
    assert_eq!(of(&phases[1][0], 3), Some((0.1, 0.5)), "the group was the first stage's");
    // A stage's group may cover the recipe's group completely.
    let all = "group = [{ match = \"block.*\", lr_factor = 0.5 }]";
    assert!(phases_of(&format!("{common}{}", stage("a", all))).is_ok());
}

#[test]
fn invalid_settings_name_key_and_remedy() {
    for (text, key, part) in [
        (stage("a", "freeze = [\"blok.*\"]"), "stage[0].freeze: ", "matches no parameter; the nearest are"),
        (
            stage("a", "freeze = [\"block.*\"]\nunfreeze = [{ at = 0.5, match = \"blok.1.*\" }]"),
            "stage[0].unfreeze[0].match: ",
            "matches no parameter",
        ),
        (
            stage("a", "") + &stage("b", "unfreeze = [{ at = 0.5, match = \"block.*\" }]"),
            "stage[1].unfreeze[0].match: ",
            "no parameter that it matches is frozen at that part",
        ),
        (
            stage(
                "a",
                "freeze = [\"block.*\"]\nunfreeze = [{ at = 0.2, match = \"*\" }, { at = 0.5, match = \"block.1.*\" }]",
            ),
            "stage[0].unfreeze[1].match: ",
            "remove the entry, or freeze these parameters before",
        ),
        (
            stage("a", "freeze = [\"block.*\"]\nunfreeze = [{ at = 0, match = \"*\" }]"),
            "stage[0].unfreeze[0].match: ",
            "every parameter of the stage's freeze at the start",
        ),
        (
            stage("a", "") + &stage("b", "freeze = [\"*\"]"),
            "stage \"b\" begins with every parameter frozen",
            "add an unfreeze entry with at = 0",
        ),
        (
            stage("a", "group = [{ match = \"blok.*\", lr_factor = 2 }]"),
            "stage[0].group: ",
            "matches no parameter",
        ),
        (
            stage(
                "a",
                "freeze = [\"block.*\"]\ngroup = [{ match = \"head.*\", lr_factor = 2 }, { match = \"block.*\", lr_factor = 3 }]",
            ),
            "stage[0].group[1]: ",
            "every parameter that it matches is frozen in this stage",
        ),
        (
            format!(
                "[optim]\ngroup = [{{ match = \"stem.*\", lr_factor = 2 }}]\n{}",
                stage("a", "freeze = [\"stem.*\"]")
            ),
            "optim.group[0]: ",
            "every parameter that it matches is frozen in every stage",
        ),
        (
            "[model]\nfreeze = [\"*\"]\n[train]\nepochs = 1\n".to_owned(),
            "model.freeze matches every parameter",
            "leave at least one",
        ),
    ] {
        let error = phases_of(&text).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(key) && text.contains(part), "{text}");
        assert_eq!(error.exit_status().code(), 2, "{text}");
    }
    // All parameters may be frozen if some are unfrozen at once.
    let text = stage(
        "a",
        "freeze = [\"*\"]\nunfreeze = [{ at = 0, match = \"head.*\" }, { at = 0.5, match = \"*\" }]",
    );
    assert_eq!(trained(&text), [["h", "s123h"]]);
}
