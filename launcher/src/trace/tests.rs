#![allow(clippy::unwrap_used)]

use super::shares::Bound;
use super::times::Times;

use super::*;
use dtrain_common::trace::{Event, Kind, Meta, RankTrace};
use std::fs;

const MAIN: u64 = 5;

/// The parts of a step of a made timeline, in milliseconds.
#[derive(Clone, Copy)]
struct Made {
    load: f64,
    compute: f64,
    /// The length of each operation in the computation, in microseconds.
    operation: f64,
    communication: f64,
    buckets: usize,
}

const PLAIN: Made = Made { load: 1.0, compute: 90.0, operation: 2000.0, communication: 5.0, buckets: 2 };

fn events(made: Made, step: u64, began: f64) -> Vec<Event> {
    let span = |kind, name: &str, begin: f64, length: f64| {
        Event::span(kind, name, (0, MAIN), began + 1e3 * begin, 1e3 * length)
    };
    let whole = made.load + made.compute + made.communication;
    let mut all = vec![
        span(Kind::Step, &format!("step {step}"), 0.0, whole),
        span(Kind::Forward, "forward", 0.0, made.load + made.compute),
        span(Kind::Load, "load", 0.0, made.load),
        span(Kind::Module, "layer1", made.load, made.compute),
        span(Kind::Communication, "agree", made.load + made.compute, made.communication),
    ];
    for number in 0..made.buckets {
        let bucket = span(Kind::Bucket, "bucket", made.load + 0.001 * number as f64, 0.0);
        all.push(bucket.with("bytes", 2048));
    }
    let count = (1e3 * made.compute / (made.operation + 1.0)) as usize;
    all.extend((0..count).flat_map(|number| {
        let begin = made.load + number as f64 * (made.operation + 1.0) / 1e3;
        // It allocates its result.
        let result = span(Kind::Operation, "aten::empty", begin + 0.001, 0.001);
        [span(Kind::Operation, "aten::mm", begin, made.operation / 1e3), result]
    }));
    all
}

/// A run whose ranks have these steps; rank 1 is on another host, whose clock is 5 s ahead.
fn run(ranks: &[Made]) -> (tempfile::TempDir, RunDir) {
    let folder = tempfile::tempdir().unwrap();
    let run_dir = RunDir::new(folder.path());
    fs::create_dir(run_dir.traces()).unwrap();
    fs::write(run_dir.recipe(), "[data]\nworkers = 1\n[reduce]\nbucket = \"2 KiB\"\n").unwrap();
    fs::write(run_dir.plan(), "{\"micro_batch\":4,\"grad_accum_steps\":2}").unwrap();
    let longest = ranks.iter().map(|made| made.load + made.compute).fold(0.0, f64::max);
    for (rank, made) in ranks.iter().enumerate() {
        // All leave the agreement together.
        let waits = Made { communication: made.communication + longest - made.load - made.compute, ..*made };
        let steps = [3, 4].map(|step| events(waits, step, 1e6 * step as f64));
        let meta = Meta {
            rank,
            world_size: ranks.len(),
            host: format!("host{rank}"),
            steps: [3, 4],
            base_ns: 1_000_000_000_000 + 5_000_000_000 * rank as u64,
            main_thread: MAIN,
            ..Meta::default()
        };
        RankTrace::new(meta, steps.concat()).write(&run_dir.trace(rank)).unwrap();
    }
    (folder, run_dir)
}

fn verdict(ranks: &[Made]) -> (Bound, String) {
    let (_folder, run_dir) = run(ranks);
    let Verdict { bound, sentence, .. } = Verdict::of_run(&run_dir).unwrap();
    (bound, sentence)
}

#[test]
fn each_bound_is_named_with_its_setting() {
    let slow_data = Made { load: 70.0, ..PLAIN };
    let tiny = Made { operation: 15.0, compute: 20.0, ..PLAIN };
    let tiny_and_small = Made { communication: 8.5, buckets: 60, ..tiny };
    let talks = Made { communication: 80.0, buckets: 60, ..PLAIN };
    for (ranks, bound, words) in [
        ([PLAIN, PLAIN], Bound::Arithmetic, "of a step is in long operations"),
        ([tiny, tiny], Bound::Launches, "raise memory.micro_batch (now 4)"),
        (
            [talks, talks],
            Bound::Communication,
            "60 reductions of 2.00 KiB on average; raise reduce.bucket (now 2 KiB)",
        ),
        (
            [tiny_and_small, tiny_and_small],
            Bound::Launches,
            "; also 29% of a step is communication, with 60 reductions",
        ),
        ([slow_data, slow_data], Bound::Data, "raise data.workers (now 1)"),
        ([PLAIN, slow_data], Bound::Data, "rank 1 waits 42% of a step for samples"),
        ([PLAIN, slow_data], Bound::Data, "other ranks wait up to 42% of a step for rank 1"),
    ] {
        let (found, sentence) = verdict(&ranks);
        assert_eq!(found, bound, "{sentence}");
        assert!(sentence.contains(words), "{sentence}");
        assert!(!sentence.contains('\n'));
    }
}

#[test]
fn waits_between_recorded_steps_are_named() {
    let (_folder, run_dir) = run(&[PLAIN, PLAIN]);
    for (data, is_named) in [(60.0, true), (5.0, false)] {
        let line = format!("{{\"step_ms\":100.0,\"wait_ms\":{{\"data\":{data},\"comm\":0.0}}}}\n");
        fs::write(run_dir.metrics(), line.repeat(4)).unwrap();
        let found = Verdict::of_run(&run_dir).unwrap();
        assert_eq!(found.bound, Bound::Arithmetic);
        assert_eq!(found.sentence.contains("rank 0 waits 60% of a step for samples"), is_named, "{found}");
    }
}

#[test]
fn metrics_alone_name_waits() {
    let folder = tempfile::tempdir().unwrap();
    let run_dir = RunDir::new(folder.path());
    assert_eq!(Verdict::of_run(&run_dir), None);
    let write = |data: f64, comm: f64| {
        let line = |step: u64| {
            format!("{{\"step\":{step},\"step_ms\":100.0,\"wait_ms\":{{\"data\":{data},\"comm\":{comm}}}}}\n")
        };
        // The first step waits for what is prepared once, and the last line is cut off.
        let first = "{\"step\":1,\"step_ms\":9000.0,\"wait_ms\":{\"data\":8000.0,\"comm\":0.0}}\n{\"eval\":{\"step\":1}}\n";
        fs::write(run_dir.metrics(), format!("{first}{}{}{{\"step\":4,\"ste", line(2), line(3))).unwrap();
        Verdict::of_run(&run_dir).unwrap()
    };
    for (data, comm, bound, words) in [
        (60.0, 1.0, Bound::Data, "rank 0 waits 60% of a step for samples"),
        (1.0, 30.0, Bound::Communication, "record steps with log.trace to see which"),
        (1.0, 2.0, Bound::Computing, "to tell launches from arithmetic"),
    ] {
        let found = write(data, comm);
        assert_eq!(found.bound, bound, "{found}");
        assert!(found.sentence.contains(words), "{found}");
    }
}

#[test]
fn clocks_are_those_of_the_first_host_and_missing_ranks_are_named() {
    let (_folder, run_dir) = run(&[PLAIN, PLAIN, PLAIN]);
    fs::remove_file(run_dir.trace(2)).unwrap();
    let traces = Traces::read(&run_dir).unwrap();
    assert_eq!(traces.missing, [2]);
    let clocks = align::clocks(&traces.ranks);
    assert_eq!(clocks.values().copied().collect::<Vec<_>>(), [0, -5_000_000_000]);
    let joined = join::join(&traces, &clocks);
    let begins = |rank: u64| {
        let of_rank =
            joined.events.iter().filter(move |event| event.pid == rank && event.cat == Some(Kind::Step));
        of_rank.map(|event| event.ts).collect::<Vec<_>>()
    };
    assert_eq!(begins(0), begins(1), "both ranks begin together");
    let mut text = String::new();
    table::append(&mut text, &traces, &clocks);
    assert!(text.starts_with("steps 3 to 4 on 3 ranks, milliseconds of a mean step\n"), "{text}");
    assert!(text.contains("the clock of host1 is shifted by -5000.000 ms"), "{text}");
    assert!(text.contains("without rank 2: copy trace/rank_R.json.gz"), "{text}");
}

#[test]
fn the_parts_of_a_step_are_the_step() {
    let (_folder, run_dir) = run(&[PLAIN]);
    let traces = Traces::read(&run_dir).unwrap();
    let times = Times::of(&traces.ranks[0]).unwrap();
    assert_eq!(times.steps, 2);
    let parts = [Kind::Load, Kind::Forward, Kind::Communication].map(|kind| times.part(kind).round());
    assert_eq!(parts, [1.0, 90.0, 5.0]);
    assert!((times.parts.values().sum::<f64>() - times.step_ms).abs() < 1e-6);
}

#[test]
fn kernels_of_a_gpu_tell_idle_time_from_reductions() {
    let (_folder, run_dir) = run(&[PLAIN]);
    let mut trace = RankTrace::read(&run_dir.trace(0)).unwrap();
    let kernel = |name: &str, begin: f64, length: f64| {
        Event::span(Kind::Gpu, name, (0, 7), begin, length).with("gpu", 0)
    };
    for begin in [3e6, 4e6] {
        trace.events.extend([
            kernel("gemm", begin, 10_000.0),
            kernel("ncclDevKernel_AllReduce", begin + 5_000.0, 7_000.0),
            kernel("Memcpy HtoD", begin + 20_000.0, 9_000.0),
        ]);
    }
    trace.write(&run_dir.trace(0)).unwrap();
    let gpu = Times::of(&trace).unwrap().gpu.unwrap();
    assert_eq!((gpu.kernels, gpu.computing_ms, gpu.reducing_ms), (2.0, 10.0, 2.0));
    let verdict = Verdict::of_run(&run_dir).unwrap();
    assert_eq!(verdict.bound, Bound::Launches);
    assert!(verdict.sentence.contains("the GPU of rank 0 is idle for 86% of a step"), "{verdict}");
}

#[test]
fn a_folder_without_a_timeline_is_an_error_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let error = |path: &std::path::Path| Traces::read(&RunDir::new(path)).unwrap_err().to_string();
    assert!(error(folder.path()).contains("--set log.trace=10-12"));
    assert!(error(&folder.path().join("none")).contains("is no run directory"));
    fs::create_dir(folder.path().join("trace")).unwrap();
    fs::write(folder.path().join("trace/rank_0.json.gz"), "no gzip").unwrap();
    assert!(error(folder.path()).contains("is damaged"));
    // Of an earlier recording with more ranks.
    let (_folder, run_dir) = run(&[PLAIN]);
    fs::write(run_dir.trace(1), "no gzip").unwrap();
    assert_eq!(Traces::read(&run_dir).unwrap().ranks.len(), 1);
}
