//! Optimizers and schedules.

use super::*;

/// Reads a small recipe with this schedule.
fn schedule(settings: &str) -> Result<Recipe, RecipeError> {
    parse(SMALL, &[&format!("optim.schedule={{ {settings} }}")])
}

fn refused(settings: &str, key: &str, part: &str) {
    let set = format!("optim.schedule={{ {settings} }}");
    expect_error(SMALL, &[&set], &format!("optim.schedule.{key}"), part);
}

#[test]
fn optimizers_have_their_own_defaults() {
    let adam = small(&["optim.name=adam"]).general.optim;
    assert_eq!(
        (adam.lr, adam.weight_decay, adam.betas, adam.eps, adam.momentum),
        (1e-3, Some(0.0), Some([0.9, 0.999]), Some(1e-8), None)
    );
    expect_error(
        SMALL,
        &["optim.name=adam", "optim.momentum=0.9"],
        "optim.momentum",
        "\"sgd\" and \"rmsprop\" and \"muon\"",
    );
    let lion = small(&["optim.name=lion", "optim.lr=1e-4"]).general.optim;
    assert_eq!((lion.betas, lion.eps, lion.weight_decay), (Some([0.9, 0.99]), None, Some(0.0)));
    let rmsprop = small(&["optim.name=rmsprop", "optim.lr=0.01", "optim.centered=true"]).general.optim;
    assert_eq!((rmsprop.alpha, rmsprop.eps, rmsprop.momentum), (Some(0.99), Some(1e-8), Some(0.0)));
    for name in ["lion", "rmsprop", "muon"] {
        expect_error(SMALL, &[&format!("optim.name={name}")], "optim.lr", "has no default learning rate");
    }
    expect_error(SMALL, &["optim.alpha=0.9"], "optim.alpha", "it applies to \"rmsprop\"");
    expect_error(SMALL, &["optim.clip=1", "optim.clip_value=1"], "optim.clip_value", "remove one of the two");
    expect_set_error(SMALL, "optim.name=adan", "did you mean \"adam\"?");
}

#[test]
fn muon_has_the_settings_of_adamw_too() {
    let muon = ["optim.name=muon", "optim.lr=0.02"];
    let with = |more: &'static str| [&muon[..], &[more]].concat();
    let optim = small(&muon).general.optim;
    assert_eq!((optim.momentum, optim.nesterov, optim.weight_decay), (Some(0.95), Some(true), Some(0.1)));
    assert_eq!((optim.betas, optim.eps), (Some([0.9, 0.999]), Some(1e-8)));
    assert_eq!((optim.adamw_lr, optim.adamw_weight_decay), (Some(1e-3), Some(0.01)));
    let same = small(&with("optim.adjust_lr=match_rms_adamw")).general.optim;
    assert_eq!(same.adamw_lr, Some(0.02));
    let stage = r#"stage=[{ name = "a", epochs = 1, lr = 0.1, lr_factor = 0.5 }]"#;
    let staged = parse(&SMALL.replace("epochs = 1\n", ""), &with(stage)).unwrap();
    let first = staged.of_stage(0).general.optim;
    assert_eq!((first.lr, first.adamw_lr.map(|lr| (lr * 1e6).round())), (0.05, Some(2500.0)));
    expect_error(SMALL, &["optim.adamw_lr=1e-3"], "optim.adamw_lr", "it applies to \"muon\"");
    expect_error(SMALL, &["optim.convolutions=true"], "optim.convolutions", "it applies to \"muon\"");
    expect_error(SMALL, &["optim.name=muon", "optim.lr=0"], "optim.lr", "above 0");
    expect_set_error(SMALL, "optim.adjust_lr=match_rms", "match_rms_adamw");
    let group = r#"optim.group=[{ match = "*.weight", muon = true }]"#;
    expect_error(SMALL, &[group], "optim.group[0].muon", "has no effect");
    assert!(parse(SMALL, &with(group)).is_ok());
}

#[test]
fn gradients_are_clipped_in_one_way() {
    for (first, second) in [("clip", "clip_adaptive"), ("clip_value", "clip_adaptive")] {
        let sets = [format!("optim.{first}=1"), format!("optim.{second}=0.01")];
        let key = format!("optim.{second}");
        expect_error(
            SMALL,
            &sets.each_ref().map(String::as_str),
            &key,
            &format!("optim.{first} is also set"),
        );
    }
    let group = r#"optim.group=[{ match = "fc.*", clip_adaptive = false }]"#;
    expect_error(SMALL, &[group], "optim.group[0].clip_adaptive", "optim.clip_adaptive is not set");
    assert!(parse(SMALL, &["optim.clip_adaptive=0.01", group]).is_ok());
}

#[test]
fn decay_needs_a_weight_decay() {
    for name in ["adam", "sgd"] {
        let sets = [&format!("optim.name={name}"), "optim.lr=0.1", "optim.decay=weights"];
        expect_error(SMALL, &sets, "optim.decay", "optim.weight_decay is 0");
        let with = [&sets[..], &["optim.weight_decay=0"]].concat();
        assert!(parse(SMALL, &with).is_ok(), "0 may be one of several that are tried");
    }
    assert_eq!(small(&["optim.decay=weights"]).optim.decay, Decay::Weights);
}

#[test]
fn schedules_have_their_own_defaults() {
    let of = |settings: &str| schedule(settings).unwrap().general.optim.schedule;
    assert_eq!(of("name = \"linear\"").min_lr, Some(0.0));
    let step = of("name = \"step\", every = \"2 epochs\"");
    assert_eq!((step.gamma, step.every), (Some(0.1), Some(Span::Epochs(2.0))));
    let milestones = of("name = \"step\", milestones = [\"3 steps\", \"0.5 epochs\"]").milestones;
    assert_eq!(milestones, Some(vec![Span::Steps(3), Span::Epochs(0.5)]));
    let cycle = of("name = \"onecycle\"");
    assert_eq!((cycle.rise, cycle.start_factor, cycle.final_factor), (Some(0.3), Some(25.0), Some(1e4)));
    assert_eq!(of("name = \"exponential\", gamma = 0.9, per = \"epoch\"").per, Per::Epoch);
    let timescale = of("name = \"inverse-sqrt\", warmup = \"0 steps\"").timescale;
    assert_eq!(timescale, Some(Span::Steps(10_000)));
}

#[test]
fn settings_of_other_schedules_have_no_effect() {
    for (settings, key, owner) in [
        ("name = \"constant\", min_lr = 0", "min_lr", "\"cosine\" and \"cosine-restarts\" and \"wsd\""),
        ("name = \"step\", every = \"1 step\", min_lr = 0", "min_lr", "\"linear\" and \"polynomial\""),
        ("name = \"cosine\", power = 2", "power", "\"polynomial\""),
        ("name = \"cosine\", stretch = 2", "stretch", "\"cosine-restarts\""),
        ("name = \"cosine\", timescale = \"1 step\"", "timescale", "\"inverse-sqrt\""),
        ("name = \"cosine\", fall = 0.5", "fall", "\"wsd\""),
        ("name = \"cosine\", shape = \"sqrt\"", "shape", "\"wsd\""),
        ("name = \"cosine\", every = \"1 epoch\"", "every", "\"step\""),
        ("name = \"cosine\", milestones = [\"1 epoch\"]", "milestones", "\"step\""),
        ("name = \"cosine\", gamma = 0.5", "gamma", "\"step\" and \"exponential\""),
        ("name = \"linear\", rise = 0.5", "rise", "\"onecycle\""),
        ("name = \"linear\", start_factor = 2", "start_factor", "\"onecycle\""),
        ("name = \"linear\", final_factor = 2", "final_factor", "\"onecycle\""),
        ("per = \"epoch\"", "per", "changes the learning rate only in the warm-up"),
    ] {
        refused(settings, key, "this setting has no effect");
        refused(settings, key, owner);
    }
}

#[test]
fn schedules_must_make_sense() {
    for (settings, key, part) in [
        ("name = \"onecycle\", warmup = \"1 step\"", "warmup", "\"onecycle\" already has a rise"),
        (
            "name = \"exponential\"",
            "gamma",
            "missing; state the factor by which the learning rate changes in every step",
        ),
        ("name = \"exponential\", per = \"epoch\"", "gamma", "in every epoch"),
        ("name = \"step\"", "every", "missing; state when the learning rate changes"),
        ("name = \"cosine-restarts\"", "every", "missing; state the length of the first cosine"),
        (
            "name = \"cosine-restarts\", every = \"5 steps\", per = \"epoch\"",
            "every",
            "5 steps is not a whole number of epochs",
        ),
        (
            "name = \"inverse-sqrt\", timescale = \"5 steps\", per = \"epoch\"",
            "timescale",
            "5 steps is not a whole number of epochs",
        ),
        ("name = \"inverse-sqrt\", per = \"epoch\"", "timescale", "missing; state it in whole epochs"),
        (
            "name = \"step\", every = \"1 epoch\", milestones = [\"1 epoch\"]",
            "milestones",
            "optim.schedule.every is also set; remove one of the two",
        ),
        (
            "name = \"step\", per = \"epoch\", every = \"1.5 epochs\"",
            "every",
            "1.5 epochs is not a whole number of epochs",
        ),
        ("name = \"step\", per = \"epoch\", every = \"5 steps\"", "every", "5 steps is not a whole number"),
        (
            "name = \"step\", per = \"epoch\", milestones = [\"1 epoch\", \"5 steps\"]",
            "milestones",
            "5 steps is not a whole number",
        ),
        (
            "name = \"step\", milestones = [\"2 epochs\", \"1 epoch\"]",
            "milestones",
            "1 epoch comes after 2 epochs in the list; put the times in rising order",
        ),
        ("name = \"step\", milestones = [\"2 steps\", \"2 steps\"]", "milestones", "each once"),
        ("name = \"step\", milestones = []", "milestones", "a list of lengths of training"),
        ("name = \"step\", milestones = \"1 epoch\"", "milestones", "a list of lengths of training"),
        ("name = \"step\", milestones = [\"0 steps\"]", "milestones", "is zero"),
        ("name = \"step\", milestones = [\"10 min\"]", "milestones", "which only checkpoint.every takes"),
        ("name = \"step\", every = \"0 epochs\"", "every", "is zero"),
        ("name = \"step\", every = \"1 epoch\", gamma = 0", "gamma", "a number above 0"),
        ("name = \"onecycle\", rise = 1", "rise", "a number above 0 and below 1"),
        ("name = \"onecycle\", rise = 0", "rise", "a number above 0 and below 1"),
        ("name = \"onecycle\", start_factor = 0.5", "start_factor", "a number of at least 1"),
        ("name = \"onecycle\", final_factor = 0", "final_factor", "a number of at least 1"),
        ("name = \"linear\", min_lr = 0.1", "min_lr", "0.1 is above the learning rate, which is 0.001"),
        ("name = \"linear\", warmup = \"17 steps\"", "warmup", "longer than the run of 16 steps"),
        ("name = \"polynomial\", power = 0", "power", "a number above 0"),
        ("name = \"cosin\"", "name", "did you mean \"cosine\"?"),
        ("name = \"cosine\", per = \"batch\"", "per", "\"step\", \"epoch\""),
        ("name = \"onecycle\", pct_start = 0.3", "pct_start", "did you mean `rise`?"),
    ] {
        refused(settings, key, part);
    }
}
