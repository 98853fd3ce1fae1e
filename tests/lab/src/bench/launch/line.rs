//! The lines of the benchmark's workers, each with its rank and number. The printing program and the
//! benchmark share this file.

/// Begins a line; no launcher's prefix contains it.
pub(crate) const MARK: u8 = b'@';

/// The text of a training's progress line, for lines of realistic length.
const WORDS: &str = "loss 2.3026 lr 1.000e-03 grad_norm 0.7071 159.1 images/s";

/// Returns the line of a rank, without its newline.
pub(crate) fn line(rank: u32, index: u32) -> String {
    format!("{}{rank} {index:06} {WORDS}", char::from(MARK))
}
