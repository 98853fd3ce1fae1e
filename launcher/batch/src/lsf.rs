//! LSF: blaunch starts the launchers of the other nodes.

use crate::launch::{self, Again, Code, REQUEUE};
use crate::remote::{self, Remote};
use crate::script::Script;
use crate::spec::JobSpec;
use std::time::Duration;

const REMOTE: Remote = Remote {
    hosts_file: "\"$LSB_DJOB_HOSTFILE\"",
    job: "$LSB_JOBID.${LSB_JOBINDEX:-0}",
    start: "blaunch \"${hosts[node]}\"",
};

pub(crate) fn render(spec: &JobSpec) -> String {
    let mut script = Script::new("#BSUB ");
    script.line("# A job of LSF, written by `dtrain batch lsf`. Submit it with `bsub < FILE`.");
    add_options(&mut script, spec);
    script.part("LSF begins in the folder where the job was submitted.");
    script.line("folder=$PWD");
    launch::add_run_dir(&mut script, spec, "$((LSB_JOBINDEX - 1))");
    launch::add_end(&mut script, spec, |limit| {
        let job = if spec.runs().is_some() { "${LSB_JOBID}[$LSB_JOBINDEX]" } else { "$LSB_JOBID" };
        vec![
            format!(
                "ran=$(timeout 10 bjobs -noheader -o run_time \"{job}\" 2> /dev/null | tr -dc '[:digit:]')"
            ),
            format!("end=$(($(date +%s) - ${{ran:-0}} + {limit}))"),
        ]
    });
    remote::add_nodes(&mut script, spec, &REMOTE);
    // LSF starts the same job again.
    launch::add_again(&mut script, spec, Code::Leader, launch::apptainer(spec), REMOTE.job, &Again::System);
    script.finish()
}

fn add_options(script: &mut Script, spec: &JobSpec) {
    let (size, account) = (&spec.size, &spec.account);
    let name = spec.name.as_str();
    match spec.runs() {
        None => script.option(format_args!("-J {name}")),
        // LSF counts from 1.
        Some(runs) => script.option(format_args!("-J \"{name}[1-{runs}]{}\"", spec.at_once())),
    }
    let cores = size.cpus_per_task.unwrap_or(1);
    script.line("# One launcher per node; it starts one worker per GPU.");
    script.option(format_args!("-n {}", u64::from(size.nodes) * u64::from(cores)));
    let mut needs = format!("span[ptile={cores}]");
    if let Some(memory) = size.memory {
        needs.push_str(&format!(" rusage[mem={}MB]", memory.0.div_ceil(1 << 20)));
    }
    if let Some(constraint) = &account.constraint {
        needs.push_str(&format!(" select[{}]", constraint.as_str()));
    }
    script.option(format_args!("-R \"{needs}\""));
    script.option_if("-gpu num=", (size.gpus_per_node > 0).then_some(size.gpus_per_node));
    script.option_if("-P ", account.account.as_ref().map(|value| value.as_str()));
    script.option_if("-q ", account.queue.as_ref().map(|value| value.as_str()));
    script.option_if("-W ", spec.time.as_ref().map(|limit| minutes(limit.time)));
    if spec.max_requeues > 0 {
        script.line("# LSF starts a job again that ends with this code, and appends to its log.");
        script.option(format_args!("-Q {}", REQUEUE.code()));
    }
    let number = if spec.runs().is_some() { "%J_%I" } else { "%J" };
    script.option(format_args!("-o {name}-{number}.out"));
    script.options(&spec.extra.directives);
}

/// Writes `HH:MM`; LSF counts minutes.
fn minutes(time: Duration) -> String {
    let minutes = (time.as_secs_f64() / 60.0).ceil() as u64;
    format!("{:02}:{:02}", minutes / 60, minutes % 60)
}
