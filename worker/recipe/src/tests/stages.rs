//! `[[stage]]`.

use super::samples::STAGES;
use super::*;

/// Returns a small recipe followed by these sections.
fn staged(sections: &str) -> String {
    format!("{}{sections}", SMALL.replace("epochs = 1\n", "effective_batch = 16\n"))
}

const TWO: &str = "[[stage]]\nname = \"a\"\nepochs = 2\n[[stage]]\nname = \"b\"\nsteps = 7\n";

#[test]
fn a_short_stage_keeps_all_other_settings() {
    let recipe = parse(&staged(TWO), &[]).unwrap();
    assert_eq!((recipe.stages(), small(&[]).stages()), (2, 1));
    let [first, second] = &recipe.stage[..] else { panic!("two stages") };
    assert_eq!((first.epochs, second.steps), (Some(2), Some(7)));
    assert_eq!((first.schedule, first.ema), (AtStageStart::Restart, AtStageStart::Continue));
    assert_eq!((first.freeze.as_ref(), first.unfreeze.len()), (None, 0));
    let alone = recipe.of_stage(1);
    assert_eq!(alone, parse(&staged("steps = 7\n"), &[]).unwrap());
    assert_eq!(small(&[]).of_stage(0), small(&[]));
}

#[test]
fn stage_settings_override_the_recipe() {
    let recipe = parse(STAGES, &[]).unwrap();
    let (first, second) = (recipe.of_stage(0), recipe.of_stage(1));
    assert_eq!((first.train.epochs, first.train.effective_batch), (Some(30), 16));
    assert_eq!((first.learning_rate(), first.model.loss), (1e-3, Loss::word("l1").unwrap()));
    assert_eq!((second.train.steps, second.train.epochs), (Some(90), None));
    assert_eq!((second.train.effective_batch, second.memory.micro_batch), (8, MicroBatch::Value(1)));
    assert_eq!(second.memory.recompute, Recompute::On);
    assert_eq!(second.learning_rate(), 2.5e-4);
    let patterns: Vec<_> = second.optim.group.iter().map(|group| &group.patterns[0]).collect();
    assert_eq!(patterns, ["backbone.*", "*.bias"], "the first match wins");
    // The rate is scaled to the stage's own batch.
    let scaled = ["optim.reference_batch=16", "optim.scaling=linear"];
    assert_eq!(parse(STAGES, &scaled).unwrap().of_stage(1).learning_rate(), 1.25e-4);
}

#[test]
fn list_members_are_named_by_number() {
    let sets = [
        "stage.0.epochs=5",
        "stage.1.unfreeze=[{ at = 0.25, match = \"a\" }, { at = 0.5, match = \"b\" }]",
        "stage.1.unfreeze.1.at=0.75",
        "stage.1.lr=1e-4",
    ];
    let recipe = parse(&staged(TWO), &sets).unwrap();
    assert_eq!(recipe.stage[0].epochs, Some(5));
    assert_eq!(recipe.stage[1].unfreeze[1].at, 0.75);
    assert_eq!(recipe.of_stage(1).optim.lr, 1e-4);
    let whole = parse(SMALL, &["stage=[{ name = \"x\", steps = 3 }]", "stage.0.steps=4"]);
    assert_eq!(whole.unwrap_err().key(), Some("train.epochs"));

    let refused = |set: &str| parse(&staged(TWO), &[set]).unwrap_err();
    let error = refused("stage.0.epochs=many");
    assert_eq!(error.key(), Some("stage[0].epochs"));
    assert_eq!(error.set(), Some("stage.0.epochs=many"));
    for (set, part) in [
        ("stage.2.epochs=1", "`stage` is a list of 2: name a member stage.0 to stage.1, not \"2\""),
        ("stage.full.epochs=1", "not \"full\""),
        ("stage.0.name.x=1", "`stage[0].name` is the text \"a\", which has no keys"),
    ] {
        assert!(refused(set).message().contains(part), "{}", refused(set));
    }
}

#[test]
fn errors_of_stages_have_a_line_and_a_remedy() {
    let one = |lines: &str| staged(&format!("[[stage]]\nname = \"a\"\n{lines}\n"));
    for (text, key, part) in [
        (staged("[[stage]]\nepochs = 1\n"), "stage[0].name", "missing; give it a name"),
        (one(""), "stage[0].epochs", "missing; state the length of the stage"),
        (one("epochs = 1\nsteps = 2"), "stage[0].steps", "the stage has epochs and steps; remove one"),
        (one("epochs = 0"), "stage[0].epochs", "at least 1"),
        (staged("[[stage]]\nname = \" \"\nepochs = 1\n"), "stage[0].name", "a name in quotes"),
        (staged(&TWO.replace("\"b\"", "\"a\"")), "stage[1].name", "the name of an earlier stage"),
        (one("epoch = 1"), "stage[0].epoch", "did you mean `epochs`? [[stage]] takes name"),
        (one("epochs = 1\nbest = \"restart\""), "stage[0].best", "checkpoint.best is not set"),
        (
            one("epochs = 1\nbest = \"restart\"\n[checkpoint]\nbest = \"min loss\""),
            "stage[0].best",
            "checkpoint.best begins with the run",
        ),
        (
            one("epochs = 1\nunfreeze = [{ match = \"a\" }]"),
            "stage[0].unfreeze[0].at",
            "missing; state the part of the stage after which it begins",
        ),
        (
            one("epochs = 1\nunfreeze = [{ at = 0.5 }]"),
            "stage[0].unfreeze[0].match",
            "missing; name the parameters",
        ),
        (
            one("epochs = 1\nunfreeze = [{ at = 1, match = \"a\" }]"),
            "stage[0].unfreeze[0].at",
            "of at least 0 and below 1",
        ),
        (
            one("epochs = 1\nunfreeze = [{ at = 0.5, match = \"a\" }, { at = 0.5, match = \"b\" }]"),
            "stage[0].unfreeze[1].at",
            "0.5 comes after 0.5 in the list",
        ),
        (
            one("epochs = 1\nunfreeze = [{ at = 0.25, match = \"a\" }, { at = 0.5, match = \"a\" }]"),
            "stage[0].unfreeze[1].match",
            "an earlier entry already unfreezes \"a\"",
        ),
        (
            one("epochs = 1\nfreeze = [\"a\", \"b\"]\nunfreeze = [{ at = 0, match = \"b\" }]"),
            "stage[0].unfreeze[0].match",
            "this stage freezes \"b\" and unfreezes it at its start",
        ),
        (one("epochs = 1\ngroup = [{ match = \"a\" }]"), "stage[0].group[0]", "this group has no effect"),
        (one("epochs = 1\nloss = \"mse\""), "stage[0].loss", "task = \"classify\" takes"),
        (one("epochs = 1\nema = \"restart\""), "stage[0].ema", "the recipe has no [ema]"),
        (one("epochs = 1\nema = \"restart\"\n[ema]\ndecay = 0.9"), "stage[0].ema", "begins with the run"),
        (
            one("epochs = 1\nlr_factor = 0.1\n[optim]\nschedule = { name = \"cosine\", min_lr = 5e-4 }"),
            "stage[0].lr_factor",
            "below optim.schedule.min_lr",
        ),
        (
            format!("{SMALL}[[stage]]\nname = \"a\"\nepochs = 1\n"),
            "train.epochs",
            "each [[stage]] states its length",
        ),
        (
            one("epochs = 1\neffective_batch = 4000").replace("[train]", "[train]\nlast_batch = \"drop\""),
            "train.last_batch",
            "the effective batch of 4000 is larger",
        ),
    ] {
        expect_error(&text, &[], key, part);
    }
    expect_set_error(SMALL, "stage=3", "expected sections [[stage]]");
}

#[test]
fn freezing_first_and_unfreezing_later_is_no_contradiction() {
    let text = staged(
        "[[stage]]\nname = \"a\"\nepochs = 1\nfreeze = [\"a.*\"]\nunfreeze = [{ at = 0.5, match = \"a.*\" }]\n",
    );
    round_trip(&parse(&text, &[]).unwrap());
}

/// Some settings of a stage are part of the experiment, others are free.
#[test]
fn stages_are_of_the_experiment_but_for_their_names_and_cuts() {
    let recipe = parse(STAGES, &["stage.1.unfreeze=[]"]).unwrap();
    let with = |set: &str| recipe.differences(&parse(STAGES, &["stage.1.unfreeze=[]", set]).unwrap());
    for free in ["stage.0.name=x", "stage.0.micro_batch=3", "stage.1.recompute=off", "stage.1.steps=900"] {
        assert_eq!(with(free), [], "{free}");
    }
    for (set, word) in [
        ("stage.0.epochs=3", "epochs = 3"),
        ("stage.0.freeze=[]", "freeze = []"),
        ("stage.1.effective_batch=4", "effective_batch = 4"),
        ("stage.1.lr=1e-4", "lr = 0.0001"),
        ("stage.1.ema=continue", "ema = \"continue\""),
        ("stage.0.loss=huber", "loss = \"huber\""),
        ("stage.0.schedule=continue", "schedule = \"continue\""),
    ] {
        let found = with(set);
        assert_eq!(found.len(), 1, "{set}: {found:?}");
        assert_eq!(format!("{} = {}", found[0].0, found[0].2), format!("stage[{}].{word}", &set[6..7]));
    }
    // With `unfreeze` at a part of the last stage, its length decides when that happens.
    let unfreezing = parse(STAGES, &[]).unwrap();
    let longer = parse(STAGES, &["stage.1.steps=900"]).unwrap();
    assert_eq!(unfreezing.differences(&longer).len(), 1);
}
