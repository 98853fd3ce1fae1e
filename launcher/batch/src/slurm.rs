//! Slurm: one step with one launcher per node.

use crate::launch::{self, Again, Code};
use crate::script::Script;
use crate::spec::{JobSpec, Target, TimeLimit};
use std::time::Duration;

pub(crate) fn render(spec: &JobSpec) -> String {
    let mut script = Script::new("#SBATCH ");
    script.line("# A job of Slurm, written by `dtrain batch slurm`. Submit it with `sbatch FILE`.");
    add_options(&mut script, spec);
    launch::add_setup(&mut script, spec);
    launch::add_run_dir(&mut script, spec, "$SLURM_ARRAY_TASK_ID");
    let mut variable = String::new();
    if spec.size.nodes > 1 {
        script.part("dtrain takes nodes, endpoint and id from the step; the first node leads.");
        variable = launch::add_secret(&mut script);
    }
    add_step(&mut script, spec, &variable);
    let mut one_task = container(spec);
    if !one_task.is_empty() {
        one_task.insert(0, "srun --nodes=1 --ntasks=1".to_owned());
    }
    let requeue = Again::Step("scontrol requeue \"$SLURM_JOB_ID\"".to_owned());
    // A requeue keeps the number; each run of an array has its own.
    launch::add_again(&mut script, spec, Code::Highest, one_task, "$SLURM_JOB_ID", &requeue);
    script.finish()
}

fn add_options(script: &mut Script, spec: &JobSpec) {
    let (size, account) = (&spec.size, &spec.account);
    script.option(format_args!("--job-name={}", spec.name.as_str()));
    script.option(format_args!("--nodes={}", size.nodes));
    if size.is_elastic() {
        script.line("# The job continues without a node that fails.");
        script.option("--no-kill");
    }
    script.line("# One launcher per node; it starts one worker per GPU.");
    script.option("--ntasks-per-node=1");
    script.option_if("--gpus-per-node=", (size.gpus_per_node > 0).then_some(size.gpus_per_node));
    script.option_if("--cpus-per-task=", size.cpus_per_task);
    script.option_if("--mem=", size.memory.map(|memory| format!("{}M", memory.0.div_ceil(1 << 20))));
    for (name, value) in [
        ("--account=", &account.account),
        ("--partition=", &account.partition),
        ("--qos=", &account.qos),
        ("--constraint=", &account.constraint),
    ] {
        script.option_if(name, value.as_ref().map(|value| value.as_str()));
    }
    if let Some(limit) = &spec.time {
        script.option(format_args!("--time={}", clock(limit.time)));
        if let Some(before) = limit.signal_before {
            script.line(
                "# Asks the workers to stop before the time limit. Slurm may send it up to 60 s early.",
            );
            script.option(format_args!("--signal=USR1@{}", before.as_secs()));
        }
    }
    script.option_if("--array=0-", spec.runs().map(|runs| format!("{}{}", runs - 1, spec.at_once())));
    script.line("# A job that starts again appends to its log.");
    script.option(if spec.max_requeues > 0 { "--requeue" } else { "--no-requeue" });
    script.option("--open-mode=append");
    let number = if spec.runs().is_some() { "%A_%a" } else { "%j" };
    script.option(format_args!("--output={}-{number}.out", spec.name.as_str()));
    script.options(&spec.extra.directives);
}

/// `variable` goes before the command.
fn add_step(script: &mut Script, spec: &JobSpec, variable: &str) {
    // Otherwise a job of `sbatch --export=NONE` would give its steps no environment: neither the secret, nor that of
    // --env-setup.
    let mut srun = format!("{variable}srun --export=ALL --ntasks-per-node=1");
    let comment = match spec.size.cpus_per_task {
        // Since 22.05 srun does not inherit it.
        Some(cpus) => {
            srun.push_str(&format!(" --cpus-per-task={cpus}"));
            "srun does not inherit --cpus-per-task."
        }
        None => {
            srun.push_str(" --cpu-bind=none");
            "The workers may use all cores that the job has."
        }
    };
    // All nodes end with one code. A node that ends first must not kill the leader, which writes the result.
    srun.push_str(match spec.size.is_elastic() {
        false => " --kill-on-bad-exit=0 --wait=60",
        // The end of a node's launcher is no end of the step.
        true => " --kill-on-bad-exit=0 --wait=0 --no-kill",
    });
    let mut lines = vec![srun];
    lines.extend(container(spec));
    let mut flags = Vec::new();
    let signal = matches!(spec.time, Some(TimeLimit { signal_before: Some(_), .. }));
    if signal && matches!(spec.work.target, Target::Recipes { .. }) {
        // Otherwise dtrain would also stop at its own margin.
        flags.push("--time-limit none".to_owned());
    }
    if spec.size.is_elastic() {
        flags.push(format!("--nnodes {}{}", spec.size.least(), spec.size.nodes));
    }
    lines.extend(launch::lines(spec, flags));
    script.part(&format!("{comment} All nodes end with the leader's code."));
    launch::add_begin(script, spec, Code::Highest);
    lines.push("|| code=$?".to_owned());
    script.command("", &lines);
}

/// Returns the flags of srun with pyxis.
fn container(spec: &JobSpec) -> Vec<String> {
    let Some(image) = &spec.setup.container else { return Vec::new() };
    let run_dir = if spec.work.run_dir.text().starts_with('/') { ",$run_dir:$run_dir" } else { "" };
    vec![
        format!("--container-image={}", image.quoted()),
        format!("--container-mounts=\"$PWD:$PWD{run_dir}\" --container-workdir=\"$PWD\""),
    ]
}

/// Writes `D-HH:MM:SS`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs_f64().ceil() as u64;
    let (days, hours) = (seconds / 86400, seconds / 3600 % 24);
    format!("{days}-{hours:02}:{:02}:{:02}", seconds / 60 % 60, seconds % 60)
}
