//! The thread that makes all calls of MPI.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::environment::{Universe, initialize_with_threading};
use mpi::topology::{Color, SimpleCommunicator};
use mpi::traits::{Communicator, CommunicatorCollectives, Root};
use tch::Tensor;

use crate::memory::{make_current, read, write};
use dtrain_worker::collectives::ReduceOp;

/// A call of MPI, input first. Its tensors are contiguous and do not overlap. They are on one device, whose memory MPI
/// can use, and hold their values.
pub(crate) enum Call {
    AllReduce(Tensor, Tensor, ReduceOp),
    Broadcast(Tensor, usize),
    AllGather(Tensor, Tensor),
    ReduceScatter(Tensor, Tensor, ReduceOp),
    Barrier,
}

enum Order {
    /// The sender gets a word when the call has ended.
    Call(Call, Sender<()>),
    Finalise,
}

/// The thread. It holds MPI's universe, because the thread that initialises MPI must finalise it.
#[derive(Debug)]
pub(crate) struct Calls {
    orders: Sender<Order>,
    thread: JoinHandle<()>,
}

impl Calls {
    /// Initialises MPI. Blocks until all processes of the MPI job have called it.
    pub(crate) fn start(rank: usize, size: usize) -> Result<Self, String> {
        let (orders, queue) = channel();
        let (sender, started) = channel();
        let run = move || match join(rank, size) {
            Ok((universe, ranks)) => {
                if sender.send(Ok(())).is_ok() {
                    serve(universe, ranks, &queue);
                }
            }
            Err(reason) => drop(sender.send(Err(reason))),
        };
        let thread = std::thread::Builder::new().name("mpi".into()).spawn(run);
        let thread = thread.map_err(|error| format!("the thread of MPI cannot start: {error}"))?;
        match started.recv() {
            Ok(started) => started.map(|()| Self { orders, thread }),
            Err(_) => Err("the thread of MPI has ended".into()),
        }
    }

    /// Starts a call. Returns where a word comes from when it has ended, or None if the thread has ended.
    pub(crate) fn call(&self, call: Call) -> Option<Receiver<()>> {
        let (sender, ended) = channel();
        self.orders.send(Order::Call(call, sender)).ok()?;
        Some(ended)
    }

    /// Finalises MPI after all calls. Every rank calls it.
    pub(crate) fn finalise(self) {
        // If the thread has ended, there is nothing to finalise.
        if self.orders.send(Order::Finalise).is_ok() && self.thread.join().is_err() {
            tracing::warn!("MPI was not finalised: its thread ended early");
        }
    }
}

/// Initialises MPI. Returns its processes in the order of our ranks.
fn join(rank: usize, size: usize) -> Result<(Universe, SimpleCommunicator), String> {
    let (universe, _) = initialize_with_threading(Threading::Funneled)
        .ok_or("another group of this process uses MPI already")?;
    let world = universe.world();
    let started = usize::try_from(world.size()).unwrap_or(0);
    if started != size {
        return Err(format!(
            "MPI started {started} processes and the run has {size} ranks; start every rank with mpirun or srun --mpi"
        ));
    }
    let key = i32::try_from(rank).map_err(|_| format!("rank {rank} is too large for MPI"))?;
    let ranks = world.split_by_color_with_key(Color::with_value(0), key);
    Ok((universe, ranks.ok_or("MPI made no communicator")?))
}

fn serve(universe: Universe, ranks: SimpleCommunicator, queue: &Receiver<Order>) {
    while let Ok(order) = queue.recv() {
        match order {
            Order::Call(call, ended) => {
                run(&ranks, call);
                // Nobody waits for an operation that was given up.
                ended.send(()).ok();
            }
            Order::Finalise => {
                // The communicator belongs to the universe.
                drop(ranks);
                drop(universe);
                return;
            }
        }
    }
    // The group was given up. To finalise would wait for peers, which may wait for this rank.
    std::mem::forget((ranks, universe));
}

fn run(ranks: &SimpleCommunicator, call: Call) {
    match call {
        Call::AllReduce(input, mut output, op) => {
            make_current(output.device());
            ranks.all_reduce_into(&read(&input), &mut write(&mut output), operation(op));
        }
        Call::Broadcast(mut tensor, root) => {
            make_current(tensor.device());
            // The group has checked that the root is one of its ranks, whose number MPI has given.
            let root = i32::try_from(root).unwrap_or(0);
            ranks.process_at_rank(root).broadcast_into(&mut write(&mut tensor));
        }
        Call::AllGather(input, mut output) => {
            make_current(output.device());
            ranks.all_gather_into(&read(&input), &mut write(&mut output));
        }
        Call::ReduceScatter(input, mut output, op) => {
            make_current(output.device());
            ranks.reduce_scatter_block_into(&read(&input), &mut write(&mut output), operation(op));
        }
        Call::Barrier => ranks.barrier(),
    }
}

fn operation(op: ReduceOp) -> SystemOperation {
    match op {
        ReduceOp::Sum => SystemOperation::sum(),
        ReduceOp::Min => SystemOperation::min(),
        ReduceOp::Max => SystemOperation::max(),
    }
}
