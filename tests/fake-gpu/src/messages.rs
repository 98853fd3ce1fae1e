//! Messages for people, and the trace of calls.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::{env, process};

static TRACE: LazyLock<Option<Mutex<File>>> = LazyLock::new(|| {
    let path = env::var("FAKE_GPU_TRACE").ok().filter(|path| !path.is_empty())?;
    let path = if path == "-" { "/dev/stderr".into() } else { format!("{path}.{}", process::id()) };
    OpenOptions::new().append(true).create(true).open(path).ok().map(Mutex::new)
});

/// Writes a message for people.
pub(crate) fn report(message: &str) {
    // A closed standard error must not end the program.
    let _ = writeln!(io::stderr(), "fake-gpu: {message}");
    trace(message);
}

/// Ends the process with a message, without its exit handlers: they would ask for what is missing.
pub(crate) fn end(message: &str) -> ! {
    report(message);
    // SAFETY: always safe to call.
    unsafe { libc::_exit(1) }
}

pub(crate) fn is_tracing() -> bool {
    TRACE.is_some()
}

/// Adds a line to the trace.
pub(crate) fn trace(line: &str) {
    if let Some(file) = &*TRACE {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        let _ = writeln!(file.lock().unwrap_or_else(PoisonError::into_inner), "{thread} {line}");
    }
}
