//! Bad input: one clear error, exit code 2.

use super::*;

/// Ranks, settings, and words of the error.
type Mistake = (usize, &'static [&'static str], &'static [&'static str]);

/// First one that needs the network, one that needs the number of ranks, and one of the recipe alone. Unit tests of the
/// trainer make the others too.
const MISTAKES: [Mistake; 11] = [
    (2, &["stage.0.freeze=[\"encoder.*\"]"], &["stage[0].freeze", "matches no parameter; the nearest are"]),
    (
        2,
        &["stage.1.effective_batch=1", "stage.1.micro_batch=auto"],
        &["stage \"full\"", "effective batch of 1"],
    ),
    (1, &["train.epochs=3"], &["train.epochs", "each [[stage]] states its length"]),
    (2, &["stage.1.unfreeze.1.match=\"dwon*\""], &["stage[1].unfreeze[1].match", "matches no parameter"]),
    (
        1,
        &["stage.1.unfreeze.1.match=\"up1.*\""],
        &["stage[1].unfreeze[1].match", "no parameter that it matches is frozen", "remove the entry"],
    ),
    (
        1,
        &["stage.1.freeze=[\"up*\"]"],
        &["stage[1].unfreeze[0].match", "remove it from freeze, or raise `at`"],
    ),
    (1, &["stage.0.freeze=[\"*\"]"], &["stage \"head\" begins with every parameter frozen"]),
    (
        1,
        &["stage.0.group=[{ match = \"inc.*\", lr_factor = 2 }]"],
        &["stage[0].group[0]", "frozen in this stage", "remove the group"],
    ),
    (1, &["stage.1.epochs=1"], &["stage[1].steps", "remove one of the two"]),
    (1, &["stage.2.epochs=1"], &["stage.0 to stage.1"]),
    (
        1,
        &["optim.schedule.warmup=\"5 steps\""],
        &["optim.schedule.warmup", "longer than stage \"head\" of 4 steps", "shorten it"],
    ),
];

#[test]
fn invalid_stages_are_errors() {
    let sandbox = Sandbox::new(UNET);
    for &(nproc, sets, words) in thorough::cases(&MISTAKES, 3) {
        let output = sandbox.launch(nproc, "run", sets);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        for word in words {
            assert!(text.contains(word), "no {word:?} in: {text}");
        }
        assert_eq!(text.lines().filter(|line| line.contains("error:")).count(), 1, "{text}");
    }
}
