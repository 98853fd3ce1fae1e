//! Shards on their way between the memories of two nodes: the bytes of a copy that only one rank holds.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use dtrain_common::memory_copies::mark;
use tch::Tensor;

use super::super::error::CheckpointError;
use super::super::gathering::{CHUNK, receive_bytes};
use super::super::layout::Part;
use super::choice::ShardSource;
use super::slot::Slot;
use crate::collectives::{GlooGroup, ProcessGroup};

/// By file: the bytes that only one rank holds.
type Shards = [(String, Vec<Part>)];

/// The other nodes' memory, as a rank reaches it.
#[derive(Debug)]
pub(crate) struct Neighbours {
    /// All ranks; one thread at a time uses it.
    messages: Mutex<GlooGroup>,
    route: Route,
}

/// The ranks of the ring of nodes with which one rank exchanges shards.
#[derive(Debug, PartialEq, Eq)]
struct Route {
    /// The rank of the next node that keeps this rank's shards.
    to: usize,
    /// The ranks of the node before whose shards this rank keeps.
    from: Vec<usize>,
    /// Whether this rank sends before it receives. Its neighbours then receive first, except between the last
    /// and the first node of an odd number of nodes: the first one sends to the second, and then receives.
    sends_first: bool,
}

impl Route {
    /// `nodes` has the node of each rank: at least two nodes.
    fn new(nodes: &[i64], rank: usize) -> Self {
        let mut ranks_of = BTreeMap::<i64, Vec<usize>>::new();
        for (rank, node) in nodes.iter().enumerate() {
            ranks_of.entry(*node).or_default().push(rank);
        }
        // In the order of the nodes.
        let ring: Vec<Vec<usize>> = ranks_of.into_values().collect();
        let index = |rank: usize| ring.iter().position(|ranks| ranks.contains(&rank)).unwrap_or_default();
        let target = |rank: usize| {
            let (own, next) = (&ring[index(rank)], &ring[(index(rank) + 1) % ring.len()]);
            let place = own.iter().position(|other| *other == rank).unwrap_or_default();
            next[place % next.len()]
        };
        Self {
            to: target(rank),
            from: (0..nodes.len()).filter(|other| target(*other) == rank).collect(),
            sends_first: index(rank) % 2 == 0,
        }
    }
}

impl Neighbours {
    /// Connects a rank to the ring by `messages`, a group of all ranks. `nodes` has the node of each rank.
    pub(crate) fn new(messages: GlooGroup, nodes: &[i64]) -> Self {
        let route = Route::new(nodes, messages.rank());
        Self { messages: Mutex::new(messages), route }
    }

    /// Returns the ranks whose shards this rank keeps.
    pub(super) fn kept(&self) -> &[usize] {
        &self.route.from
    }

    /// Sends this rank's shards to the next node, and writes those of the node before into `slot`. Every rank
    /// calls this.
    pub(super) fn exchange(&self, slot: &Path, shards: &Shards) -> Result<(), CheckpointError> {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let (rank, Route { to, from, sends_first }) = (messages.rank(), &self.route);
        let send = || transfer(&messages, Peer::To(*to), slot, shards, rank);
        if *sends_first {
            send()?;
        }
        from.iter().try_for_each(|from| transfer(&messages, Peer::From(*from), slot, shards, *from))?;
        if *sends_first { Ok(()) } else { send() }
    }

    /// Sends rank 0 the shards of `slot` that `source` names.
    pub(super) fn give(&self, slot: &Slot, source: &ShardSource) -> Result<(), CheckpointError> {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let mut of = source.of.iter();
        of.try_for_each(|owner| {
            transfer(&messages, Peer::To(0), &slot.path, &slot.description.shards, *owner)
        })
    }

    /// Writes the shards that `source` sends into `slot`, on rank 0.
    pub(super) fn take(&self, slot: &Slot, source: &ShardSource) -> Result<(), CheckpointError> {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        source.of.iter().try_for_each(|owner| {
            transfer(&messages, Peer::From(source.rank), &slot.path, &slot.description.shards, *owner)?;
            mark(&slot.path, *owner, slot.held.step).map_err(CheckpointError::io("write", &slot.path))
        })
    }
}

/// The bytes of a file that a message has.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Span {
    /// The file's number.
    file: usize,
    offset: u64,
    bytes: usize,
}

/// Divides the shards of `owner` into messages of at most [`CHUNK`] bytes.
fn divide(shards: &Shards, owner: usize) -> Vec<Vec<Span>> {
    let (mut messages, mut room) = (Vec::<Vec<Span>>::new(), 0);
    for (file, (_, parts)) in shards.iter().enumerate() {
        for part in parts.iter().filter(|part| part.rank == owner) {
            let (mut offset, end) = (part.offset, part.offset + part.bytes);
            while offset < end {
                if room == 0 {
                    messages.push(Vec::new());
                    room = CHUNK;
                }
                let bytes = room.min((end - offset) as usize);
                messages.last_mut().into_iter().for_each(|last| last.push(Span { file, offset, bytes }));
                offset += bytes as u64;
                room -= bytes;
            }
        }
    }
    messages
}

#[derive(Clone, Copy)]
enum Peer {
    To(usize),
    From(usize),
}

/// Sends the shards of `owner` in `slot` to a peer, or writes them there as the peer sends them.
fn transfer(
    group: &GlooGroup,
    peer: Peer,
    slot: &Path,
    shards: &Shards,
    owner: usize,
) -> Result<(), CheckpointError> {
    let open = |(name, _): &(String, _)| File::options().read(true).write(true).open(slot.join(name));
    let files = shards.iter().map(open).collect::<io::Result<Vec<_>>>();
    let files = files.map_err(CheckpointError::io("open", slot))?;
    let mut buffer = Vec::new();
    for spans in divide(shards, owner) {
        buffer.resize(spans.iter().map(|span| span.bytes).sum(), 0);
        if let Peer::From(from) = peer {
            receive_bytes(group, from, &mut buffer)?;
        }
        let mut rest = &mut buffer[..];
        for Span { file, offset, bytes } in spans {
            let own = rest.split_off_mut(..bytes).unwrap_or_default();
            match peer {
                Peer::To(_) => files[file].read_exact_at(own, offset),
                Peer::From(_) => files[file].write_all_at(own, offset),
            }
            .map_err(CheckpointError::io("copy a part of", slot))?;
        }
        if let Peer::To(to) = peer {
            group.send(&Tensor::f_from_slice(&buffer)?, to)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Nodes with these numbers of ranks, which need not be in order.
    fn nodes() -> impl Strategy<Value = Vec<i64>> {
        let sizes = prop::collection::vec(1usize..5, 2..6);
        let nodes = sizes.prop_map(|sizes| {
            let node = |(node, size)| std::iter::repeat_n(node as i64 * 3, size);
            sizes.into_iter().enumerate().flat_map(node).collect::<Vec<_>>()
        });
        nodes.prop_shuffle()
    }

    proptest! {
        #[test]
        fn each_rank_is_kept_once_on_the_next_node(nodes in nodes()) {
            let routes: Vec<Route> = (0..nodes.len()).map(|rank| Route::new(&nodes, rank)).collect();
            let last = nodes.iter().max().copied().unwrap_or_default();
            let mut kept = vec![0; nodes.len()];
            for (rank, route) in routes.iter().enumerate() {
                let next = if nodes[rank] == last { 0 } else { nodes[rank] + 3 };
                prop_assert_eq!(nodes[route.to], next);
                prop_assert!(routes[route.to].from.contains(&rank));
                route.from.iter().for_each(|from| kept[*from] += 1);
            }
            prop_assert!(kept.iter().all(|count| *count == 1), "{:?}", kept);
        }

        /// Each operation blocks until its peer does the other one.
        #[test]
        fn an_exchange_never_blocks_forever(nodes in nodes()) {
            let operations = |rank| {
                let route = Route::new(&nodes, rank);
                let mut all: Vec<(usize, usize)> = route.from.iter().map(|from| (*from, rank)).collect();
                let place = if route.sends_first { 0 } else { all.len() };
                all.insert(place, (rank, route.to));
                all.into_iter().rev().collect::<Vec<_>>()
            };
            let mut left: Vec<Vec<(usize, usize)>> = (0..nodes.len()).map(operations).collect();
            while left.iter().any(|rank| !rank.is_empty()) {
                let meets = |(from, to): (usize, usize)| {
                    [from, to].into_iter().all(|rank| left[rank].last() == Some(&(from, to)))
                };
                let next = left.iter().filter_map(|rank| rank.last().copied()).find(|pair| meets(*pair));
                prop_assert!(next.is_some(), "all wait: {:?}", left);
                if let Some((from, to)) = next {
                    left[from].pop();
                    left[to].pop();
                }
            }
        }

        #[test]
        fn messages_cover_the_shards_of_one_rank(sizes in prop::collection::vec((0u64..3 * CHUNK as u64, 0usize..3), 0..8)) {
            let mut offset = 5;
            let part = |&(bytes, rank): &(u64, usize)| {
                offset += bytes + 1;
                Part { offset: offset - bytes - 1, bytes, rank }
            };
            let parts: Vec<Part> = sizes.iter().map(part).collect();
            let (one, other) = parts.split_at(parts.len() / 2);
            let shards = [("a".to_owned(), one.to_vec()), ("b".to_owned(), other.to_vec())];
            let messages = divide(&shards, 1);
            let mut spans: Vec<Span> = Vec::new();
            for message in &messages {
                let bytes: usize = message.iter().map(|span| span.bytes).sum();
                prop_assert!(bytes > 0 && bytes <= CHUNK);
                for span in message {
                    match spans.last_mut() {
                        Some(last) if (last.file, last.offset + last.bytes as u64) == (span.file, span.offset) => {
                            last.bytes += span.bytes
                        }
                        _ => spans.push(*span),
                    }
                }
            }
            let owned = |part: &&Part| part.rank == 1 && part.bytes > 0;
            let wanted = [one, other].into_iter().enumerate().flat_map(|(file, parts)| {
                parts.iter().filter(owned).map(move |part| Span { file, offset: part.offset, bytes: part.bytes as usize })
            });
            prop_assert_eq!(spans, wanted.collect::<Vec<_>>());
        }
    }
}
