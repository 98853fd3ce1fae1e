//! Output that repeats until a request to stop: on a terminal, each frame is drawn over the previous one.

use anyhow::Context;
use crossbeam_channel::{Receiver, bounded};
use dtrain_agent::io::process::handlers;
use dtrain_agent::signals;
use dtrain_common::exit::ExitStatus;
use std::io;
use std::time::Instant;

/// Returns the requests to stop of this process, from now on.
pub(crate) fn stop_requests() -> anyhow::Result<Receiver<i32>> {
    let (sender, stopped) = bounded(1);
    handlers::listen(&signals::STOP, move |signal, _| {
        // The first signal is enough.
        let _ = sender.try_send(signal);
    })
    .context("cannot receive signals")?;
    Ok(stopped)
}

/// Waits until `next`, or returns the end of the command. Ctrl-C is the usual end.
pub(crate) fn wait(stopped: &Receiver<i32>, next: Instant) -> Option<ExitStatus> {
    match stopped.recv_deadline(next) {
        Ok(signals::INT) => Some(ExitStatus::Success),
        Ok(signal) => Some(ExitStatus::Signal(signal)),
        Err(_) => None,
    }
}

/// Returns columns and rows of the terminal at standard output; without a limit if unknown.
pub(crate) fn size_of_terminal() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (usize::MAX, usize::MAX),
    }
}

/// Frames that are drawn over each other.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// Lines of the latest frame.
    painted: usize,
}

impl Frames {
    /// Returns the text that replaces the previous frame by this one, cut to the terminal.
    pub(crate) fn next(&mut self, frame: &str, size: (usize, usize)) -> String {
        let frame = cut(frame, size);
        let lines = std::mem::replace(&mut self.painted, frame.lines().count());
        // Moves up by that number of lines and erases below: the new frame may be shorter.
        let over = if lines == 0 { String::new() } else { format!("\x1b[{lines}A\r\x1b[J") };
        over + &frame
    }
}

/// Cuts a frame to the terminal: wrapped or scrolled lines cannot be redrawn. The cursor takes the last row.
fn cut(frame: &str, (columns, rows): (usize, usize)) -> String {
    let lines = frame.lines().take(rows.saturating_sub(1));
    lines.map(|line| line.chars().take(columns).chain(['\n']).collect::<String>()).collect()
}
