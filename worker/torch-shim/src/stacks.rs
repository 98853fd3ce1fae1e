//! The stack at SIGABRT, which a launcher sends to a hanging process, or libtorch raises.

use std::backtrace::Backtrace;
use std::io::{self, Write};

use signal_hook::consts::SIGABRT;
use signal_hook::low_level;

/// Longer than finding the symbol names in libtorch takes; ends the process if that hangs.
const ALARM_S: u32 = 30;

/// Installs a handler: the thread that gets SIGABRT prints its stack to standard error, then the signal ends
/// the process. The kernel prefers the main thread, which trains.
pub fn print_on_abort() -> io::Result<()> {
    // SAFETY: the handler allocates and takes locks, which a signal handler must not do. But the process ends
    // anyway, and an alarm, set first, ends it if the interrupted thread holds a needed lock.
    unsafe { low_level::register(SIGABRT, on_abort) }?;
    Ok(())
}

fn on_abort() {
    // SAFETY: alarm only sets a timer; by default SIGALRM ends the process.
    unsafe { libc::alarm(ALARM_S) };
    let stack = Backtrace::force_capture().to_string();
    // If the write fails, the error cannot be reported.
    let _ = writeln!(
        io::stderr(),
        "stack of the thread that got SIGABRT, the innermost call last:\n{}",
        innermost_last(&stack)
    );
    let _ = low_level::emulate_default_handler(SIGABRT);
}

/// Reverses a printed [`Backtrace`], so that the last lines of a log tell most. Omits calls around `main`.
fn innermost_last(stack: &str) -> String {
    let is_frame_start = |line: &str| {
        let (number, _) = line.split_once(": ").unwrap_or_default();
        !number.trim().is_empty() && number.trim().bytes().all(|byte| byte.is_ascii_digit())
    };
    let mut frames: Vec<Vec<&str>> = Vec::new();
    for line in stack.lines() {
        match frames.last_mut() {
            Some(frame) if !is_frame_start(line) => frame.push(line),
            _ => frames.push(vec![line]),
        }
    }
    let named = |frame: &Vec<&str>, name: &str| frame[0].contains(name);
    let outermost =
        frames.iter().position(|frame| named(frame, "__rust_begin_short_backtrace")).unwrap_or(frames.len());
    let is_handler = |frame: &Vec<&str>| {
        let names = ["signal_hook", "signal-hook", "__restore_rt"];
        frame.iter().any(|line| names.iter().any(|name| line.contains(name)))
    };
    let mut handler = frames[..outermost].iter().rposition(is_handler).map_or(0, |last| last + 1);
    // The kernel's return from a handler has no name.
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
    fn the_innermost_call_is_last_and_frames_of_handlers_are_omitted() {
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
