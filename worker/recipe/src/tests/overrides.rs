//! Values of `--set`, and of an array's runs.

use proptest::prelude::*;

use super::*;

#[test]
fn overrides_are_read_by_what_their_key_takes() {
    let text =
        format!("{SMALL}[[stage]]\nname = \"a\"\nsteps = 1\nfreeze = [\"x\"]\n").replace("epochs = 1\n", "");
    let read = |sets: &[&str]| parse(&text, sets).unwrap();
    let recipe = read(&[
        "data.kind=folder",
        "data.root=/x",
        "data.train=2025",
        "data.test=2025-01-01",
        "stage.0.name=1",
    ]);
    assert_eq!((recipe.data.train.as_str(), recipe.data.test.as_str()), ("2025", "2025-01-01"));
    assert_eq!(recipe.stage[0].name, "1");
    for name in ["true", "1e3", "nan", "0x10", "1_000", "+5", ".5", "1.", "07", "12:30:00"] {
        let set = format!("data.train={name}");
        assert_eq!(read(&["data.kind=folder", "data.root=/x", &set]).data.train, name);
        let set = format!("stage.0.freeze.0={name}");
        assert_eq!(read(&[&set]).stage[0].freeze, Some(vec![name.to_owned()]));
        // In quotes as in a recipe.
        let set = format!("data.train=\"{name}\"");
        assert_eq!(read(&["data.kind=folder", "data.root=/x", &set]).data.train, name);
    }
    // Numbers, switches, lists and tables are what they were; a number needs no digit before or after its point.
    let recipe = read(&[
        "data.kind=folder",
        "data.root=/x",
        "data.std=[1, 2, 3]",
        "optim.lr=.5",
        "optim.weight_decay=1.",
        "memory.grow=true",
        "train.seed=7",
    ]);
    assert_eq!((recipe.optim.lr, recipe.optim.weight_decay, recipe.train.seed), (0.5, Some(1.0), 7));
    assert_eq!((&recipe.data.std[..], recipe.memory.grow), (&[1.0, 2.0, 3.0][..], true));
    let custom =
        parse("task = \"custom\"\n[train]\nsteps = 1\n", &["custom.a=2025", "custom.b=x", "custom.c=.5"])
            .unwrap();
    assert_eq!(custom.custom["a"].as_integer(), Some(2025));
    assert_eq!((custom.custom["b"].as_str(), custom.custom["c"].as_str()), (Some("x"), Some(".5")));
    // Below a setting that is a table or a list, too.
    let sets = ["model.inputs.x=1", "model.output=7", "model.auxiliary.aux=.5", "model.auxiliary.2=1"];
    let model = parse(samples::EXPORTED, &sets).unwrap().model;
    assert_eq!((model.inputs["x"].as_str(), model.output.as_deref()), ("1", Some("7")));
    assert_eq!((model.auxiliary["aux"], model.auxiliary["2"]), (0.5, 1.0));
    let recipe = parse(FULL, &["model.weights_rename.1.0=7", "optim.betas.0=.5", "optim.betas.1=0"]).unwrap();
    assert_eq!(recipe.model.weights_rename[1].0, "7");
    assert_eq!(recipe.optim.betas, Some([0.5, 0.0]));
    // A list in place of a name is an error, not a name.
    let error = parse(SMALL, &["data.train=[1]"]).unwrap_err().to_string();
    assert!(error.contains("got the list [1]"), "{error}");
}

proptest! {
    #[test]
    fn a_text_is_read_as_it_is_written(name in "[0-9a-zA-Z_.+:-]{1,12}", number in -1e9f64..1e9) {
        prop_assume!(![".", ".."].contains(&name.as_str()));
        let sets = ["data.kind=folder", "data.root=/x", &format!("data.train={name}")];
        prop_assert_eq!(parse(SMALL, &sets).unwrap().data.train, name);
        let recipe = parse(SMALL, &[&format!("optim.lr={}", number.abs())]).unwrap();
        prop_assert_eq!(recipe.optim.lr, number.abs());
    }
}
