//! The thread of a node's first rank that exchanges with the other nodes.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use dtrain_shared_memory::{Member, Operation as Reduce, Pending, Segment};
use tch::Tensor;

use super::NamedFaults;
use crate::{CollectiveError, GlooGroup, Operation, ProcessGroup, ReduceOp, Work};

/// Set when the exchange has ended: the copying by the node's other ranks, or an error.
pub(super) type Outcome = OnceLock<Result<Pending, CollectiveError>>;

/// The exchange of one part.
pub(super) struct Exchange {
    pub(super) reduced: Pending,
    /// The part in this rank's region.
    pub(super) part: Tensor,
    pub(super) op: ReduceOp,
    /// The copying by the node's other ranks.
    pub(super) spread: Reduce,
    pub(super) segment: Arc<Segment>,
    pub(super) begun: Instant,
    pub(super) names: NamedFaults,
    pub(super) outcome: Arc<Outcome>,
}

/// Executes exchanges in the order of their start.
#[derive(Debug)]
pub(super) struct Exchanger {
    started: Sender<Exchange>,
    thread: JoinHandle<GlooGroup>,
}

impl Exchanger {
    /// Starts a thread named `node-exchange`.
    pub(super) fn new(between: GlooGroup, spreader: Member) -> io::Result<Self> {
        let (started, exchanges) = channel();
        let thread = std::thread::Builder::new()
            .name("node-exchange".into())
            .spawn(move || run(&exchanges, between, spreader))?;
        Ok(Self { started, thread })
    }

    pub(super) fn start(&self, exchange: Exchange) -> Exchanging {
        let (outcome, names) = (Arc::clone(&exchange.outcome), exchange.names.clone());
        // If the thread has panicked, dropping the exchange sets its outcome.
        let _ = self.started.send(exchange);
        Exchanging { outcome, names }
    }

    /// Ends the thread after the started exchanges, and returns the group of the nodes.
    pub(super) fn close(self) -> Option<GlooGroup> {
        drop(self.started);
        self.thread.join().ok()
    }
}

fn run(exchanges: &Receiver<Exchange>, mut between: GlooGroup, spreader: Member) -> GlooGroup {
    let mut failed = None;
    for exchange in exchanges {
        let result = exchange.execute(&mut between, &spreader);
        failed = result.as_ref().err().cloned();
        let _ = exchange.outcome.set(result);
        if failed.is_some() {
            break;
        }
    }
    // Ends earlier copies. After a failure, the node's other ranks then notice that this rank left.
    spreader.close();
    if let Some(error) = failed {
        for exchange in exchanges {
            let _ = exchange.outcome.set(Err(rename(&error, exchange.names.operation)));
        }
    }
    between
}

impl Exchange {
    /// Waits for the node, exchanges, and lets the node's other ranks copy.
    fn execute(&self, between: &mut GlooGroup, spreader: &Member) -> Result<Pending, CollectiveError> {
        self.reduced.wait().map_err(|fault| self.names.error(fault))?;
        let operation = self.names.operation;
        let left = || operation.timeout.saturating_sub(self.begun.elapsed());
        between.set_timeout(left());
        let exchanged = between.all_reduce(&self.part, self.op).and_then(<dyn Work>::wait);
        exchanged.map_err(|error| rename(&error, operation))?;
        let spread = spreader.start(self.spread, &self.segment, left());
        spread.map_err(|fault| self.names.error(fault))
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let ended = self.names.operation.failed("this rank left the group before the operation ended".into());
        let _ = self.outcome.set(Err(ended));
    }
}

/// Returns the same error of another operation.
fn rename(error: &CollectiveError, operation: Operation) -> CollectiveError {
    match error.clone() {
        CollectiveError::InvalidTensor(_, reason) => CollectiveError::InvalidTensor(operation, reason),
        CollectiveError::TimedOut(_, late) => CollectiveError::TimedOut(operation, late),
        CollectiveError::PeerLost(_, reason) => CollectiveError::PeerLost(operation, reason),
        CollectiveError::OutOfMemory(_, reason) => CollectiveError::OutOfMemory(operation, reason),
        CollectiveError::Backend(_, reason) => CollectiveError::Backend(operation, reason),
    }
}

/// A part whose exchange was started.
pub(super) struct Exchanging {
    outcome: Arc<Outcome>,
    names: NamedFaults,
}

impl Work for Exchanging {
    fn wait(self: Box<Self>) -> Result<(), CollectiveError> {
        match self.outcome.wait() {
            Ok(spread) => spread.wait().map_err(|fault| self.names.error(fault)),
            Err(error) => Err(error.clone()),
        }
    }
}
