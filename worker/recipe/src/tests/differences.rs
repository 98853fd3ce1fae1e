//! Which settings make the experiment.

use super::*;

#[test]
fn differences_are_those_of_the_experiment() {
    let recipe = small(&[]);
    let free = [
        "train.epochs=9",
        "train.steps=9",
        "data.workers=7",
        "model.weights=/w",
        "memory.micro_batch=2",
        "checkpoint.every=7 steps",
        "checkpoint.keep=9",
        "log.every_steps=3",
        "log.trace=2-3",
        "precision.amp=fp16",
        "precision.loss_scale=8",
        "model.cudnn_benchmark=false",
        "model.compile=graph",
        "memory.shard_optimizer=true",
        "model.memory_format=channels-last",
        "reduce={ bucket = \"1 MiB\", first_bucket = \"2 KiB\", overlap = false, compress = \"bf16\" }",
    ];
    assert_eq!(recipe.differences(&small(&free)), []);
    assert_eq!(recipe.differences(&small(&["precision.tf32=false"])), []);
    let [plain, stated, dropped] =
        [&[][..], &["model.dropout=0"], &["model.dropout=0.1"]].map(|set| parse(samples::VIT, set).unwrap());
    assert_eq!(plain.differences(&stated), []);
    assert_eq!(plain.differences(&dropped).len(), 1);
    let cached = parse(FULL, &["data.cache=off"]).unwrap();
    assert_eq!(parse(FULL, &[]).unwrap().differences(&cached), []);
    let program = |file: &str| parse(samples::PROGRAM, &[&format!("model.file={file}")]).unwrap();
    assert_eq!(program("/a.pt2").differences(&program("/b.pt2")), []);
    // Stating a default changes nothing.
    assert_eq!(recipe.differences(&small(&["optim.weight_decay=0.01", "optim.betas=[0.9, 0.999]"])), []);

    let other = small(&["train.effective_batch=64", "optim.clip=1", "model.name=resnet34"]);
    let expected = [("model.name", "\"resnet18\"", "\"resnet34\""), ("train.effective_batch", "128", "64")];
    let mut expected: Vec<_> = expected.map(|(k, a, b)| (k.into(), a.into(), b.into())).into();
    expected.push(("optim.clip".to_string(), "not set".to_string(), "1.0".to_string()));
    assert_eq!(recipe.differences(&other), expected);
}

#[test]
fn the_location_of_the_data_is_not_a_difference() {
    let at = |root: &str| parse(FULL, &[&format!("data.root={root}")]).unwrap();
    assert_eq!(at("/a").differences(&at("/b")), []);
    assert_eq!(at("/a").differences(&parse(FULL, &["data.train=other"]).unwrap()).len(), 1);
}

/// Each of the engine's settings that changes the result, one at a time.
#[test]
fn the_engines_settings_are_differences() {
    for (text, sets, key, values) in [
        (FULL, &["data.resize=crop"][..], "data.resize", ["\"stretch\"", "\"crop\""]),
        (FULL, &["model.freeze=[\"a\"]"], "model.freeze", ["[\"conv1.*\", \"bn1.*\"]", "[\"a\"]"]),
        (FULL, &["model.batchnorm=local"], "model.batchnorm", ["\"synced\"", "\"local\""]),
        (FULL, &["optim.decay=all"], "optim.decay", ["\"weights\"", "\"all\""]),
        (FULL, &["optim.schedule.per=step"], "optim.schedule.per", ["\"epoch\"", "\"step\""]),
        (FULL, &["ema.decay=0.9"], "ema.decay", ["0.999", "0.9"]),
        (FULL, &["ema.warmup=true"], "ema.warmup", ["false", "true"]),
        (
            FULL,
            &["optim.group=[{ match = \"a\", weight_decay = 1 }]"],
            "optim.group",
            [
                "[{ match = [\"fc.*\"], lr_factor = 10.0 }, { match = [\"layer1.*\", \"layer2.*\"], lr_factor = 0.1, \
                 weight_decay = 0.0 }]",
                "[{ match = [\"a\"], lr_factor = 1.0, weight_decay = 1.0 }]",
            ],
        ),
        (samples::SEGMENT, &["data.ignore=255"], "data.ignore", ["0", "255"]),
        (samples::SEGMENT, &["data.train_masks=b"], "data.train_masks", ["\"label\"", "\"b\""]),
        (samples::SEGMENT, &["model.depth=2"], "model.depth", ["3", "2"]),
        (
            samples::SEGMENT,
            &["optim.schedule.milestones=[\"1 epoch\"]"],
            "optim.schedule.milestones",
            ["[\"50 steps\", \"70 steps\"]", "[\"1 epoch\"]"],
        ),
        (samples::LM, &["data.tokenizer=chars"], "data.tokenizer", ["\"bytes\"", "\"chars\""]),
        (samples::LM, &["data.test_fraction=0.5"], "data.test_fraction", ["0.2", "0.5"]),
        (samples::LM, &["model.context=16"], "model.context", ["32", "16"]),
        (samples::LM, &["optim.schedule.rise=0.5"], "optim.schedule.rise", ["0.2", "0.5"]),
        (
            super::losses::LOSSES,
            &["model.losses=[{ name = \"balance\", gates = \"g\" }]"],
            "model.losses",
            [
                "[{ name = \"clip\", weight = 1.0, left = \"image_embeds\", right = \"text_embeds\", scale = \"logit_scale\" }, { \
                 name = \"balance\", weight = 0.5, gates = \"gates\", top = 1 }]",
                "[{ name = \"balance\", weight = 0.01, gates = \"g\", top = 1 }]",
            ],
        ),
        (samples::REGRESS, &["model.loss=l1"], "model.loss", ["\"huber\"", "\"l1\""]),
    ] {
        let (mine, theirs) = (parse(text, &[]).unwrap(), parse(text, sets).unwrap());
        let [here, there] = values.map(String::from);
        assert_eq!(mine.differences(&theirs), [(key.to_string(), here, there)]);
    }
}

/// The order of a custom table's keys means nothing; its values do.
#[test]
fn custom_settings_are_one_difference() {
    let with = |custom: &str| {
        let text = format!("task = \"custom\"\n[train]\nsteps = 1\n[custom]\n{custom}");
        parse(&text, &[]).unwrap()
    };
    let mine = with("a = 1\nb = { c = [1, 2], d = \"x\" }");
    assert_eq!(mine.differences(&with("b = { d = \"x\", c = [1, 2] }\na = 1")), []);
    let found = mine.differences(&with("a = 1\nb = { c = [2, 1], d = \"x\" }"));
    assert_eq!(
        found,
        [(
            "custom".to_string(),
            "{a = 1, b = {c = [1, 2], d = \"x\"}}".to_string(),
            "{a = 1, b = {c = [2, 1], d = \"x\"}}".to_string()
        )]
    );
}

/// A checkpoint of version 0.1 holds that version's recipe, and resumes with this version.
#[test]
fn recipes_of_the_first_version_still_mean_the_same() {
    let json = r#"{"task":"classify","data":{"kind":"generated","image_size":32,"workers":"auto","classes":10,
        "train_samples":2000,"test_samples":400,"mean":[0.485,0.456,0.406],"std":[0.229,0.224,0.225],
        "augment":"none"},"model":{"name":"resnet18"},"train":{"effective_batch":64,"epochs":4,"seed":1,
        "last_batch":"keep"},"optim":{"name":"adamw","lr":0.001,"scaling":"none","weight_decay":0.01,
        "betas":[0.9,0.999],"eps":1e-8,"schedule":{"name":"cosine","warmup":"1 epoch","min_lr":1e-5}},
        "precision":{"amp":"auto"},"memory":{"micro_batch":"auto"},"checkpoint":{"every":"1 epoch","keep":2},
        "log":{"every_steps":10}}"#;
    let saved: AnyRecipe = serde_json::from_str(json).unwrap();
    assert_eq!(Recipe::load("demo", &[]).unwrap().resolved().unwrap().differences(&saved), []);
}
