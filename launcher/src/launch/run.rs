use super::inbox::{Inbox, Waited};
use dtrain_agent::io::output::{Screen, Tail, Unkept};
use dtrain_agent::io::store::Met;
use dtrain_agent::local::{Asked, Cause, Verdict};
use dtrain_agent::signals;
use std::io;

/// An attempt that is over; some of its output may still wait for the screen.
pub(super) struct Run {
    pub(super) verdict: Verdict,
    /// By rank; none for a worker that was never started.
    pub(super) pids: Vec<Option<u32>>,
    /// The last lines of standard error by rank.
    pub(super) tails: Vec<Tail>,
    pub(super) not_started: Option<(usize, io::Error)>,
    /// Logs that are not whole, in words.
    pub(super) unkept: Option<String>,
    /// Who came to the store, where one was served.
    pub(super) met: Option<Met>,
    /// Whether any worker has beaten.
    pub(super) beaten: bool,
    /// The user does not want to wait for the screen.
    pub(super) given_up: bool,
}

impl Run {
    /// Whether the workers were stopped by SIGTERM, as batch systems do, before anything could be lost.
    pub(super) fn is_stopped_before_its_first_step(&self) -> bool {
        let signal = signals::TERM;
        self.verdict.cause == (Cause::Stopped { signal }) && !self.beaten
    }
    /// With what came while the readers of its output came to their end.
    pub(super) fn after(mut self, waited: Waited, unkept: &Unkept) -> Self {
        let asked = waited.stopped.map(|signal| Asked::Request { signal });
        self.verdict.asked = self.verdict.asked.or(asked);
        self.verdict.notices.extend(waited.notices);
        self.unkept = unkept.report();
        self.given_up = waited.given_up;
        self
    }
}

/// Waits until the screen has taken everything, unless the user asks a second time to stop.
pub(super) fn close(screen: Screen, inbox: &Inbox) {
    drop((screen.chunks, screen.notices));
    inbox.wait(&screen.done);
}
