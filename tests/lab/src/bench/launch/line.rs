//! The lines of the benchmark's workers, each of which says whose it is and which. The program that prints them and the
//! benchmark that looks for them have this file in common.

/// What stands before a line's own words, and in no launcher's prefix.
pub(crate) const MARK: u8 = b'@';

/// The words of a training's line of progress, so that lines are as long as those are.
const WORDS: &str = "loss 2.3026 lr 1.000e-03 grad_norm 0.7071 159.1 images/s";

/// The line of a rank, without its end.
pub(crate) fn line(rank: u32, index: u32) -> String {
    format!("{}{rank} {index:06} {WORDS}", char::from(MARK))
}
