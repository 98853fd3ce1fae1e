//! Flux: a batch script has its own instance, in which `flux run` starts the launchers.

use crate::launch::{self, Again};
use crate::script::Script;
use crate::spec::JobSpec;
use dtrain_common::env::DTRAIN_BATCH_SUBMISSION;

pub(crate) fn render(spec: &JobSpec) -> String {
    let mut script = Script::new("#flux: ");
    script.line("# A job of Flux, written by `dtrain batch flux`. Submit it with `flux batch FILE`.");
    add_options(&mut script, spec);
    launch::add_end(&mut script, spec, |limit| {
        vec![
            "left=$(timeout 10 flux job timeleft 2> /dev/null)".to_owned(),
            format!("end=$(($(date +%s) + ${{left:-{limit}}}))"),
        ]
    });
    launch::add_setup(&mut script, spec);
    launch::add_run_dir(&mut script, spec, "");
    let is_several = spec.size.nodes > 1;
    let mut flags = launch::time_flags(spec);
    if is_several {
        script.part("This script runs on the first node, which leads. The job's id decides about the port.");
        script.line("job=$(flux getattr jobid)");
        script.line("head_node=$(hostname)");
        script.line(launch::PORT);
        launch::add_secret(&mut script, "$PWD", "$job");
        let nodes = format!("{}{}", spec.size.least(), spec.size.nodes);
        flags.push(format!("--nnodes {nodes} --rdzv-endpoint \"$head_node:$port\""));
        flags.push("--rdzv-id \"$job\" --rdzv-secret \"$secret\"".to_owned());
    }
    launch::add_trap(&mut script, spec);
    script
        .part("The launcher divides cores and GPUs among its workers. All nodes end with the leader's code.");
    let mut lines = vec![
        format!("flux run --nodes={} --tasks-per-node=1 --exclusive", spec.size.nodes),
        "-o cpu-affinity=off -o gpu-affinity=off".to_owned(),
    ];
    lines.extend(launch::contained(spec, flags));
    lines.push("|| code=$?".to_owned());
    script.line("code=0");
    script.command("", &lines);
    launch::add_again(
        &mut script,
        spec,
        launch::apptainer(spec),
        // Each start is a new job.
        &format!("${{{DTRAIN_BATCH_SUBMISSION}:-$(flux getattr jobid)}}"),
        &Again::Submission(format!(
            "flux --parent batch --env=\"{DTRAIN_BATCH_SUBMISSION}=$submission\" \"$0\""
        )),
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
