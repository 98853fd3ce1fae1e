//! Ranks of several nodes: reductions in the shared memory of each node and by Gloo between the nodes,
//! everything else by Gloo.
//!
//! A reduction of a tensor of [`ProcessGroup::allocate`] has three stages: the ranks of each node reduce into
//! the region of their first rank, the first ranks reduce over the nodes, and the ranks of each node copy the
//! result. All ranks get the bits that the first ranks agree on. Large tensors are divided, so that the
//! stages of different parts overlap.
//!
//! The tensor alone decides between this and Gloo, so ranks with equal calls decide alike.

mod exchange;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dtrain_shared_memory::{Collective as Kernel, Fault, Member, Operation as Reduce, Pending};
use tch::{Kind, Tensor};

use self::exchange::{Exchange, Exchanger, Outcome};
use super::collective::Caller;
use super::shared::{Located, Segments, join_team, to_error};
use super::{
    AllWork, Collective, CollectiveError, GlooGroup, LostPeer, Operation, ProcessGroup, ReduceOp, Work,
};

/// The bytes of one part of a large tensor.
const PART_BYTES: usize = 4 << 20;

/// A group of CPU processes on several nodes.
#[derive(Debug)]
pub struct NodesGroup {
    /// Reduces within the node.
    reducer: Member,
    result: ResultOfNodes,
    segments: Segments,
    /// The ranks of this node.
    node: GlooGroup,
    world: GlooGroup,
    /// The numbers of the node's ranks in `world`.
    node_ranks: Arc<[usize]>,
    caller: Caller,
}

/// How a rank gets the result of a reduction over the nodes.
#[derive(Debug)]
enum ResultOfNodes {
    /// The first rank of a node exchanges, then offers the result to the others.
    Exchange(Exchanger),
    /// The others copy it from the first rank.
    Copy(Member),
}

impl NodesGroup {
    /// Creates shared memory in each node and agrees with all ranks of `world` that all have it. `node` is a
    /// group of this node's ranks, whose numbers in `world` are `node_ranks`. The first rank of each node
    /// passes `between`, a group of the first ranks. Blocks until all have called. If a rank fails, all get
    /// back `world` and the rank with its reason.
    pub fn create(
        world: GlooGroup,
        node: GlooGroup,
        node_ranks: &[usize],
        between: Option<GlooGroup>,
    ) -> Result<Result<Self, (GlooGroup, String)>, CollectiveError> {
        let teams = match join_team(&node, &world)? {
            Ok(reducer) => join_team(&node, &world)?.map(|spreader| (reducer, spreader)),
            Err(reason) => Err(reason),
        };
        let (reducer, spreader) = match teams {
            Ok(teams) => teams,
            Err(reason) => return Ok(Err((world, reason))),
        };
        let operation = Operation::new("connect", world.rank());
        let result = match between {
            Some(between) => ResultOfNodes::Exchange(
                Exchanger::new(between, spreader).map_err(|error| operation.failed(error.to_string()))?,
            ),
            None => ResultOfNodes::Copy(spreader),
        };
        Ok(Ok(Self {
            reducer,
            result,
            segments: Segments::new(node.rank()),
            node_ranks: node_ranks.into(),
            caller: Caller::new(world.rank(), world.size()),
            node,
            world,
        }))
    }

    /// Starts the reduction of a tensor in shared memory.
    fn reduce(
        &self,
        tensor: &Tensor,
        op: ReduceOp,
        Located { element, offset, segment }: Located,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        let bytes = tensor.numel() * element.bytes();
        let operation = self.caller.operation("all_reduce", bytes);
        let flat = tensor.f_detach().and_then(|tensor| tensor.f_view(-1));
        let flat = flat.map_err(|error| operation.torch(error))?;
        let (begun, per_part) = (Instant::now(), PART_BYTES / element.bytes());
        let mut works: Vec<Box<dyn Work>> = Vec::new();
        for first in (0..tensor.numel()).step_by(per_part) {
            let count = per_part.min(tensor.numel() - first);
            let at =
                |collective| Reduce { collective, element, offset: offset + first * element.bytes(), count };
            let names = NamedFaults { operation, node_ranks: Arc::clone(&self.node_ranks) };
            let start = |member: &Member, collective| {
                let pending = member.start(at(collective), &segment, operation.timeout);
                pending.map_err(|fault| names.error(fault))
            };
            let reduced = start(&self.reducer, Kernel::Reduce(op))?;
            works.push(match &self.result {
                // The first rank announces its range when the exchange has ended.
                ResultOfNodes::Copy(spreader) => {
                    let copied = start(spreader, Kernel::Broadcast)?;
                    Box::new(Copying { reduced, copied, names })
                }
                ResultOfNodes::Exchange(exchanger) => {
                    let part = flat.f_narrow(0, first as i64, count as i64);
                    Box::new(exchanger.start(Exchange {
                        reduced,
                        part: part.map_err(|error| operation.torch(error))?,
                        op,
                        spread: at(Kernel::Broadcast),
                        segment: Arc::clone(&segment),
                        begun,
                        names,
                        outcome: Arc::<Outcome>::default(),
                    }))
                }
            });
        }
        Ok(Box::new(AllWork(works)))
    }
}

/// Converts faults within a node to errors of the group.
#[derive(Debug, Clone)]
struct NamedFaults {
    operation: Operation,
    node_ranks: Arc<[usize]>,
}

impl NamedFaults {
    fn error(&self, fault: Fault) -> CollectiveError {
        let name = |rank: usize| self.node_ranks.get(rank).copied().unwrap_or(rank);
        let fault = match fault {
            Fault::PeerLost(rank) => Fault::PeerLost(name(rank)),
            Fault::TimedOut(rank, timeout) => Fault::TimedOut(name(rank), timeout),
            Fault::Mismatch(rank) => Fault::Mismatch(name(rank)),
            other => other,
        };
        to_error(self.operation, fault)
    }
}

struct Copying {
    reduced: Pending,
    copied: Pending,
    names: NamedFaults,
}

impl Work for Copying {
    fn wait(self: Box<Self>) -> Result<(), CollectiveError> {
        self.reduced.wait().map_err(|fault| self.names.error(fault))?;
        self.copied.wait().map_err(|fault| match fault {
            // The first rank may wait for another node.
            Fault::TimedOut(0, _) => self.names.operation.timed_out(),
            fault => self.names.error(fault),
        })
    }
}

impl ProcessGroup for NodesGroup {
    fn rank_and_size(&self) -> (usize, usize) {
        (self.caller.rank, self.caller.size)
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.caller.timeout = timeout;
        self.node.set_timeout(timeout);
        self.world.set_timeout(timeout);
    }

    fn allocate(&self, numel: usize, kind: Kind) -> Result<Option<Tensor>, CollectiveError> {
        self.segments.allocate((&self.node, &self.world), numel, kind)
    }

    fn start(&self, collective: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError> {
        self.caller.check(collective)?;
        if let Collective::AllReduce(tensor, op) = collective
            && let Some(located) = self.segments.locate(tensor)
        {
            return self.reduce(tensor, op, located);
        }
        self.world.start(collective)
    }

    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError> {
        self.world.barrier()
    }

    /// Knows the ranks of this node.
    fn lost_peer(&self) -> Option<LostPeer> {
        let (lost, ranks) = (self.reducer.lost_peer(), Arc::clone(&self.node_ranks));
        Some(Arc::new(move || ranks.get(lost()?).copied()))
    }

    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
        let Self { reducer, result, node, world, .. } = *self;
        reducer.close();
        let between = match result {
            ResultOfNodes::Exchange(exchanger) => exchanger.close(),
            ResultOfNodes::Copy(spreader) => {
                spreader.close();
                None
            }
        };
        for group in [Some(node), between, Some(world)].into_iter().flatten() {
            Box::new(group).shutdown()?;
        }
        Ok(())
    }
}
