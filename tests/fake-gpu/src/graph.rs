//! Graphs: nodes from a capture, run in their order by a launch.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use crate::capture::{self, Node};
use crate::check::Use;
use crate::counts::{self, Kind};
use crate::faults::{self, Fate};
use crate::ffi::{Outcome, give};
use crate::frame::api;
use crate::op::{Op, new_handle};
use crate::{codes, device, launch, stream};

type Nodes = Vec<Arc<Node>>;

/// Graphs, executable graphs and nodes by their handles.
static GRAPHS: Mutex<BTreeMap<usize, Nodes>> = Mutex::new(BTreeMap::new());

/// Keeps a graph.
fn keep(handle: usize, nodes: Nodes) {
    GRAPHS.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, nodes);
}

fn nodes_of(graph: *mut c_void) -> Outcome<Nodes> {
    let kept = GRAPHS.lock().unwrap_or_else(PoisonError::into_inner).get(&graph.addr()).cloned();
    kept.or_else(|| capture::nodes(graph.addr())).ok_or(codes::INVALID_VALUE)
}

fn node_of(handle: *mut c_void) -> Outcome<Arc<Node>> {
    let graphs = GRAPHS.lock().unwrap_or_else(PoisonError::into_inner);
    let found = graphs.values().flatten().find(|node| node.handle == handle.addr());
    found.cloned().ok_or(codes::INVALID_VALUE)
}

fn forget(graph: *mut c_void) -> Outcome {
    GRAPHS.lock().unwrap_or_else(PoisonError::into_inner).remove(&graph.addr());
    Ok(())
}

/// Writes as many handles as fit, and how many there are.
///
/// # Safety
/// `to` is null or has room for `*count` handles.
unsafe fn give_list(to: *mut usize, count: *mut usize, handles: &[usize]) -> Outcome {
    // SAFETY: see above.
    unsafe {
        if !to.is_null() {
            for (index, handle) in handles.iter().take(*count).enumerate() {
                to.add(index).write(*handle);
            }
        }
        give(count, handles.len())
    }
}

fn run(graph: *mut c_void, handle: *mut c_void) -> Outcome {
    let (nodes, stream) = (nodes_of(graph)?, stream::of(handle)?);
    let kernels = nodes.iter().filter(|node| node.op.kind == Some(Kind::Kernel)).count() as u64;
    counts::count(Kind::GraphKernel, kernels);
    counts::count(Kind::Kernel, kernels);
    for node in &nodes {
        launch::check_pointers(stream.device(), &node.op.name, &node.op.uses);
        if let Some(kind) = node.op.kind.filter(|kind| *kind != Kind::Kernel) {
            counts::count(kind, 1);
        }
    }
    // A pointer that is stale is reported and found by the next call, as on a GPU; the graph must not touch it.
    if stream.device().healthy().is_err() {
        return Ok(());
    }
    let uses: Vec<Use> = nodes.iter().flat_map(|node| node.op.uses.iter().copied()).collect();
    let blocks = nodes.iter().any(|node| node.op.blocks);
    let fate = faults::next_kernels(kernels);
    let work = move || nodes.iter().for_each(|node| (node.op.work)());
    let op = Op { blocks, ..Op::new("graph", Kind::GraphLaunch, work).using(uses) };
    match fate {
        Fate::Runs => stream.put(op),
        Fate::Fails(code) => {
            stream.device().fail(code);
            Ok(())
        }
        Fate::NeverEnds => {
            stream.put(Op::new("endless graph", Kind::GraphLaunch, || faults::never_end()).blocking())
        }
    }
}

api! { runtime:
    fn cudaGraphGetNodes(graph: *mut c_void, to: *mut usize, count: *mut usize) {
        let handles: Vec<usize> = nodes_of(graph)?.iter().map(|node| node.handle).collect();
        give_list(to, count, &handles)
    }
    fn cudaGraphNodeGetDependencies(node: *mut c_void, to: *mut usize, _edges: *mut c_void, count: *mut usize) {
        give_list(to, count, &node_of(node)?.after)
    }
    fn cudaGraphInstantiateWithFlags(to: *mut *mut c_void, graph: *mut c_void, _flags: u64) {
        let handle = new_handle();
        keep(handle, nodes_of(graph)?);
        give(to, std::ptr::without_provenance_mut(handle))
    }
    fn cudaGraphLaunch(graph: *mut c_void, stream: *mut c_void) { run(graph, stream) }
    fn cudaGraphExecDestroy(graph: *mut c_void) {
        stream::wait_all(device::current()?);
        forget(graph)
    }
    fn cudaGraphDestroy(graph: *mut c_void) { forget(graph) }
    fn cudaGraphDebugDotPrint(_graph: *mut c_void, _path: *const c_char, _flags: c_uint) { Ok(()) }
}

api! { runtime:
    fn cudaStreamBeginCapture(handle: *mut c_void, mode: c_int) { capture::begin(&*stream::of(handle)?, mode) }
    fn cudaStreamIsCapturing(handle: *mut c_void, to: *mut c_int) {
        let stream = stream::of(handle)?;
        if stream.is_legacy() {
            capture::forbid_legacy(stream.device)?;
        }
        give(to, capture::seen(&stream).map_or(0, |seen| seen.status))
    }
    fn cudaStreamGetCaptureInfo(
        handle: *mut c_void, to: *mut c_int, id: *mut u64, graph: *mut *mut c_void,
        dependencies: *mut *const usize, edges: *mut *const c_void, count: *mut usize,
    ) {
        let Some(seen) = capture::seen(&*stream::of(handle)?) else { return give(to, 0) };
        give(to, seen.status)?;
        give(id, seen.graph as u64)?;
        give(graph, std::ptr::without_provenance_mut(seen.graph))?;
        give(dependencies, seen.last)?;
        give(edges, std::ptr::null())?;
        give(count, seen.count)
    }
    fn cudaThreadExchangeStreamCaptureMode(mode: *mut c_int) { give(mode, capture::exchange_mode(*mode)) }
}

api! { query:
    fn cudaStreamEndCapture(handle: *mut c_void, to: *mut *mut c_void) {
        give(to, std::ptr::null_mut())?;
        let stream = stream::of(handle)?;
        let (graph, nodes) = capture::end(&stream)?;
        // After a sticky error, the capture ends without a graph.
        stream.device().healthy()?;
        keep(graph, nodes);
        give(to, std::ptr::without_provenance_mut(graph))
    }
}
