//! A backend from outside: an MPI library, which a program offers to this crate.

use std::sync::OnceLock;

use super::{GlooGroup, ProcessGroup, RendezvousError};

/// Connects the ranks of a group by MPI, and returns whether all exchange tensors of GPUs. If one rank cannot connect,
/// all return the first one's reason.
pub type ConnectMpi = fn(&GlooGroup) -> Result<(Box<dyn ProcessGroup>, bool), RendezvousError>;

static MPI: OnceLock<ConnectMpi> = OnceLock::new();

/// Makes this process use MPI where [`DTRAIN_TRANSPORT`](super::Transport) is `mpi`. The first offer counts.
pub fn offer_mpi(connect: ConnectMpi) {
    MPI.get_or_init(|| connect);
}

/// Returns whether this process was offered MPI.
pub fn has_mpi() -> bool {
    MPI.get().is_some()
}

pub(super) fn connect_mpi(gloo: &GlooGroup) -> Result<(Box<dyn ProcessGroup>, bool), RendezvousError> {
    match MPI.get() {
        Some(connect) => connect(gloo),
        None => {
            let reason = "this program has no MPI; use dtrain-worker-mpi, of the package dtrain-mpi";
            Err(RendezvousError::NoMpi(reason.into()))
        }
    }
}
