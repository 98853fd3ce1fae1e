//! Collectives of an MPI library, by rsmpi.
//!
//! MPI's calls block, and most libraries allow only one thread to make them. So one thread makes all calls, in
//! their order; a [`Work`] waits for its answer. It initialises MPI, and finalises it after `shutdown`. Without
//! `shutdown` MPI stays initialised: a rank that ends so makes `mpirun` end the others, which may wait for it.
//!
//! MPI has no half precision: such tensors are reduced in float32, and rounded once.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tch::{Device, Kind, TchError, Tensor};

use dtrain_common::env::{TORCHELASTIC_RUN_ID, of_process};
use dtrain_worker::collectives::{
    Caller, Collective, CollectiveError, CompletedWork, GlooGroup, Operation, ProcessGroup, RendezvousError,
    Work, first_reason, offer_mpi,
};

use crate::calls::{Call, Calls};
use crate::memory;

/// The worker of a launcher has the variables of the launcher's MPI process: MPI would take both for one process.
const BY_LAUNCHER: &str = "a launcher started the ranks; start each with mpirun or srun --mpi";

/// Makes this process use MPI where `DTRAIN_TRANSPORT` is `mpi`. Call it first in `main`.
pub fn offer() {
    offer_mpi(connect);
}

/// Connects the ranks of `gloo` by MPI, and returns whether all exchange tensors of GPUs. If one rank cannot connect, all
/// return the first one's reason.
fn connect(gloo: &GlooGroup) -> Result<(Box<dyn ProcessGroup>, bool), RendezvousError> {
    let by_launcher = of_process(TORCHELASTIC_RUN_ID).map(|_| BY_LAUNCHER);
    if let Some(reason) = first_reason(gloo, by_launcher)? {
        return Err(RendezvousError::NoMpi(reason));
    }
    let group = MpiGroup::connect(gloo.rank(), gloo.size());
    match (first_reason(gloo, group.as_ref().err().map(String::as_str))?, group) {
        (None, Ok(group)) => {
            // Each rank may have loaded another library.
            let no = (!group.takes_gpus).then_some("");
            let takes_gpus = first_reason(gloo, no)?.is_none();
            Ok((Box::new(group), takes_gpus))
        }
        (Some(reason), _) | (None, Err(reason)) => Err(RendezvousError::NoMpi(reason)),
    }
}

/// A group of the processes that `mpirun` or a similar program started.
#[derive(Debug)]
pub struct MpiGroup {
    calls: Calls,
    caller: Caller,
    /// Whether the library reads and writes memory of GPUs.
    takes_gpus: bool,
}

impl MpiGroup {
    /// Connects `size` ranks, which need not have the order of MPI's. Returns why this rank cannot.
    fn connect(rank: usize, size: usize) -> Result<Self, String> {
        let calls = Calls::start(rank, size)?;
        Ok(Self { calls, caller: Caller::new(rank, size), takes_gpus: memory::takes_gpus() })
    }

    /// Returns what MPI gets, and where its result must be copied afterwards.
    fn stage(&self, collective: Collective<'_>) -> Result<(Staged, Option<Tensor>), TchError> {
        let (input, output) = (collective.input().f_detach()?, collective.output().f_detach()?);
        let device = if self.takes_gpus { output.device() } else { Device::Cpu };
        let kind = match (collective, output.kind()) {
            (Collective::AllReduce(..) | Collective::ReduceScatter { .. }, Kind::Half | Kind::BFloat16) => {
                Kind::Float
            }
            (_, kind) => kind,
        };
        let is_direct = (output.device(), output.kind()) == (device, kind);
        let fresh = || Tensor::f_empty([output.numel() as i64], (kind, device));
        let moved = |tensor: &Tensor, copy| tensor.f_to_device_(device, kind, false, copy)?.f_view(-1);
        let (staged, is_copied) = match collective {
            Collective::AllReduce(..) | Collective::ReduceScatter { .. } => {
                // The result of MPI may not be in its input.
                (Staged { input: moved(&input, false)?, output: fresh()? }, true)
            }
            Collective::Broadcast(..) => {
                let tensor = moved(&output, false)?;
                (Staged { input: tensor.shallow_clone(), output: tensor }, !is_direct)
            }
            Collective::AllGather { .. } => {
                let whole = if is_direct { output.f_view(-1)? } else { fresh()? };
                (Staged { input: moved(&input, true)?, output: whole }, !is_direct)
            }
        };
        Ok((staged, is_copied.then_some(output)))
    }

    fn call(&self, operation: Operation, call: Call) -> Result<Box<Pending>, CollectiveError> {
        let deadline = Instant::now().checked_add(operation.timeout);
        let ended =
            self.calls.call(call).ok_or_else(|| operation.failed("the thread of MPI has ended".into()))?;
        Ok(Box::new(Pending { ended, operation, deadline, copy_back: None }))
    }
}

/// Contiguous tensors of one device and dtype, which do not overlap, except in a broadcast.
struct Staged {
    input: Tensor,
    output: Tensor,
}

struct Pending {
    ended: Receiver<()>,
    operation: Operation,
    deadline: Option<Instant>,
    /// The result, and where it belongs.
    copy_back: Option<(Tensor, Tensor)>,
}

impl Work for Pending {
    fn wait(self: Box<Self>) -> Result<(), CollectiveError> {
        let left = self.deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        self.ended.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => self.operation.timed_out(),
            RecvTimeoutError::Disconnected => self.operation.failed("the thread of MPI has ended".into()),
        })?;
        if let Some((from, mut to)) = self.copy_back {
            to.f_copy_(&from.view_as(&to)).map_err(|error| self.operation.torch(error))?;
        }
        Ok(())
    }
}

impl ProcessGroup for MpiGroup {
    fn rank_and_size(&self) -> (usize, usize) {
        (self.caller.rank, self.caller.size)
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.caller.timeout = timeout;
    }

    fn start(&self, collective: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError> {
        self.caller.check(collective)?;
        if collective.input().numel() == 0 {
            return Ok(Box::new(CompletedWork));
        }
        let operation = self.caller.operation(collective.name(), collective.bytes());
        let most = collective.input().numel().max(collective.output().numel());
        if i32::try_from(most).is_err() {
            let reason = format!("{most} elements: MPI takes at most {}", i32::MAX);
            return Err(CollectiveError::InvalidTensor(operation, reason));
        }
        let (staged, to) = self.stage(collective).map_err(|error| operation.torch(error))?;
        let copy_back = to.map(|to| (staged.output.shallow_clone(), to));
        memory::settle(&staged.input).map_err(|error| operation.error(error))?;
        let Staged { input, output } = staged;
        let call = match collective {
            Collective::AllReduce(_, op) => Call::AllReduce(input, output, op),
            Collective::Broadcast(_, root) => Call::Broadcast(output, root),
            Collective::AllGather { .. } => Call::AllGather(input, output),
            Collective::ReduceScatter { op, .. } => Call::ReduceScatter(input, output, op),
        };
        let mut pending = self.call(operation, call)?;
        pending.copy_back = copy_back;
        Ok(pending)
    }

    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError> {
        let operation = self.caller.operation("barrier", 0);
        Ok(self.call(operation, Call::Barrier)?)
    }

    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
        self.barrier()?.wait()?;
        self.calls.finalise();
        Ok(())
    }
}
