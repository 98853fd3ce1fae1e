//! Spans of this process. Any thread may record; all share one list, because spans are rare beside operations.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The purpose of a span. The words are the categories of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An attempt at a step, from its begin to its end.
    Step,
    /// The wait for samples, and their copy to the device.
    Load,
    Forward,
    Backward,
    /// A segment that backward computes again.
    Recompute,
    /// The start of a bucket's reduction.
    Bucket,
    /// The wait for other ranks.
    Communication,
    Update,
    /// The rest of a step.
    Prepare,
    /// A module of the network.
    Module,
    /// A part of a reduction, on the thread of reductions.
    Reduction,
    /// Samples, by a thread of the loader.
    Decode,
    Evaluation,
    /// Copies and writes of checkpoints.
    Checkpoint,
    /// An operation of libtorch.
    Operation,
    /// A call of the GPU's runtime.
    Runtime,
    /// Work of a GPU.
    Gpu,
}

/// A span that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    pub kind: Kind,
    pub name: Cow<'static, str>,
    /// The thread's number for the kernel.
    pub thread: u64,
    /// Nanoseconds since 1970.
    pub begin_ns: u64,
    pub end_ns: u64,
    pub bytes: Option<u64>,
}

#[derive(Debug, Default)]
struct Spans {
    ended: Vec<Recorded>,
    threads: BTreeMap<u64, String>,
}

static RECORDING: AtomicBool = AtomicBool::new(false);
static SPANS: Mutex<Spans> = Mutex::new(Spans { ended: Vec::new(), threads: BTreeMap::new() });

/// A span that ends when it is dropped, on any thread.
#[derive(Debug, Default)]
#[must_use = "the span ends when it is dropped"]
pub struct Span(Option<Recorded>);

/// Begins a span.
#[inline]
pub fn span(kind: Kind, name: &'static str) -> Span {
    match is_recording() {
        true => Span::begin(kind, name.into(), None),
        false => Span(None),
    }
}

/// Begins a span whose name is made only if it is recorded.
#[inline]
pub fn named_span(kind: Kind, name: impl FnOnce() -> String) -> Span {
    match is_recording() {
        true => Span::begin(kind, name().into(), None),
        false => Span(None),
    }
}

/// Begins a span about a number of bytes.
#[inline]
pub fn bytes_span(kind: Kind, name: impl FnOnce() -> String, bytes: impl FnOnce() -> u64) -> Span {
    match is_recording() {
        true => Span::begin(kind, name().into(), Some(bytes())),
        false => Span(None),
    }
}

/// Returns whether spans are recorded.
#[inline]
pub fn is_recording() -> bool {
    RECORDING.load(Ordering::Relaxed)
}

/// Records spans from now on.
pub fn start() {
    *spans() = Spans::default();
    RECORDING.store(true, Ordering::Relaxed);
}

/// Ends recording. Returns the spans that began and ended since [`start`], and the names of their threads.
pub fn stop() -> (Vec<Recorded>, BTreeMap<u64, String>) {
    RECORDING.store(false, Ordering::Relaxed);
    let Spans { ended, threads } = std::mem::take(&mut *spans());
    (ended, threads)
}

impl Span {
    #[cold]
    fn begin(kind: Kind, name: Cow<'static, str>, bytes: Option<u64>) -> Self {
        let begin_ns = now_ns();
        Self(Some(Recorded { kind, name, thread: thread(), begin_ns, end_ns: begin_ns, bytes }))
    }

    /// Ends the span before it is dropped.
    #[inline]
    pub fn end(&mut self) {
        if let Some(recorded) = self.0.take() {
            record(recorded);
        }
    }
}

impl Drop for Span {
    #[inline]
    fn drop(&mut self) {
        self.end();
    }
}

#[cold]
fn record(mut recorded: Recorded) {
    if !is_recording() {
        return;
    }
    // A clock that is set back makes no negative span.
    recorded.end_ns = now_ns().max(recorded.begin_ns);
    let mut spans = spans();
    if recorded.thread == thread() {
        let name = || std::thread::current().name().unwrap_or("thread").to_owned();
        spans.threads.entry(recorded.thread).or_insert_with(name);
    }
    spans.ended.push(recorded);
}

fn spans() -> MutexGuard<'static, Spans> {
    // A panic while pushing leaves a whole list.
    SPANS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn thread() -> u64 {
    u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because recording is of the whole process.
    #[test]
    fn only_spans_within_the_recording_are_kept() {
        let before = span(Kind::Step, "before");
        start();
        drop(before);
        let outer = bytes_span(Kind::Bucket, || "bucket 1".to_owned(), || 7);
        drop(named_span(Kind::Module, || "layer1".to_owned()));
        drop(outer);
        let open = span(Kind::Step, "open");
        let (ended, threads) = stop();
        drop(open);
        drop(named_span(Kind::Module, || unreachable!("not recorded")));
        let names: Vec<_> = ended.iter().map(|span| (span.kind, &*span.name, span.bytes)).collect();
        assert_eq!(names, [(Kind::Module, "layer1", None), (Kind::Bucket, "bucket 1", Some(7))]);
        let [inner, outer] = &ended[..] else { unreachable!() };
        assert!(outer.begin_ns <= inner.begin_ns && inner.end_ns <= outer.end_ns);
        assert!(threads[&inner.thread].contains("only_spans_within"), "{threads:?}");
        start();
        assert_eq!(stop(), Default::default());
    }
}
