//! Flux: a batch script has its own instance, in which `flux run` starts the launchers.

use crate::launch::{self, Again, Code};
use crate::script::Script;
use crate::spec::JobSpec;
use dtrain_common::env::DTRAIN_BATCH_SUBMISSION;

/// The option that names jobs to wait for.
const DEPENDENCY: &str = "--dependency";

pub(crate) fn render(spec: &JobSpec) -> String {
    let mut script = Script::new("#flux: ");
    script.line("# A job of Flux, written by `dtrain batch flux`. Submit it with `flux batch FILE`.");
    add_options(&mut script, spec);
    launch::add_end(&mut script, spec, |limit| {
        vec![
            "left=$(timeout 10 flux job timeleft 2> /dev/null)".to_owned(),
            "left=${left%%.*}".to_owned(),
            // It may be `infinity`.
            format!("case $left in '' | *[!0-9]*) left={limit} ;; esac"),
            "end=$(($(date +%s) + left))".to_owned(),
        ]
    });
    launch::add_setup(&mut script, spec);
    launch::add_run_dir(&mut script, spec, "");
    let is_several = spec.size.nodes > 1;
    let (mut flags, mut variable) = (Vec::new(), String::new());
    let watch = launch::watch(spec);
    flags.extend(watch.as_ref().map(|watch| watch.flags.clone()));
    if is_several {
        script.part("This script runs on the first node, which leads. The job's id decides about the port.");
        script.line("job=$(flux getattr jobid)");
        script.line("head_node=$(hostname)");
        script.line(launch::PORT);
        variable = launch::add_secret(&mut script);
        let nodes = format!("{}{}", spec.size.least(), spec.size.nodes);
        flags.push(format!("--nnodes {nodes} --rdzv-endpoint \"$head_node:$port\""));
        flags.push("--rdzv-id \"$job\"".to_owned());
    }
    launch::add_trap(&mut script, spec);
    script
        .part("The launcher divides cores and GPUs among its workers. All nodes end with the leader's code.");
    let mut lines = vec![
        format!("{variable}flux run --nodes={} --tasks-per-node=1 --exclusive", spec.size.nodes),
        "-o cpu-affinity=off -o gpu-affinity=off".to_owned(),
    ];
    lines.extend(launch::contained(spec, flags));
    lines.push("|| code=$?".to_owned());
    script.lines(watch.map(|watch| watch.line));
    launch::add_begin(&mut script, spec, Code::Highest);
    script.command("", &lines);
    // A job that starts again has waited for the others already, and the system may have forgotten them.
    let is_dependency = spec.extra.directives.iter().any(|directive| directive.as_str().contains(DEPENDENCY));
    let left_out = format!("/^#flux: .*{DEPENDENCY}/d");
    let again = launch::without_lines(
        is_dependency.then_some(left_out.as_str()).as_slice(),
        &format!("flux --parent batch --env=\"{DTRAIN_BATCH_SUBMISSION}=$submission\""),
    );
    launch::add_again(
        &mut script,
        spec,
        Code::Highest,
        launch::apptainer(spec),
        // Each start is a new job.
        &format!("${{{DTRAIN_BATCH_SUBMISSION}:-$(flux getattr jobid)}}"),
        &Again::Submission(again),
    );
    script.finish()
}

fn add_options(script: &mut Script, spec: &JobSpec) {
    let (size, account) = (&spec.size, &spec.account);
    let name = spec.name.as_str();
    script.option(format_args!("--job-name={name}"));
    script.line("# One slot per node, for a launcher that starts one worker per GPU.");
    script.option(format_args!("--nodes={}", size.nodes));
    script.option(format_args!("--nslots={}", size.nodes));
    script.option_if("--cores-per-slot=", size.cpus_per_task);
    script.option_if("--gpus-per-slot=", (size.gpus_per_node > 0).then_some(size.gpus_per_node));
    for (flag, value) in
        [("--bank=", &account.account), ("--queue=", &account.queue), ("--requires=", &account.constraint)]
    {
        script.option_if(flag, value.as_ref().map(|value| value.as_str()));
    }
    script.option_if(
        "--time-limit=",
        spec.time.as_ref().map(|limit| format!("{}s", limit.time.as_secs_f64().ceil())),
    );
    script.option(format_args!("--output={name}-{{{{id}}}}.out"));
    script.options(&spec.extra.directives);
}
