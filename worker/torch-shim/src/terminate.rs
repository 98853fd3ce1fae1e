//! The end of a process in which a destructor of libtorch throws.

use std::panic::catch_unwind;
use std::sync::OnceLock;

use crate::ffi::{self, Text};

static REPORT: OnceLock<fn(&str)> = OnceLock::new();

/// Makes `report` the last act of a process in which C++ throws where nobody can catch it, with the exception's message. The exit
/// code is then 1. A later call has no effect. After an error of a GPU, the destructors of its tensors throw.
pub fn on_lost_exception(report: fn(&str)) {
    let _ = REPORT.set(report);
    ffi::dt_on_terminate(tell);
}

extern "C" fn tell(message: Text<'_>) {
    let message = message.to_owned();
    // A panic has printed its own message.
    let _ = catch_unwind(|| REPORT.get().map(|report| report(&message)));
}
