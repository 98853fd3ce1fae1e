//! What a job will do, said before it waits in a queue.

use crate::cli::{BatchArgs, RecipeArgs};
use crate::questions::plan_command;
use anyhow::{Context, bail};
use dtrain_batch::{Array, JobSpec, System, Value};
use dtrain_common::exit::ExitStatus;
use dtrain_common::run_dir::RunDir;
use dtrain_common::text::counted;
use dtrain_common::time::format_time;
use dtrain_common::units::ByteSize;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

/// Prints the job and the plans of its recipe. Exit code 3: no GPU of `--gpu` has enough memory.
pub(super) fn show(args: &BatchArgs, spec: &JobSpec) -> anyhow::Result<ExitCode> {
    crate::stdout::print(&format!("{}\n", describe(args.system, spec)))
        .context("cannot write to standard output")?;
    let mut code = ExitCode::SUCCESS;
    for (number, recipe) in planned(args, spec).iter().enumerate() {
        let own = match (&spec.array, recipe.set.last()) {
            (Some(Array::Sweep { .. }), Some(own)) => Some(format!("--set {own}")),
            _ => (args.recipes.len() > 1).then(|| recipe.recipe.clone()),
        };
        if let Some(own) = own {
            crate::stdout::print(&format!("\nRun {number}, {own}:\n"))?;
        }
        let gpus = args.size.gpu.as_ref().map(|list| list.0.as_slice());
        let status = plan_command(recipe, gpus, ranks(spec))?.status().context("cannot start the plan")?;
        // Without --gpu it is the table of usual sizes, of which some may be too small.
        let is_table = gpus.is_none() && lacks_memory(status.code());
        if !status.success() && !is_table {
            code = ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
        }
    }
    Ok(code)
}

/// Refuses a recipe that fits no GPU of `--gpu`.
pub(super) fn check_memory(args: &BatchArgs, spec: &JobSpec) -> anyhow::Result<()> {
    let Some(gpus) = &args.size.gpu else { return Ok(()) };
    if spec.size.gpus_per_node == 0 {
        bail!("--gpu has no effect without GPUs; give --gpus-per-node, or leave it out");
    }
    for recipe in planned(args, spec) {
        let mut plan = plan_command(&recipe, Some(&gpus.0), ranks(spec))?;
        let done =
            plan.stdout(Stdio::piped()).stderr(Stdio::piped()).output().context("cannot start the plan")?;
        let set: Vec<_> = recipe.set.iter().map(|set| format!(" --set {set}")).collect();
        if lacks_memory(done.status.code()) {
            bail!(
                "{}{} does not fit the GPUs of --gpu; --dry-run shows ways to save memory",
                recipe.recipe,
                set.concat()
            );
        }
        if !done.status.success() {
            bail!("cannot plan {}: {}", recipe.recipe, String::from_utf8_lossy(&done.stderr).trim());
        }
    }
    Ok(())
}

fn lacks_memory(code: Option<i32>) -> bool {
    code == Some(i32::from(ExitStatus::OutOfMemory.code()))
}

/// Returns what there is to plan: nothing for a program, or without GPUs.
fn planned(args: &BatchArgs, spec: &JobSpec) -> Vec<RecipeArgs> {
    if spec.size.gpus_per_node > 0 { super::trainings(args) } else { Vec::new() }
}

fn ranks(spec: &JobSpec) -> usize {
    spec.size.nodes as usize * spec.size.gpus_per_node as usize
}

fn describe(system: System, spec: &JobSpec) -> String {
    let size = &spec.size;
    let workers = match size.gpus_per_node {
        0 => "without GPUs".to_owned(),
        gpus => format!("with {gpus} GPUs each, {} ranks", ranks(spec)),
    };
    let nodes = counted(size.nodes as usize, "node");
    let mut lines = vec![format!("{} job {}: {nodes} {workers}", system.name(), spec.name.as_str())];
    if size.least_nodes < size.nodes {
        lines.push(format!("the run continues with {} of the nodes", size.least_nodes));
    }
    if let Some(limit) = &spec.time {
        let stop = limit.signal_before.map_or_else(String::new, |before| {
            format!(
                "; the workers are asked to stop after {}",
                format_time(limit.time.saturating_sub(before))
            )
        });
        lines.push(format!("time limit of a start: {}{stop}", format_time(limit.time)));
    }
    lines.push(format!("requeues after code {}: at most {}", ExitStatus::Requeue.code(), spec.max_requeues));
    let runs = spec.runs().map_or_else(String::new, |runs| format!("/0 to /{}", runs - 1));
    lines.push(format!("run directory: {}{runs}", spec.work.run_dir.text()));
    lines.join("\n")
}

/// Returns the names of `--gpu` as properties of nodes, for systems with such names; sizes are none.
pub(super) fn constraint(args: &BatchArgs) -> Option<Value> {
    let or = match args.system {
        System::Slurm | System::Flux => "|",
        System::Lsf => "||",
        System::Pbs | System::K8s => return None,
    };
    let names: Vec<_> = args.size.gpu.as_ref()?.0.iter().map(|gpu| gpu.name.as_str()).collect();
    if names.iter().any(|name| name.parse::<ByteSize>().is_ok()) {
        return None;
    }
    names.join(or).parse().ok()
}

/// Refuses a run to be resumed whose checkpoints took longer than the time from the signal to the limit.
pub(super) fn check_checkpoints(spec: &JobSpec) -> anyhow::Result<()> {
    let Some(before) = spec.time.as_ref().and_then(|limit| limit.signal_before) else { return Ok(()) };
    for run_dir in spec.run_dirs() {
        // Without an earlier start nothing is known.
        let metrics = File::open(RunDir::new(&run_dir).metrics()).ok();
        let longest = metrics.and_then(|file| longest_checkpoint(BufReader::new(file)));
        if let Some(longest) = longest.filter(|longest| *longest >= before) {
            bail!(
                "a checkpoint in {run_dir} took {}, but the workers have only {} to stop; give a longer \
                 --signal-before",
                format_time(longest),
                format_time(before)
            );
        }
    }
    Ok(())
}

/// Finds the longest time of a checkpoint in the lines of `metrics.jsonl`.
fn longest_checkpoint(metrics: impl BufRead) -> Option<Duration> {
    let lines =
        metrics.split(b'\n').map_while(Result::ok).filter(|line| line.starts_with(b"{\"checkpoint\""));
    let times = lines.filter_map(|line| {
        let line: serde_json::Value = serde_json::from_slice(&line).ok()?;
        Duration::try_from_secs_f64(line["checkpoint"]["total_ms"].as_f64()? / 1e3).ok()
    });
    times.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_checkpoint_counts() {
        let metrics = r#"{"step":1,"loss":2.5}
{"checkpoint":{"step":50,"total_ms":276.5}}
{"checkpoint":{"step":60,"total_ms":1500.0}}
{"checkpoint":{"step":70,"total_ms"#;
        assert_eq!(longest_checkpoint(metrics.as_bytes()), Some(Duration::from_millis(1500)));
        assert_eq!(longest_checkpoint(&b"{}"[..]), None);
    }
}
