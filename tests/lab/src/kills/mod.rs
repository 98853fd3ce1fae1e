//! `kills`: kills short trainings at random moments, often while they write a checkpoint, and resumes them.
//!
//! After each kill, every checkpoint must be intact. At the end, the weights, the optimizer's state and the
//! moving average must have the bytes of an undisturbed run, and no process may remain.

mod case;
mod plan;
mod run_files;
mod running_launch;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use dtrain_test_kit::faults::Random;

use xtask::process::Signals;
use xtask::setup::SetArgs;
use xtask::workspace::Workspace;

use crate::files::{create, find_programs, write};
use crate::machine::Machine;
use crate::report::Report;
use case::{CaseRunner, Outcome, Reference};
use plan::{EVERY, Plan, STEPS};
use table::Table;

/// The arguments of `kills`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    set: SetArgs,
    /// Number of kills
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    moments: u64,
    /// Roll every run back once, and kill it during the rollback
    #[arg(long)]
    rollbacks: bool,
    /// Seed of the random choices, printed by each run [default: new]
    #[arg(long)]
    seed: Option<u64>,
    /// Folder of built programs [default: a new release build]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["cpu", "cuda"])]
    bin_dir: Option<PathBuf>,
}

/// Returns a recipe in which all state matters: moments, moving average, and a number of samples that the
/// ranks do not divide. `eps` keeps the update smooth for gradients that are only rounding noise.
fn recipe() -> String {
    format!(
        "\
task = \"lm\"
[data]
kind = \"generated\"
train_samples = 64
test_samples = 4
[model]
name = \"gpt\"
width = 64
depth = 2
heads = 2
context = 32
[train]
effective_batch = 8
steps = {STEPS}
seed = 5
[optim]
name = \"adamw\"
lr = 1e-3
eps = 1e-3
[ema]
decay = 0.9
[precision]
amp = \"off\"
[memory]
micro_batch = 2
[checkpoint]
every = \"{EVERY} steps\"
keep = 2
[log]
every_steps = 1
"
    )
}

/// Kills, resumes, compares and prints. The exit code is 1 if a case failed.
pub(crate) fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let programs = match find_programs(workspace, signals, &args.set, args.bin_dir.as_deref())? {
        Ok(programs) => programs,
        Err(code) => return Ok(code),
    };
    let seed = args.seed.unwrap_or_else(seed_from_clock);
    let folder = workspace.target().join("kills");
    let work = WorkFolder::new(&folder)?;
    let recipe_file = work.0.join("recipe.toml");
    write(&recipe_file, recipe())?;
    let bench = CaseRunner { signals, programs, recipe: recipe_file, work: work.0.clone() };
    eprintln!("{} kills, {STEPS} steps per run, a checkpoint every {EVERY} steps, seed {seed}", args.moments);
    let begun = Instant::now();
    let machine = Machine::describe(Some(workspace), serde_json::Value::Null)?;
    let table = cases(&bench, &folder, args, seed)?;
    let rollbacks = if args.rollbacks { " --rollbacks" } else { "" };
    let command = format!("cargo xtask kills --moments {}{rollbacks} --seed {seed}", args.moments);
    let mut report = Report::new(command, machine);
    report.groups = table.groups();
    report.publish(&folder.join("results.json"))?;
    eprintln!("kills took {:.0} s", begun.elapsed().as_secs_f64());
    Ok(u8::from(table.failures() > 0))
}

fn cases(bench: &CaseRunner<'_>, folder: &Path, args: &Args, seed: u64) -> Result<Table> {
    /// Cases between two lines of progress: each kind with each number of ranks.
    const GROUP: u64 = 9;
    let mut references: BTreeMap<usize, Reference> = BTreeMap::new();
    let mut random = Random::new(seed);
    let mut table = Table::default();
    for number in 0..args.moments {
        let plan = Plan::draw(number, args.rollbacks, &mut random);
        let reference = match references.remove(&plan.ranks) {
            Some(reference) => reference,
            None => bench.reference(plan.ranks)?,
        };
        let outcome = bench.run(&plan, &reference)?;
        references.insert(plan.ranks, reference);
        table.add(&plan, &outcome);
        finish(bench, folder, &plan, &outcome)?;
        if (number + 1) % GROUP == 0 || number + 1 == args.moments {
            eprintln!("{}", table.progress());
        }
    }
    Ok(table)
}

/// Removes the files of a case, or keeps them if it failed.
fn finish(bench: &CaseRunner<'_>, folder: &Path, plan: &Plan, outcome: &Outcome) -> Result<()> {
    let own = bench.folder(plan);
    if outcome.failures.is_empty() {
        return fs::remove_dir_all(&own).with_context(|| format!("cannot remove {}", own.display()));
    }
    let kept = folder.join(format!("failed-{}", plan.number));
    if kept.exists() {
        fs::remove_dir_all(&kept).with_context(|| format!("cannot remove {}", kept.display()))?;
    }
    fs::rename(&own, &kept).with_context(|| format!("cannot keep {}", own.display()))?;
    let text = format!("{plan:?}\n  {}\n", outcome.failures.join("\n  "));
    eprint!("FAILED, files kept in {}: {text}", kept.display());
    let path = kept.join("failures.txt");
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The folder for runs, removed at the end, also after a signal.
struct WorkFolder(PathBuf);

impl WorkFolder {
    fn new(folder: &Path) -> Result<Self> {
        let work = folder.join(format!("work-{}", std::process::id()));
        create(&work)?;
        Ok(Self(work))
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

fn seed_from_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(since.subsec_nanos()) ^ since.as_secs()
}
