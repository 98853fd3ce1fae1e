use super::inbox::Inbox;
use dtrain_agent::io::output::{Screen, Tail};
use dtrain_agent::io::store::Met;
use dtrain_agent::local::Verdict;
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

/// Waits until the screen has taken everything, unless the user asks a second time to stop.
pub(super) fn close(screen: Screen, inbox: &Inbox) {
    drop((screen.chunks, screen.notices));
    inbox.wait(&screen.done);
}
