//! Fake GPUs, which compute no values: comparisons of values say nothing on them.

use std::fs;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Why a comparison is skipped.
pub const NO_VALUES: &str = "fake GPUs compute no values";

/// The file that all libraries of a fake machine are. No real driver has such a library.
const LIBRARY: &str = "/libfake-gpu.so";

static SKIPPED: AtomicUsize = AtomicUsize::new(0);

/// Returns whether this process has loaded the libraries of fake GPUs.
pub fn is_fake_gpu() -> bool {
    fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains(LIBRARY))
}

/// Returns whether values agree. On fake GPUs returns true, and counts a difference as a skipped comparison.
pub fn agrees(values_agree: bool) -> bool {
    static IS_FAKE: LazyLock<bool> = LazyLock::new(is_fake_gpu);
    if !values_agree && *IS_FAKE {
        SKIPPED.fetch_add(1, Ordering::Relaxed);
        return true;
    }
    values_agree
}

/// Prints the number of skipped comparisons, if there are any: `skipped 3 comparisons: REASON`.
pub fn report() {
    match SKIPPED.load(Ordering::Relaxed) {
        0 => {}
        skipped => println!("skipped {skipped} comparisons: {NO_VALUES}"),
    }
}

/// Panics unless values agree; see [`agrees`].
#[macro_export]
macro_rules! assert_values {
    ($agree:expr, $($message:tt)+) => {
        assert!($crate::no_values::agrees($agree), $($message)+)
    };
}
