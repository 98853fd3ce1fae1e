//! Captures of streams into graphs, and which calls they forbid.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use crate::codes::{self, Code, Outcome};
use crate::op::{Key, Op, new_handle};
use crate::{counts, faults};

const GLOBAL: c_int = 0;
const THREAD_LOCAL: c_int = 1;
const RELAXED: c_int = 2;

/// An operation of a graph.
pub(crate) struct Node {
    pub(crate) handle: usize,
    pub(crate) op: Op,
    /// The nodes that it follows.
    pub(crate) after: Vec<usize>,
}

/// A capture in progress.
struct Capture {
    /// The handle of the graph, and the id of the capture.
    graph: usize,
    mode: c_int,
    origin: usize,
    thread: ThreadId,
    nodes: Vec<Arc<Node>>,
    /// The capturing streams and the nodes that their next nodes follow.
    streams: BTreeMap<usize, Position>,
    is_valid: bool,
}

struct Position {
    device: usize,
    is_blocking: bool,
    last: Vec<usize>,
}

static CAPTURES: Mutex<Vec<Capture>> = Mutex::new(Vec::new());

thread_local! {
    static MODE: Cell<c_int> = const { Cell::new(GLOBAL) };
}

fn with<R>(act: impl FnOnce(&mut Vec<Capture>) -> R) -> R {
    act(&mut CAPTURES.lock().unwrap_or_else(PoisonError::into_inner))
}

fn of<'a>(captures: &'a mut [Capture], stream: &Key) -> Option<&'a mut Capture> {
    captures.iter_mut().find(|capture| capture.streams.contains_key(&stream.id))
}

/// Fails a call with this code if it ends a capture.
fn spoil(capture: Option<&mut Capture>, code: Code) -> Outcome {
    let Some(capture) = capture else { return Ok(()) };
    capture.is_valid = false;
    if code == codes::CAPTURE_UNSUPPORTED {
        counts::note("[forbidden in a capture]");
    }
    Err(code)
}

/// Fails a call that a capture forbids, which ends the capture. `cudaThreadExchangeStreamCaptureMode` documents when.
pub(crate) fn allow_unsafe() -> Outcome {
    let (mode, own) = (MODE.get(), thread::current().id());
    with(|captures| {
        let forbids = |capture: &&mut Capture| {
            let is_own = capture.thread == own;
            match mode {
                GLOBAL => capture.mode == GLOBAL || is_own && capture.mode == THREAD_LOCAL,
                THREAD_LOCAL => is_own && capture.mode != RELAXED,
                _ => false,
            }
        };
        spoil(captures.iter_mut().find(forbids), codes::CAPTURE_UNSUPPORTED)
    })
}

/// Fails a call that cannot be made on a capturing stream, which ends the capture.
pub(crate) fn forbid(stream: &Key) -> Outcome {
    with(|captures| spoil(of(captures, stream), codes::CAPTURE_UNSUPPORTED))
}

/// Fails an operation on the legacy stream while a stream that it waits for captures.
pub(crate) fn forbid_legacy(device: usize) -> Outcome {
    let own = thread::current().id();
    with(|captures| {
        let waits = |capture: &&mut Capture| {
            let mut streams = capture.streams.values();
            (capture.mode == GLOBAL || capture.thread == own)
                && streams.any(|stream| stream.is_blocking && stream.device == device)
        };
        spoil(captures.iter_mut().find(waits), codes::CAPTURE_IMPLICIT)
    })
}

pub(crate) fn is_capturing(stream: &Key) -> bool {
    with(|captures| of(captures, stream).is_some())
}

/// Adds an operation to the graph that the stream captures. Returns it if the stream does not.
pub(crate) fn add(stream: &Key, op: Op) -> Outcome<Option<Op>> {
    with(|captures| {
        let Some(capture) = of(captures, stream) else { return Ok(Some(op)) };
        if !capture.is_valid {
            return Err(codes::CAPTURE_INVALIDATED);
        }
        if let Err(code) = faults::next_node() {
            capture.is_valid = false;
            return Err(code);
        }
        // An event's record in a capture is no node: `position` handles it.
        let handle = new_handle();
        if let Some(position) = capture.streams.get_mut(&stream.id) {
            let after = std::mem::replace(&mut position.last, vec![handle]);
            capture.nodes.push(Arc::new(Node { handle, op, after }));
        }
        Ok(None)
    })
}

/// Returns the capture of a stream and the nodes that its next node follows.
pub(crate) fn position(stream: &Key) -> Outcome<Option<(usize, Vec<usize>)>> {
    with(|captures| match of(captures, stream) {
        None => Ok(None),
        Some(capture) if !capture.is_valid => Err(codes::CAPTURE_INVALIDATED),
        Some(capture) => {
            let last = capture.streams.get(&stream.id).map(|position| position.last.clone());
            Ok(Some((capture.graph, last.unwrap_or_default())))
        }
    })
}

/// Makes a stream wait for nodes of a capture, which it joins.
pub(crate) fn join(stream: &Key, graph: usize, nodes: &[usize]) -> Outcome {
    with(|captures| {
        if !captures.iter().any(|capture| capture.graph == graph) {
            return Err(codes::CAPTURED_EVENT);
        }
        spoil(of(captures, stream).filter(|other| other.graph != graph), codes::CAPTURE_MERGE)?;
        if stream.is_legacy() {
            return Err(codes::CAPTURE_IMPLICIT);
        }
        let new = || Position { device: stream.device, is_blocking: stream.is_blocking, last: Vec::new() };
        if let Some(capture) = captures.iter_mut().find(|capture| capture.graph == graph) {
            let last = &mut capture.streams.entry(stream.id).or_insert_with(new).last;
            last.extend(nodes);
            last.sort_unstable();
            last.dedup();
        }
        Ok(())
    })
}

/// Fails a capturing stream's wait for work outside of its capture.
pub(crate) fn isolate(stream: &Key) -> Outcome {
    with(|captures| spoil(of(captures, stream), codes::CAPTURE_ISOLATION))
}

/// Ends a capture without a graph.
pub(crate) fn invalidate(graph: usize) {
    with(|captures| {
        for capture in captures.iter_mut().filter(|capture| capture.graph == graph) {
            capture.is_valid = false;
        }
    });
}

/// Begins a capture of a stream.
pub(crate) fn begin(stream: &Key, mode: c_int) -> Outcome {
    if stream.is_legacy() {
        return Err(codes::CAPTURE_UNSUPPORTED);
    }
    with(|captures| {
        spoil(of(captures, stream), codes::ILLEGAL_STATE)?;
        let position = Position { device: stream.device, is_blocking: stream.is_blocking, last: Vec::new() };
        captures.push(Capture {
            graph: new_handle(),
            mode,
            origin: stream.id,
            thread: thread::current().id(),
            nodes: Vec::new(),
            streams: BTreeMap::from([(stream.id, position)]),
            is_valid: true,
        });
        Ok(())
    })
}

/// Ends the capture that a stream began, and returns the handle and the nodes of its graph.
pub(crate) fn end(stream: &Key) -> Outcome<(usize, Vec<Arc<Node>>)> {
    let capture = with(|captures| {
        let index = captures.iter().position(|capture| capture.streams.contains_key(&stream.id));
        let capture = &captures[index.ok_or(codes::ILLEGAL_STATE)?];
        if capture.origin != stream.id {
            return Err(codes::CAPTURE_UNMATCHED);
        }
        if capture.mode != RELAXED && capture.thread != thread::current().id() {
            return Err(codes::CAPTURE_WRONG_THREAD);
        }
        Ok(captures.remove(index.unwrap_or_default()))
    })?;
    if !capture.is_valid {
        return Err(codes::CAPTURE_INVALIDATED);
    }
    // The last nodes of each stream must lead to the origin: its next node would follow them.
    let mut reached = BTreeSet::new();
    let mut open = capture.streams[&capture.origin].last.clone();
    while let Some(handle) = open.pop() {
        if reached.insert(handle) {
            let node = capture.nodes.iter().find(|node| node.handle == handle);
            open.extend(node.iter().flat_map(|node| &node.after));
        }
    }
    if capture.streams.values().any(|position| position.last.iter().any(|node| !reached.contains(node))) {
        return Err(codes::CAPTURE_UNJOINED);
    }
    Ok((capture.graph, capture.nodes))
}

/// Returns the nodes of a graph that is captured now.
pub(crate) fn nodes(graph: usize) -> Option<Vec<Arc<Node>>> {
    with(|captures| {
        captures.iter().find(|capture| capture.graph == graph).map(|capture| capture.nodes.clone())
    })
}

/// What a program may know about the capture of a stream.
pub(crate) struct Seen {
    /// 1: it captures; 2: its capture is invalid.
    pub(crate) status: c_int,
    pub(crate) graph: usize,
    /// The nodes that its next node follows, valid until the stream's next call.
    pub(crate) last: *const usize,
    pub(crate) count: usize,
}

pub(crate) fn seen(stream: &Key) -> Option<Seen> {
    with(|captures| {
        let capture = of(captures, stream)?;
        let last = &capture.streams.get(&stream.id)?.last;
        let status = if capture.is_valid { 1 } else { 2 };
        Some(Seen { status, graph: capture.graph, last: last.as_ptr(), count: last.len() })
    })
}

/// Exchanges the thread's mode.
pub(crate) fn exchange_mode(mode: c_int) -> c_int {
    MODE.replace(mode)
}
