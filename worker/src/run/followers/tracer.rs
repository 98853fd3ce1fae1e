//! The timeline of the steps of `log.trace`. A failure of the profiler or of the disk is a warning.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use dtrain_common::files::remedy;
use dtrain_common::host;
use dtrain_common::run_dir::RunDir;
use dtrain_common::trace::{self, Event, Kind, Meta, RankTrace, Recorded};
use dtrain_recipe::TracedSteps;
use dtrain_torch_shim::profile::{Operation, Profile};
use tch::Device;

use crate::heartbeat::Heartbeat;
use crate::run::Training;
use crate::run::error::Result;
use crate::run::follower::{Flow, Follower, Followers};
use crate::step::Taken;

/// Records this rank's steps, with all that followers do after them. It is the last follower.
pub(crate) struct Tracer {
    wanted: TracedSteps,
    path: PathBuf,
    meta: Meta,
    device: Device,
    heartbeat: Heartbeat,
    recording: Option<Recording>,
    is_done: bool,
}

struct Recording {
    /// None if libtorch cannot record operations.
    operations: Option<Profile>,
    first: u64,
}

impl Tracer {
    pub(crate) fn new(
        wanted: TracedSteps,
        run_dir: &RunDir,
        (rank, world_size): (usize, usize),
        device: Device,
        heartbeat: Heartbeat,
    ) -> Self {
        let name = match device {
            Device::Cuda(gpu) => format!("cuda:{gpu}"),
            _ => "cpu".to_owned(),
        };
        let meta = Meta { rank, world_size, host: host::name(), device: name, ..Meta::default() };
        let path = run_dir.trace(rank);
        Self { wanted, path, meta, device, heartbeat, recording: None, is_done: false }
    }

    /// Begins or ends the recording before the step after `done`.
    fn follow(&mut self, done: u64) {
        let is_wanted = self.wanted.contains(done + 1);
        if is_wanted && self.recording.is_none() && !self.is_done {
            let operations = Profile::begin(self.device.is_cuda());
            let operations = operations
                .inspect_err(|error| tracing::warn!("log.trace: no operations in the timeline: {error}"));
            trace::start();
            self.recording = Some(Recording { operations: operations.ok(), first: done + 1 });
        } else if !is_wanted {
            self.end(done);
        }
    }

    /// Ends the recording after step `last`, and writes the file.
    fn end(&mut self, last: u64) {
        let Some(Recording { operations, first }) = self.recording.take() else { return };
        if last < first {
            // The run ended before the first step. A timeline of an earlier attempt stays.
            drop(trace::stop());
            return;
        }
        self.is_done = true;
        let began = Instant::now();
        let _writing = self.heartbeat.guard_write();
        let (spans, threads) = trace::stop();
        let operations = operations.map_or_else(
            || Ok(Vec::new()),
            |profile| profile.end().inspect_err(|error| tracing::warn!("log.trace: {error}")),
        );
        self.meta.steps = [first, last];
        let timeline = timeline(&self.meta, &spans, &threads, &operations.unwrap_or_default());
        let written = self.path.parent().map_or(Ok(()), fs::create_dir_all);
        let written = written.and_then(|()| timeline.write(&self.path));
        self.report(written, timeline.events.len(), began);
    }

    fn report(&self, written: io::Result<()>, events: usize, began: Instant) {
        let path = self.path.display();
        match written {
            Ok(()) => tracing::debug!("{events} events in {path}, written in {:?}", began.elapsed()),
            Err(error) => {
                let remedy = remedy(&error);
                tracing::warn!("log.trace: cannot write {path}: {error}{remedy}; training continues");
            }
        }
    }
}

impl Follower for Tracer {
    fn begin(&mut self, training: &mut Training<'_>, _: &mut Followers<'_>) -> Result<Flow> {
        let (done, total) = (training.course.done, training.course.plan.total_steps);
        let wanted = self.wanted;
        if self.meta.rank == 0 && wanted.last() > total {
            let traced = match wanted.first() > total {
                true => "no step is traced".to_owned(),
                false => format!("it traces up to step {total}"),
            };
            tracing::warn!("log.trace = \"{wanted}\": the run has {total} steps; {traced}");
        }
        self.follow(done);
        Ok(Flow::Continue)
    }

    fn after_step(&mut self, training: &mut Training<'_>, _: &Taken, _: &mut Followers<'_>) -> Result<Flow> {
        self.follow(training.course.done);
        Ok(Flow::Continue)
    }

    fn finish(&mut self, training: &mut Training<'_>, _: &mut Followers<'_>) -> Result<()> {
        self.end(training.course.done);
        Ok(())
    }
}

/// Makes the file of spans and operations. Times count from the earliest.
fn timeline(
    meta: &Meta,
    spans: &[Recorded],
    threads: &std::collections::BTreeMap<u64, String>,
    operations: &[Operation],
) -> RankTrace {
    let begins = spans.iter().map(|span| span.begin_ns);
    let base = begins.chain(operations.iter().map(|one| one.start_ns)).min().unwrap_or(0);
    let us = |ns: u64| ns.saturating_sub(base) as f64 / 1e3;
    let process = meta.rank as u64;
    let main_thread = spans.iter().find(|span| span.kind == Kind::Step).map_or(0, |span| span.thread);
    let name = format!("rank {} on {}", meta.rank, meta.host);
    let mut events = vec![Event::naming("process_name", (process, 0), &name)];
    let named = threads.iter().map(|(thread, name)| {
        let name = if *thread == main_thread { "steps" } else { name };
        Event::naming("thread_name", (process, *thread), name)
    });
    events.extend(named);
    events.extend(spans.iter().map(|span| {
        let (begin, end) = (us(span.begin_ns), us(span.end_ns));
        let event = Event::span(span.kind, &*span.name, (process, span.thread), begin, end - begin);
        span.bytes.into_iter().fold(event, |event, bytes| event.with("bytes", bytes))
    }));
    events.extend(operations.iter().map(|one| {
        let kind = kind_of(one);
        let place = (process, one.thread);
        let event = Event::span(kind, &*one.name, place, us(one.start_ns), one.duration_ns as f64 / 1e3);
        let event = one.sequence.into_iter().fold(event, |event, number| event.with("sequence", number));
        let event = if one.is_backward { event.with("backward", true) } else { event };
        one.gpu.into_iter().fold(event, |event, gpu| event.with("gpu", gpu))
    }));
    let meta = Meta { base_ns: base, main_thread, ..meta.clone() };
    RankTrace::new(meta, events)
}

fn kind_of(operation: &Operation) -> Kind {
    match operation {
        Operation { gpu: Some(_), .. } => Kind::Gpu,
        Operation { name, .. } if name.starts_with("cuda") || name.starts_with("cuLaunch") => Kind::Runtime,
        _ => Kind::Operation,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;

    fn tracer(folder: &std::path::Path) -> Tracer {
        let wanted = "2-3".parse().unwrap();
        Tracer::new(wanted, &RunDir::new(folder), (0, 1), Device::Cpu, Heartbeat::default())
    }

    #[test]
    fn times_count_from_the_first_event() {
        let span = Recorded {
            kind: Kind::Step,
            name: "step 2".into(),
            thread: 7,
            begin_ns: 5_000,
            end_ns: 9_500,
            bytes: None,
        };
        let operation = Operation {
            name: "aten::mm".to_owned(),
            start_ns: 4_000,
            duration_ns: 250,
            thread: 7,
            gpu: None,
            sequence: Some(3),
            is_backward: false,
        };
        let kernel = Operation { gpu: Some(0), name: "gemm".to_owned(), ..operation.clone() };
        let meta = Meta { rank: 1, host: "a".to_owned(), ..Meta::default() };
        let made = timeline(&meta, &[span], &BTreeMap::from([(7, "main".into())]), &[operation, kernel]);
        assert_eq!((made.meta.base_ns, made.meta.main_thread), (4_000, 7));
        let shown: Vec<_> =
            made.events.iter().map(|event| (event.name.as_str(), event.ts, event.dur)).collect();
        let names = [("process_name", 0.0, None), ("thread_name", 0.0, None)];
        let spans = [("step 2", 1.0, Some(4.5)), ("aten::mm", 0.0, Some(0.25)), ("gemm", 0.0, Some(0.25))];
        assert_eq!(shown, [&names[..], &spans[..]].concat());
        assert_eq!((made.events[3].number("sequence"), made.events[4].cat), (Some(3), Some(Kind::Gpu)));
    }

    #[test]
    fn a_recording_begins_before_its_first_step_and_a_refused_write_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut tracer = tracer(folder.path());
        tracer.follow(0);
        assert!(tracer.recording.is_none());
        tracer.follow(1);
        tracer.follow(2);
        assert!(tracer.recording.is_some() && !tracer.path.exists());
        // A file in place of the folder.
        fs::write(folder.path().join("trace"), "").unwrap();
        tracer.follow(3);
        assert!(tracer.recording.is_none() && tracer.is_done);

        // A run that ends before the first step leaves an earlier timeline.
        let folder = tempfile::tempdir().unwrap();
        let mut tracer = self::tracer(folder.path());
        fs::create_dir(folder.path().join("trace")).unwrap();
        fs::write(&tracer.path, "earlier").unwrap();
        tracer.follow(1);
        assert!(tracer.recording.is_some());
        tracer.end(1);
        assert!(tracer.recording.is_none());
        assert_eq!(fs::read(&tracer.path).unwrap(), b"earlier");
    }
}
