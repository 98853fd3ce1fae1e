//! Panics of libraries that read files.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether this thread runs the code of [`caught`].
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs the code of a library that may panic on a damaged file. Returns nothing after a panic, which is not printed. What `read`
/// has changed must not be used then.
pub(crate) fn caught<T>(read: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_CAUGHT.get() {
                print(info);
            }
        }));
    });
    let before = IS_CAUGHT.replace(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(read));
    IS_CAUGHT.set(before);
    outcome.ok()
}

#[cfg(test)]
mod tests {
    use super::caught;

    #[test]
    fn a_panic_is_nothing_and_the_thread_goes_on() {
        assert_eq!(caught(|| caught(|| panic!("of a library")).unwrap_or(7)), Some(7));
        assert_eq!(caught(|| -> u8 { panic!("of a library") }), None);
        assert!(std::thread::spawn(|| panic!("of ours")).join().is_err());
    }
}
