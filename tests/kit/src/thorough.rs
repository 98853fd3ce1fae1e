//! Cases that a check leaves out for time.

/// Set by `cargo xtask check --thorough`: every test runs all its cases.
pub const THOROUGH: &str = "DTRAIN_THOROUGH";

/// Returns whether tests run all their cases.
pub fn is_wanted() -> bool {
    std::env::var_os(THOROUGH).is_some_and(|value| !value.is_empty())
}

/// Returns the cases of a test: all in a thorough check, else the first `count`. So the first ones stand for the others.
pub fn cases<T>(all: &[T], count: usize) -> &[T] {
    debug_assert!(count < all.len(), "a thorough check has more cases");
    &all[..if is_wanted() { all.len() } else { count }]
}

/// Returns the number of ranks of a test whose subject is not the ranks.
pub fn ranks() -> usize {
    if is_wanted() { 2 } else { 1 }
}

/// Returns whether this check leaves out what follows in a test, and prints it. `why`: where a normal check sees the same defect.
pub fn leaves_out(why: &str) -> bool {
    let is_left_out = !is_wanted();
    if is_left_out {
        eprintln!("left out: {why}");
    }
    is_left_out
}
