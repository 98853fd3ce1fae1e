//! Where this process is, said when it is ended by SIGABRT: by a launcher that has found that it hangs, or by libtorch itself.

use std::backtrace::Backtrace;
use std::io::{self, Write};

use signal_hook::consts::SIGABRT;
use signal_hook::low_level;

/// Longer than it takes to find the names in libtorch, and an end should it never come to one.
const PATIENCE_S: u32 = 30;

/// From now on the thread that gets SIGABRT prints its stack to standard error before the process ends by the signal. The kernel
/// prefers the main thread, which is the one that trains.
pub fn print_on_abort() -> io::Result<()> {
    // SAFETY: the handler does what a signal handler may not: it allocates and takes locks. The process ends with it in any case,
    // and it cannot wait for ever: an alarm, set first and by a call that is allowed, ends the process should the interrupted
    // thread hold what it needs.
    unsafe { low_level::register(SIGABRT, on_abort) }?;
    Ok(())
}

fn on_abort() {
    // SAFETY: alarm only sets a timer; SIGALRM's default is to end the process.
    unsafe { libc::alarm(PATIENCE_S) };
    let stack = Backtrace::force_capture().to_string();
    // There is nobody to tell that it could not be told.
    let _ = writeln!(
        io::stderr(),
        "where the thread was that got SIGABRT, the innermost call last:\n{}",
        innermost_last(&stack)
    );
    let _ = low_level::emulate_default_handler(SIGABRT);
}

/// A printed [`Backtrace`] the other way round, so that the last lines of a log say most, and without the calls around `main`
/// and of the signal's handling.
fn innermost_last(stack: &str) -> String {
    let begins = |line: &str| {
        let (number, _) = line.split_once(": ").unwrap_or_default();
        !number.trim().is_empty() && number.trim().bytes().all(|byte| byte.is_ascii_digit())
    };
    let mut frames: Vec<Vec<&str>> = Vec::new();
    for line in stack.lines() {
        match frames.last_mut() {
            Some(frame) if !begins(line) => frame.push(line),
            _ => frames.push(vec![line]),
        }
    }
    let named = |frame: &Vec<&str>, name: &str| frame[0].contains(name);
    let outermost =
        frames.iter().position(|frame| named(frame, "__rust_begin_short_backtrace")).unwrap_or(frames.len());
    let of_the_handler = |frame: &Vec<&str>| {
        let names = ["signal_hook", "signal-hook", "__restore_rt"];
        frame.iter().any(|line| names.iter().any(|name| line.contains(name)))
    };
    let mut handler = frames[..outermost].iter().rposition(of_the_handler).map_or(0, |last| last + 1);
    // The way back from a handler is the kernel's, and has no name.
    if handler > 0 && frames.get(handler).is_some_and(|frame| named(frame, "<unknown>")) {
        handler += 1;
    }
    let lines: Vec<&str> = frames[handler..outermost].iter().rev().flatten().copied().collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_comes_last_and_what_does_not_is_left_out() {
        let printed = "   0: dtrain_torch_shim::stacks::on_abort\n             at stacks.rs:30\n   1: handler\n             at signal-hook-registry-1.4.8/src/lib.rs\n   \
                       2: <unknown>\n   3: futex_wait\n   4: shared::reduce\n             at reduce.rs:7:3\n   5: std::sys::backtrace::\
                       __rust_begin_short_backtrace\n   6: main\n";
        assert_eq!(
            innermost_last(printed),
            "   4: shared::reduce\n             at reduce.rs:7:3\n   3: futex_wait"
        );
        assert_eq!(innermost_last("   0: a\n   1: b"), "   1: b\n   0: a");
        assert_eq!(innermost_last(""), "");
        assert_eq!(innermost_last("disabled backtrace"), "disabled backtrace");
    }
}
