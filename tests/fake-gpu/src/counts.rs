//! What a process did: counts, steps, a timeline and a trace.
//!
//! The file of a process is written when it ends. A step ends at a host wait: a trainer has one a step.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, Once, PoisonError};
use std::time::Instant;
use std::{env, process};

use serde_json::{Map, Value, json};

use crate::books;
use crate::messages::report;

/// What is counted, in total and for each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Kernel,
    Copy,
    Fill,
    Collective,
    HostFunction,
    GraphLaunch,
    /// A kernel of a launched graph, counted as kernel too.
    GraphKernel,
    Malloc,
    Free,
    HostWait,
    Race,
}

/// The names of the kinds, in their order.
const KINDS: [&str; 11] = [
    "kernels",
    "copies",
    "fills",
    "collectives",
    "host_functions",
    "graph_launches",
    "graph_kernels",
    "mallocs",
    "frees",
    "host_waits",
    "races",
];

/// The most steps and events in a file.
const MOST: usize = 200_000;

static TOTALS: [AtomicU64; KINDS.len()] = [const { AtomicU64::new(0) }; KINDS.len()];
static COUNTERS: Mutex<BTreeMap<String, &'static AtomicU64>> = Mutex::new(BTreeMap::new());
static LOG: Mutex<Log> = Mutex::new(Log { steps: Vec::new(), last: [0; KINDS.len()], events: Vec::new() });
static START: LazyLock<Instant> = LazyLock::new(Instant::now);
static TIMELINE: LazyLock<bool> =
    LazyLock::new(|| env::var("FAKE_GPU_TIMELINE").is_ok_and(|value| value == "1"));

/// Makes a part of the file.
type Section = fn() -> Value;

/// Parts of the file that other modules know.
static SECTIONS: Mutex<BTreeMap<&str, Section>> = Mutex::new(BTreeMap::new());

struct Log {
    steps: Vec<Value>,
    last: [u64; KINDS.len()],
    events: Vec<Value>,
}

/// Returns the counter of a name.
pub(crate) fn counter(name: &str) -> &'static AtomicU64 {
    write_at_exit();
    let mut counters = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(counter) = counters.get(name) {
        return counter;
    }
    let counter: &AtomicU64 = Box::leak(Box::default());
    counters.insert(name.to_owned(), counter);
    counter
}

/// Adds a part to the file.
pub(crate) fn add_section(name: &'static str, value: Section) {
    SECTIONS.lock().unwrap_or_else(PoisonError::into_inner).insert(name, value);
}

/// Counts what has no kind.
pub(crate) fn note(name: &str) {
    counter(name).fetch_add(1, Ordering::Relaxed);
}

/// Counts, and ends a step if it is a host wait.
pub(crate) fn count(kind: Kind, times: u64) {
    TOTALS[kind as usize].fetch_add(times, Ordering::Relaxed);
    if kind == Kind::HostWait {
        let now: [u64; KINDS.len()] = std::array::from_fn(|i| TOTALS[i].load(Ordering::Relaxed));
        let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
        if log.steps.len() < MOST {
            let mut step = row(std::array::from_fn(|i| now[i] - log.last[i]));
            step.insert("memory".into(), json!(books::own()));
            log.steps.push(Value::Object(step));
        }
        log.last = now;
    }
}

/// Adds an operation on a stream to the timeline.
pub(crate) fn event(name: &str, stream: usize, start: Instant) {
    if *TIMELINE {
        let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
        if log.events.len() < MOST {
            let (ts, dur) = (start.saturating_duration_since(*START), start.elapsed());
            log.events.push(json!({"ph": "X", "pid": process::id(), "tid": stream, "name": name,
                "ts": ts.as_nanos() as f64 / 1e3, "dur": dur.as_nanos() as f64 / 1e3}));
        }
    }
}

pub(crate) fn has_timeline() -> bool {
    *TIMELINE
}

/// Writes a message once, however often it is reported.
pub(crate) fn report_once(message: &str) {
    let seen = counter(&format!("[reported] {message}"));
    if seen.fetch_add(1, Ordering::Relaxed) == 0 {
        report(message);
    }
}

/// Reports a function that is not implemented.
pub(crate) fn unsupported(library: &str, function: &str) {
    report_once(&format!("{library}: {function} is not implemented: it returns \"not supported\""));
}

fn row(values: [u64; KINDS.len()]) -> Map<String, Value> {
    KINDS.iter().zip(values).map(|(name, value)| ((*name).to_owned(), json!(value))).collect()
}

/// Returns the contents of the file.
fn summary() -> Value {
    let counters = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    let calls: Map<_, _> =
        counters.iter().map(|(name, n)| (name.clone(), json!(n.load(Ordering::Relaxed)))).collect();
    drop(counters);
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = row(std::array::from_fn(|i| TOTALS[i].load(Ordering::Relaxed)));
    for (name, value) in SECTIONS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        all.insert((*name).to_owned(), value());
    }
    all.insert("rank".into(), json!(env::var("RANK").ok()));
    all.insert("command".into(), json!(env::args().next()));
    all.insert("calls".into(), Value::Object(calls));
    all.insert("steps".into(), json!(log.steps));
    all.insert("traceEvents".into(), json!(log.events));
    Value::Object(all)
}

fn write_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        LazyLock::force(&START);
        if env::var_os("FAKE_GPU_COUNTS").is_some_and(|path| !path.is_empty()) {
            // SAFETY: the function is in this library, which is never unloaded.
            unsafe { libc::atexit(write) };
        }
    });
}

extern "C" fn write() {
    let outcome = std::panic::catch_unwind(|| {
        let path = env::var("FAKE_GPU_COUNTS").unwrap_or_default();
        let path = format!("{path}.{}.json", process::id());
        fs::write(&path, summary().to_string()).map_err(|error| format!("cannot write {path}: {error}"))
    });
    if let Ok(Err(message)) = outcome {
        report(&message);
    }
}
