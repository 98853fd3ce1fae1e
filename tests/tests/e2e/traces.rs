//! `log.trace` and `dtrain trace`.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use dtrain_common::trace::{Event, Kind, RankTrace};
use dtrain_tests::process::{expect_exit_code, finish, output_text};
use dtrain_tests::runs::{Sandbox, gpt};

use crate::bad_input::folder_recipe;

const LIMIT: Duration = Duration::from_secs(120);

/// Runs `dtrain trace run`, and returns what it prints.
fn trace(sandbox: &Sandbox, run: &str) -> String {
    expect_exit_code(&sandbox.dtrain(&["trace", run]).output().unwrap(), 0)
}

/// Expects what readers of Chrome's format need: spans with a duration, within one another on each track.
fn assert_well_formed(joined: &RankTrace) {
    let mut tracks = BTreeMap::<(u64, u64), Vec<&Event>>::new();
    let mut named = Vec::new();
    for event in &joined.events {
        match event.ph {
            'X' => tracks.entry((event.pid, event.tid)).or_default().push(event),
            'M' => named.push((event.pid, event.tid, event.name.as_str())),
            other => panic!("an event of kind {other}"),
        }
        assert!(event.ts >= 0.0 && event.ts.is_finite(), "{event:?}");
    }
    for ((pid, tid), mut events) in tracks {
        assert!(named.contains(&(pid, tid, "thread_name")), "track {tid} of process {pid} has no name");
        events.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(b.end().total_cmp(&a.end())));
        let mut open: Vec<&Event> = Vec::new();
        for event in events {
            assert!(event.dur.is_some_and(|dur| dur >= 0.0), "{event:?}");
            // A nanosecond is the resolution.
            while open.pop_if(|last| last.end() <= event.ts + 0.0015).is_some() {}
            if let Some(around) = open.last() {
                assert!(event.end() <= around.end() + 0.0015, "{event:?} crosses {around:?}");
            }
            open.push(event);
        }
    }
}

/// Returns the milliseconds of a rank's spans in the step, by kind; each without what is inside it.
fn parts(trace: &RankTrace, step: u64) -> BTreeMap<Kind, f64> {
    let name = format!("step {step}");
    let whole = trace.events.iter().find(|event| event.name == name).unwrap();
    let is_part = |event: &&Event| {
        let outside = [Kind::Module, Kind::Operation, Kind::Reduction, Kind::Decode];
        let inside = whole.ts <= event.ts && event.end() <= whole.end();
        event.tid == whole.tid && inside && event.cat.is_some_and(|kind| !outside.contains(&kind))
    };
    let mut spans: Vec<&Event> = trace.events.iter().filter(is_part).collect();
    spans.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(b.end().total_cmp(&a.end())));
    let (mut parts, mut open) = (BTreeMap::<Kind, f64>::new(), Vec::<&Event>::new());
    for span in spans {
        let (kind, length) = (span.cat.unwrap(), span.dur.unwrap() / 1e3);
        while open.pop_if(|last| last.end() <= span.ts).is_some() {}
        if let Some(around) = open.last() {
            *parts.entry(around.cat.unwrap()).or_default() -= length;
        }
        *parts.entry(kind).or_default() += length;
        open.push(span);
    }
    parts
}

#[test]
fn two_ranks_make_one_timeline_whose_spans_are_the_steps() {
    let recipe = gpt(8, "trace = \"3-7\"\n[checkpoint]\nevery = \"2 steps\"\n[memory]\nrecompute = \"on\"\n");
    let sandbox =
        Sandbox::new(&recipe.replace("width = 16", "width = 64").replace("context = 8", "context = 64"));
    let run = sandbox.train(2, "run", &[]);
    let ms = run.per_step("step_ms");
    for rank in 0..2 {
        let own = RankTrace::read(&run.0.trace(rank)).unwrap();
        assert_eq!((own.meta.rank, own.meta.world_size, own.meta.steps), (rank, 2, [3, 7]));
        let mut unknown = Vec::new();
        for step in 3..=7 {
            let mut parts = parts(&own, step);
            let rest = parts.remove(&Kind::Step).unwrap();
            let (sum, measured) = (parts.values().sum::<f64>(), ms[step as usize - 1]);
            unknown.push((
                (sum - measured).abs() / measured,
                format!("{sum} of {measured} ms, {rest}: {parts:?}"),
            ));
            let known = [
                Kind::Load,
                Kind::Forward,
                Kind::Backward,
                Kind::Recompute,
                Kind::Bucket,
                Kind::Communication,
                Kind::Update,
            ];
            assert!(known.iter().all(|kind| parts.contains_key(kind)), "{parts:?}");
        }
        // The metrics are those of rank 0. Another process may take the processor between two spans of a step.
        if rank == 0 {
            unknown.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(unknown[2].0 <= 0.03, "{unknown:#?}");
        }
    }
    let text = trace(&sandbox, "run");
    assert!(text.contains("steps 3 to 7 on 2 ranks, milliseconds"), "{text}");
    assert!(text.contains("bound by "), "{text}");
    let joined = RankTrace::read(&run.0.traces().join("trace.json.gz")).unwrap();
    assert_well_formed(&joined);
    for rank in 0..2 {
        let has = |kind, name: &str| {
            let found =
                |event: &&Event| event.pid == rank && event.cat == Some(kind) && event.name.contains(name);
            assert!(joined.events.iter().any(|event| found(&event)), "rank {rank} has no {kind:?} {name}");
        };
        has(Kind::Operation, "aten::");
        has(Kind::Module, "");
        has(Kind::Evaluation, "evaluation");
        has(Kind::Checkpoint, "");
        has(Kind::Decode, "");
        has(Kind::Reduction, "");
        let is_backward =
            |event: &&Event| event.pid == rank && event.cat == Some(Kind::Module) && event.tid > 1 << 24;
        assert!(joined.events.iter().any(|event| is_backward(&event)), "backward by module");
    }
}

#[test]
fn a_slow_loader_and_small_buckets_are_named() {
    let sandbox = Sandbox::new(&folder_recipe());
    for (split, count) in [("train", 8), ("test", 1)] {
        for class in ["dark", "light"] {
            let folder = sandbox.path(&format!("data/{split}/{class}"));
            fs::create_dir_all(&folder).unwrap();
            for index in 0..count {
                let pixel =
                    |x: u32, y: u32| image::Rgb([(x * 7 + index) as u8, (y * 3) as u8, (x * y) as u8]);
                image::RgbImage::from_fn(800, 800, pixel).save(folder.join(format!("{index}.jpg"))).unwrap();
            }
        }
    }
    let slow = ["log.trace=2-4", "train.epochs=5", "data.cache=off", "data.workers=1", "data.decode=exact"];
    sandbox.train(2, "slow", &slow);
    let text = trace(&sandbox, "slow");
    assert!(text.contains("bound by data: rank ") && text.contains("raise data.workers (now 1)"), "{text}");

    let recipe = gpt(5, "trace = \"3-5\"\n[reduce]\nbucket = \"1 KiB\"\nfirst_bucket = \"1 KiB\"\n");
    let sandbox = Sandbox::new(&recipe.replace("depth = 2", "depth = 12"));
    // Each reduction costs a message and its answer.
    let mut command = sandbox.command(2, "small", &[], &[]);
    expect_exit_code(&finish(command.env("DTRAIN_TRANSPORT", "gloo"), LIMIT), 0);
    let text = trace(&sandbox, "small");
    assert!(text.contains("raise reduce.bucket (now 1 KiB) to the default, 25 MiB"), "{text}");
}

#[test]
fn steps_that_are_not_reached_are_a_warning() {
    let sandbox = Sandbox::new(&gpt(3, ""));
    let text = expect_exit_code(&sandbox.launch(1, "run", &["log.trace=10-12"]), 0);
    assert!(text.contains("log.trace = \"10-12\": the run has 3 steps; no step is traced"), "{text}");
    let text = output_text(&sandbox.dtrain(&["trace", "run"]).output().unwrap());
    assert!(text.contains("has no timeline; record steps first"), "{text}");

    // A part of the range is recorded, and a refused write ends no training.
    fs::write(sandbox.path("run/trace"), "a file").unwrap();
    let text = expect_exit_code(&sandbox.launch(1, "run", &["train.steps=6", "log.trace=5-9"]), 0);
    assert!(text.contains("it traces up to step 6"), "{text}");
    assert!(text.contains("log.trace: cannot write") && text.contains("training continues"), "{text}");
    assert_eq!(sandbox.run("run").per_step("loss").len(), 6);

    let text = expect_exit_code(&sandbox.launch(1, "backwards", &["log.trace=12-10"]), 2);
    assert!(text.contains("log.trace") && text.contains("write \"10-12\" for these steps"), "{text}");
}
