//! `[precision]`, `[memory]`, `[reduce]` and `[ema]`.

use super::samples::{CUSTOM, LM};
use super::*;

#[test]
fn a_scaled_loss_is_for_float16() {
    assert_eq!(small(&["precision.amp=fp16"]).precision.loss_scale, Some(65536.0));
    assert_eq!(small(&["precision.loss_scale=1"]).precision.loss_scale, Some(1.0));
    for amp in ["off", "bf16"] {
        let set = format!("precision.amp={amp}");
        assert_eq!(small(&[&set]).precision.loss_scale, None);
        let part = format!("precision.amp is {amp:?}");
        expect_error(SMALL, &[&set, "precision.loss_scale=1024"], "precision.loss_scale", &part);
    }
    expect_set_error(SMALL, "precision.loss_scale=0", "a number above 0");
    expect_set_error(SMALL, "precision.amp=fp8", "\"auto\", \"off\", \"bf16\", \"fp16\"");
}

#[test]
fn tf32_needs_float32_operations() {
    assert_eq!(small(&[]).precision.tf32, Switch::Auto);
    for (word, switch) in
        [("auto", Switch::Auto), ("true", Switch::Value(true)), ("false", Switch::Value(false))]
    {
        let recipe = small(&[&format!("precision.tf32={word}"), "precision.amp=off"]);
        assert_eq!(recipe.precision.tf32, switch);
        let saved = recipe.to_toml().unwrap();
        assert_eq!(parse(&saved, &[]).unwrap(), recipe);
    }
    for amp in ["bf16", "fp16"] {
        let set = format!("precision.amp={amp}");
        expect_error(
            SMALL,
            &[&set, "precision.tf32=true"],
            "precision.tf32",
            &format!("precision.amp = {amp:?}"),
        );
        // A trainer may turn autocast off.
        assert!(parse(CUSTOM, &[&set, "precision.tf32=true"]).is_ok());
    }
    for wrong in ["precision.tf32=on", "precision.tf32=1", "precision.tf32=[]"] {
        expect_error(SMALL, &[wrong], "precision.tf32", "\"auto\", true or false");
    }
}

#[test]
fn buckets_are_sizes() {
    let recipe = small(&["reduce.bucket=1 MiB", "reduce.first_bucket=1024", "reduce.overlap=false"]);
    assert_eq!((recipe.reduce.bucket, recipe.reduce.first_bucket), (ByteSize(1 << 20), ByteSize(1024)));
    for (set, part) in [
        ("reduce.bucket=1 KB", "a size of at least 1 KiB"),
        ("reduce.first_bucket=1023", "a size of at least 1 KiB"),
        ("reduce.bucket=-1", "a size of at least 1 KiB"),
        ("reduce.bucket=2.5", "a size of at least 1 KiB"),
        ("reduce.bucket=fast", "is not a size; write for example"),
        ("reduce.bucket=9999 PiB", "is too large"),
        ("reduce.overlap=yes", "true or false"),
        ("reduce.compress=fp8", "\"none\", \"bf16\", \"fp16\""),
        ("memory.shard_optimizer=2", "true or false"),
    ] {
        expect_set_error(SMALL, set, part);
    }
}

#[test]
fn the_average_has_a_decay() {
    let recipe = parse(LM, &["ema.decay=0.9999"]).unwrap();
    assert_eq!(recipe.ema.map(|ema| (ema.decay, ema.warmup)), Some((0.9999, true)));
    expect_error(LM, &["ema.warmup=true"], "ema.decay", "missing; state the share that the average keeps");
    expect_error(&format!("{SMALL}[ema]\n"), &[], "ema.decay", "missing");
    for decay in ["0", "1", "-0.5", "nan"] {
        expect_error(LM, &[&format!("ema.decay={decay}")], "ema.decay", "a number above 0 and below 1");
    }
}

#[test]
fn checkpoints_are_written_after_training_or_time() {
    let every = |set: &str| small(&[set]).checkpoint.every;
    assert_eq!(every("checkpoint.every=10 min"), Every::Time(std::time::Duration::from_secs(600)));
    assert_eq!(every("checkpoint.every=2 epochs"), Every::Span(Span::Epochs(2.0)));
    for (set, part) in [
        ("checkpoint.every=0 min", "or a length of time"),
        ("checkpoint.every=0 steps", "is zero"),
        ("checkpoint.every=often", "epochs"),
        ("checkpoint.every=5", "a length of training or of time"),
        ("checkpoint.keep_every=10 min", "which only checkpoint.every takes"),
        ("checkpoint.keep_every=0 epochs", "is zero"),
        ("checkpoint.on_failure=ignore", "\"stop\", \"continue\""),
    ] {
        expect_set_error(SMALL, set, part);
    }
}

#[test]
fn the_best_checkpoint_is_by_a_figure_and_a_goal() {
    assert_eq!(small(&[]).checkpoint.best, None);
    let best = small(&["checkpoint.best=  min   mean_iou "]).general.checkpoint.best.unwrap();
    assert_eq!((best.goal, best.figure.as_str()), (Goal::Min, "mean_iou"));
    assert_eq!(best.to_string(), "min mean_iou");
    for set in [
        "checkpoint.best=accuracy",
        "checkpoint.best=max",
        "checkpoint.best=most accuracy",
        "checkpoint.best=max accuracy loss",
        "checkpoint.best=max \"accuracy\"",
        "checkpoint.best=3",
        "checkpoint.best=",
    ] {
        expect_error(SMALL, &[set], "checkpoint.best", "such as \"max accuracy\"");
    }
}

#[test]
fn a_better_figure_is_finite_and_not_only_as_good() {
    let best = |text: &str| text.parse::<Best>().unwrap();
    for (text, better, worse) in [("max x", 2.0, 1.0), ("min x", 1.0, 2.0)] {
        let best = best(text);
        assert!(best.is_better(worse, None));
        assert!(best.is_better(better, Some(worse)));
        assert!(!best.is_better(worse, Some(better)));
        assert!(!best.is_better(better, Some(better)));
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(!best.is_better(value, None), "{text} {value}");
            assert!(!best.is_better(value, Some(0.0)), "{text} {value}");
        }
    }
}

#[test]
fn a_key_is_stated_by_the_file_or_an_override() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.toml");
    std::fs::write(&file, "task = \"lm\"\n[checkpoint]\nkeep = 2\n").unwrap();
    let states = |set: &[String], key: &str| AnyRecipe::states(file.to_str().unwrap(), set, key).unwrap();
    assert!(states(&[], "checkpoint.keep") && !states(&[], "checkpoint.every"));
    // Also if it is the default.
    assert!(states(&["checkpoint.every=1 epoch".to_owned()], "checkpoint.every"));
    assert!(AnyRecipe::states("nowhere", &[], "checkpoint.every").is_err());
}
