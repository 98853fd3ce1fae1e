//! OpenPBS and PBS Pro: pbsdsh starts the launchers of the other nodes.

use crate::launch::{self, Again, Code};
use crate::remote::{self, Remote};
use crate::script::Script;
use crate::spec::JobSpec;
use dtrain_common::env::{DTRAIN_BATCH_INDEX, DTRAIN_BATCH_SUBMISSION};
use std::time::Duration;

const REMOTE: Remote =
    Remote { hosts_file: "\"$PBS_NODEFILE\"", job: "$PBS_JOBID", start: "pbsdsh -n \"$node\" --" };

pub(crate) fn render(spec: &JobSpec) -> String {
    let mut script = Script::new("#PBS ");
    script.line("# A job of PBS, written by `dtrain batch pbs`. Submit it with `qsub FILE`.");
    add_options(&mut script, spec);
    script.part("PBS begins in the home folder.");
    script.line("folder=$PBS_O_WORKDIR");
    script.line("cd \"$folder\" || exit");
    // A job that starts again is a single one, with the number of its run.
    let index = format!("${{PBS_ARRAY_INDEX:-${DTRAIN_BATCH_INDEX}}}");
    launch::add_run_dir(&mut script, spec, &index);
    launch::add_end(&mut script, spec, |limit| {
        vec![
            // OpenPBS and PBS Pro, Torque.
            "began=$(timeout 10 qstat -f \"$PBS_JOBID\" 2> /dev/null | sed -nE 's/^ *(stime|start_time) = //p')".to_owned(),
            "began=$(date -d \"${began:-now}\" +%s || date +%s)".to_owned(),
            format!("end=$((began + {limit}))"),
        ]
    });
    remote::add_nodes(&mut script, spec, &REMOTE);
    // Each start is a new job.
    let submission = format!("{DTRAIN_BATCH_SUBMISSION}=$submission");
    let (mut left_out, mut variables) = (Vec::new(), submission);
    if spec.runs().is_some() {
        left_out.push("/^#PBS -J/d");
        variables = format!("{DTRAIN_BATCH_INDEX}=$index,{variables}");
    }
    // A job that starts again has waited for the others already, and the system may have forgotten them.
    if spec.extra.directives.iter().any(|directive| directive.as_str().contains("depend=")) {
        left_out.push("/^#PBS .*depend=/d");
    }
    let again = launch::without_lines(&left_out, &format!("qsub -v \"{variables}\""));
    let first = format!("${{{DTRAIN_BATCH_SUBMISSION}:-$PBS_JOBID}}");
    let again = Again::Submission(again);
    launch::add_again(&mut script, spec, Code::Leader, launch::apptainer(spec), &first, &again);
    script.finish()
}

fn add_options(script: &mut Script, spec: &JobSpec) {
    let (size, account) = (&spec.size, &spec.account);
    script.option(format_args!("-N {}", spec.name.as_str()));
    let mut select = format!("-l select={}", size.nodes);
    if let Some(cpus) = size.cpus_per_task {
        select.push_str(&format!(":ncpus={cpus}"));
    }
    if size.gpus_per_node > 0 {
        select.push_str(&format!(":ngpus={}", size.gpus_per_node));
    }
    if let Some(memory) = size.memory {
        select.push_str(&format!(":mem={}mb", memory.0.div_ceil(1 << 20)));
    }
    // One process: the file of hosts has one line for each node.
    select.push_str(":mpiprocs=1");
    if let Some(constraint) = &account.constraint {
        select.push_str(&format!(":{}", constraint.as_str()));
    }
    script.line("# One launcher per node; it starts one worker per GPU.");
    script.option(select);
    script.option("-l place=scatter");
    script.option_if("-A ", account.account.as_ref().map(|value| value.as_str()));
    script.option_if("-q ", account.queue.as_ref().map(|value| value.as_str()));
    script.option_if("-l walltime=", spec.time.as_ref().map(|limit| walltime(limit.time)));
    script.option_if("-J 0-", spec.runs().map(|runs| format!("{}{}", runs - 1, spec.at_once())));
    script.line("# After a failure of a node PBS starts the job again.");
    // PBS requires it for an array.
    script.option(if spec.max_requeues > 0 || spec.runs().is_some() { "-r y" } else { "-r n" });
    script.option("-j oe");
    script.options(&spec.extra.directives);
}

/// Writes `HH:MM:SS`.
fn walltime(time: Duration) -> String {
    let seconds = time.as_secs_f64().ceil() as u64;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
