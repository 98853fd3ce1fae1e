//! Compares predictions with the allocator's own peak on machines of fake GPUs: memory is real there, kernels are not.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use dtrain_common::run_dir::RunDir;
use dtrain_test_kit::faults::Random;
use xtask::workspace::Workspace;

use super::accuracy::{self, ASSUMED, ON_FAKES, mib, profiles};
use super::cases::{CASES, Case};
use super::{Args, Bench, programs};
use crate::files::write;
use crate::report::{Group, Row, Verdict};

/// A GPU that a fake one resembles: name, compute capability, multiprocessors, and GiB of memory.
struct Model(&'static str, &'static str, u32, u32);

const MODELS: [Model; 5] = [
    Model("Tesla T4", "7.5", 40, 15),
    Model("NVIDIA GeForce RTX 3090", "8.6", 82, 24),
    Model("NVIDIA A100-SXM4-80GB", "8.0", 108, 80),
    Model("NVIDIA H100 80GB HBM3", "9.0", 132, 80),
    Model("NVIDIA B200", "10.0", 148, 180),
];

/// Profiles the cases: each on one machine in turn, or all on every machine. Then trains random configurations.
pub(super) fn run(bench: &Bench<'_>, workspace: &Workspace, args: &Args) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    let benches = MODELS.iter().map(|model| on(bench, model)).collect::<Result<Vec<_>>>()?;
    if args.every_machine {
        for (bench, Model(name, ..)) in benches.iter().zip(&MODELS) {
            let pairs = CASES.iter().map(|case| (bench, case));
            groups.extend(compare(&format!("predictions, fake {name}"), pairs)?);
        }
    } else {
        let is_named = |case: &&Case| args.only.iter().any(|text| case.name.contains(text));
        let cases = CASES.iter().filter(|case| args.only.is_empty() || is_named(case));
        groups.extend(compare("predictions, five fake GPUs in turn", benches.iter().cycle().zip(cases))?);
    }
    if let (Some(list), Some(python)) = (&args.programs, &args.python) {
        groups.extend(programs::run(&benches, workspace, python, list)?);
    }
    if args.trainings > 0 {
        groups.push(train_all(&benches, args)?);
    }
    for Model(_, capability, ..) in &MODELS {
        let user = rustix::process::getuid().as_raw();
        let _ = fs::remove_dir_all(format!("/dev/shm/fake-gpu-{user}-{}", id(capability)));
    }
    Ok(groups)
}

fn compare<'a>(title: &str, pairs: impl Iterator<Item = (&'a Bench<'a>, &'a Case)>) -> Result<Vec<Group>> {
    let (assumed, known): (Vec<_>, Vec<_>) = pairs.partition(|(_, case)| case.assumes_copies());
    Ok(vec![
        accuracy::group(title, profiles(known.into_iter()), Some(ON_FAKES))?,
        accuracy::group(&format!("{title}{ASSUMED}"), profiles(assumed.into_iter()), None)?,
    ])
}

/// Returns the id of a machine of this process.
fn id(capability: &str) -> String {
    format!("memory-{capability}-{}", std::process::id())
}

/// Returns a bench that runs dtrain on a machine of four such GPUs.
fn on<'a>(bench: &Bench<'a>, Model(name, capability, multiprocessors, gib): &Model) -> Result<Bench<'a>> {
    let file = bench.work.join(format!("machine-{capability}.toml"));
    let text = format!(
        "id = {:?}\n[[gpu]]\ncount = 4\nname = {name:?}\ncompute-capability = {capability:?}\n\
         multiprocessors = {multiprocessors}\nmemory = \"{gib}GiB\"\n",
        id(capability)
    );
    write(&file, text)?;
    Ok(Bench { machine: Some(file), dtrain: bench.dtrain.clone(), work: bench.work.clone(), ..*bench })
}

/// Trains random configurations with random budgets: each must train without a repeated step and within its budget, or end
/// with exit code 3 as planned.
fn train_all(benches: &[Bench<'_>], args: &Args) -> Result<Group> {
    let mut group = Group::new("random trainings under random budgets");
    let mut random = Random::new(args.seed);
    let (mut trained, mut too_small) = (0, 0);
    let cases: Vec<&Case> = CASES.iter().filter(|case| !case.counts_pixels()).collect();
    for number in 0..args.trainings {
        let machine = random.below(benches.len() as u64) as usize;
        let (bench, Model(name, ..)) = (&benches[machine], &MODELS[machine]);
        bench.signals.check()?;
        let case = cases[random.below(cases.len() as u64) as usize];
        let ranks = 1 << random.below(3);
        let graphs = random.below(2) == 1;
        // Between a hopeless and an ample budget for these networks.
        let budget = (48.0 * f64::from(1 << 20) * 16f64.powf(random.share())) as u64;
        let row = Row::new(format!(
            "{}, {ranks} x {name}{}, {:.0} MiB",
            case.name,
            if graphs { ", graphs" } else { "" },
            mib(budget)
        ));
        let row = match train(bench, case, (number, ranks, graphs, budget)) {
            Ok(Ended::Trained { peak, reserved }) => {
                trained += 1;
                row.with("allocated, MiB", mib(peak))
                    .with("reserved, MiB", mib(reserved))
                    .with_verdict(Verdict::of(reserved <= budget), "trained")
            }
            Ok(Ended::TooSmall) => {
                too_small += 1;
                row.with_verdict(Verdict::Passed, "exit code 3")
            }
            Ok(Ended::Uncomputed) => {
                row.with_verdict(Verdict::Skipped, "a loss that no kernel computes is not finite")
            }
            Err(error) => row.with_verdict(Verdict::Failed, format!("{error:#}")),
        };
        eprintln!("{}: {} {}", row.name, row.verdict.map_or("", Verdict::as_str), row.note);
        group.rows.push(row);
    }
    let note = format!("{trained} trained, {too_small} ended with exit code 3");
    group.rows.push(Row::new(format!("{} trainings", args.trainings)).with_verdict(Verdict::Passed, note));
    Ok(group)
}

/// How a random training ended.
enum Ended {
    /// With the most memory of a step, in bytes.
    Trained { peak: u64, reserved: u64 },
    /// The smallest step does not fit.
    TooSmall,
    /// dtrain stopped because a fake GPU's memory held something else in place of a loss.
    Uncomputed,
}

fn train(
    bench: &Bench<'_>,
    case: &Case,
    (number, ranks, graphs, budget): (u32, usize, bool, u64),
) -> Result<Ended> {
    let recipe = bench.recipe(&format!("training-{number}"), &case.recipe())?;
    let run = RunDir::new(bench.work.join(format!("run-{number}")));
    let own = case.sets.iter().filter(|set| !set.starts_with("memory.")).map(|set| (*set).to_owned());
    let mut sets: Vec<String> = own.collect();
    // More steps than a micro-step takes to be captured.
    sets.extend([
        format!("memory.budget={budget}"),
        "train.steps=6".into(),
        "checkpoint.every=\"1000 steps\"".into(),
    ]);
    if graphs {
        sets.push("model.compile=graph".into());
    }
    let (ranks, folder) = (ranks.to_string(), run.root().display().to_string());
    let ended = bench.dtrain(&["launch", "--nproc", &ranks, "--run-dir", &folder], &recipe, &sets)?;
    if ended.code == 3 {
        // The plan has found out before any step.
        let known = ["before the first step", "no smaller cut exists"];
        ensure!(known.iter().any(|text| ended.stderr.contains(text)), "exit code 3 against the plan");
        return Ok(Ended::TooSmall);
    }
    if ended.code == 4 && ended.stderr.contains("the loss was not finite") {
        return Ok(Ended::Uncomputed);
    }
    ended.expect(0)?;
    let read = |path: &Path| fs::read_to_string(path).with_context(|| path.display().to_string());
    let result: serde_json::Value = serde_json::from_str(&read(&run.result())?)?;
    let replays = result["oom_replays"].as_u64().unwrap_or_default();
    ensure!(replays == 0, "{replays} step(s) ran out of memory and were repeated");
    let (mut peak, mut reserved) = (0, 0);
    for step in xtask::metrics::steps(&read(&run.metrics())?)? {
        peak = peak.max(step["memory"]["peak"].as_u64().unwrap_or(0));
        reserved = reserved.max(step["memory"]["reserved"].as_u64().unwrap_or(0));
    }
    Ok(Ended::Trained { peak, reserved })
}
