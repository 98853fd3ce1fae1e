//! Bad input: one clear error, exit code 2.

use super::*;

#[test]
fn invalid_stages_are_errors() {
    let sandbox = Sandbox::new(UNET);
    let refused = |nproc: usize, sets: &[&str], words: &[&str]| {
        let output = sandbox.launch(nproc, "run", sets);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        for word in words {
            assert!(text.contains(word), "no {word:?} in: {text}");
        }
        assert_eq!(text.lines().filter(|line| line.contains("error:")).count(), 1, "{text}");
    };
    refused(
        2,
        &["stage.0.freeze=[\"encoder.*\"]"],
        &["stage[0].freeze", "matches no parameter; the nearest are"],
    );
    refused(
        2,
        &["stage.1.unfreeze.1.match=\"dwon*\""],
        &["stage[1].unfreeze[1].match", "matches no parameter"],
    );
    refused(
        1,
        &["stage.1.unfreeze.1.match=\"up1.*\""],
        &["stage[1].unfreeze[1].match", "no parameter that it matches is frozen", "remove the entry"],
    );
    refused(
        1,
        &["stage.1.freeze=[\"up*\"]"],
        &["stage[1].unfreeze[0].match", "remove it from freeze, or raise `at`"],
    );
    refused(1, &["stage.0.freeze=[\"*\"]"], &["stage \"head\" begins with every parameter frozen"]);
    refused(
        1,
        &["stage.0.group=[{ match = \"inc.*\", lr_factor = 2 }]"],
        &["stage[0].group[0]", "frozen in this stage", "remove the group"],
    );
    refused(1, &["train.epochs=3"], &["train.epochs", "each [[stage]] states its length"]);
    refused(1, &["stage.1.epochs=1"], &["stage[1].steps", "remove one of the two"]);
    refused(1, &["stage.2.epochs=1"], &["stage.0 to stage.1"]);
    refused(
        1,
        &["optim.schedule.warmup=\"5 steps\""],
        &["optim.schedule.warmup", "longer than stage \"head\" of 4 steps", "shorten it"],
    );
    refused(
        2,
        &["stage.1.effective_batch=1", "stage.1.micro_batch=auto"],
        &["stage \"full\"", "effective batch of 1"],
    );
}
