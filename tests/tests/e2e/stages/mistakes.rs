//! Bad input: one clear error, exit code 2.

use super::*;

/// Ranks, settings, and words of the error.
type Mistake = (usize, &'static [&'static str], &'static [&'static str]);

/// One that needs the network, one that needs the number of ranks, and one of the recipe alone. Unit tests of the trainer make the
/// others.
const MISTAKES: [Mistake; 3] = [
    (2, &["stage.0.freeze=[\"encoder.*\"]"], &["stage[0].freeze", "matches no parameter; the nearest are"]),
    (
        2,
        &["stage.1.effective_batch=1", "stage.1.micro_batch=auto"],
        &["stage \"full\"", "effective batch of 1"],
    ),
    (1, &["train.epochs=3"], &["train.epochs", "each [[stage]] states its length"]),
];

#[test]
fn invalid_stages_are_errors() {
    let sandbox = Sandbox::new(UNET);
    for &(nproc, sets, words) in &MISTAKES {
        let text = expect_exit_code(&sandbox.launch(nproc, "run", sets), 2);
        for word in words {
            assert!(text.contains(word), "no {word:?} in: {text}");
        }
        assert_eq!(text.lines().filter(|line| line.contains("error:")).count(), 1, "{text}");
    }
}
