//! Systems without a step on all nodes: the script starts the other launchers one by one, and leads itself.

use crate::launch::{self, Code};
use crate::script::Script;
use crate::spec::JobSpec;

/// Seconds for the other launchers after the leader, as Slurm's `--wait`: longer than the time in which a node tries to
/// reach a leader that is gone.
const WAIT_S: u32 = 60;

/// How a system tells its nodes and starts a command there.
pub(crate) struct Remote {
    /// Shell code: the file with the host of each node, repeated for each core.
    pub(crate) hosts_file: &'static str,
    /// Shell code of the job's id.
    pub(crate) job: &'static str,
    /// Shell code before the command that runs on node `$node`, `${hosts[node]}`.
    pub(crate) start: &'static str,
}

/// Adds the command, and starts it on all nodes. Afterwards `code` is its exit code.
pub(crate) fn add_nodes(script: &mut Script, spec: &JobSpec, remote: &Remote) {
    let is_several = spec.size.nodes > 1;
    let watch = launch::watch(spec);
    let mut flags: Vec<_> = watch.iter().map(|watch| watch.flags.clone()).collect();
    if is_several {
        script.part("This script runs on the first node, which leads. The job's id decides about the port.");
        script.line(format_args!("job={}", remote.job));
        script.line(format_args!("mapfile -t hosts < <(awk '!seen[$0]++' {})", remote.hosts_file));
        script.line("head_node=$(hostname)");
        script.line(launch::PORT);
        launch::add_secret_file(script, "$folder", "$job");
        let least = spec.size.least();
        flags.push(format!("--nnodes \"{least}${{#hosts[@]}}\" --rdzv-endpoint \"$head_node:$port\""));
        flags.push("--rdzv-id \"$job\" --rdzv-secret \"$secret\"".to_owned());
    }
    script.part("What each node starts. A node's environment begins empty.");
    script.line("start() {");
    script.line("    cd \"$folder\" || return");
    if let Some(commands) = &spec.setup.commands {
        // Not indented: it may contain here-documents.
        script.line("    # The commands of --env-setup.");
        script.line(commands.trim_end());
    }
    script.lines(watch.as_ref().map(|watch| format!("    {}", watch.line)));
    script.command("    ", &launch::contained(spec, flags));
    script.line("}");
    launch::add_trap(script, spec);
    if is_several {
        let own = launch::per_run(spec).map_or_else(String::new, |run| format!(" {}", run.own));
        let end = if watch.is_some() { " end" } else { "" };
        script.line(format_args!(
            "task=\"trap : TERM INT USR1 USR2; $(declare -p folder run_dir job hosts head_node port secret{end}{own}); $(declare -f start); start\""
        ));
        script.line("for ((node = 1; node < ${#hosts[@]}; node++)); do");
        script.line(format_args!("    {} /bin/bash -c \"$task\" &", remote.start));
        script.line("    launchers[node]=$!");
        script.line("done");
    }
    launch::add_begin(script, spec, Code::Leader);
    script.line("start || code=$?");
    if is_several {
        add_wait(script);
        script.line(launch::REMOVE_SECRET);
    }
}

/// Waits for the other launchers. One that cannot end, such as on a node that is lost, must not hold the job.
fn add_wait(script: &mut Script) {
    script.line(format_args!(
        "# All nodes end with the leader's code. After {WAIT_S} s the job continues without those that do not end."
    ));
    script.line(format_args!("deadline=$((SECONDS + {WAIT_S}))"));
    script.line("for ((node = 1; node < ${#hosts[@]}; node++)); do");
    script.line(
        "    while kill -0 \"${launchers[node]}\" 2> /dev/null && [ \"$SECONDS\" -lt \"$deadline\" ]; do",
    );
    script.line("        sleep 0.1");
    script.line("    done");
    script.line("    if kill -KILL \"${launchers[node]}\" 2> /dev/null; then");
    script.line(format_args!(
        "        echo \"dtrain: the launcher on ${{hosts[node]}} did not end within {WAIT_S} s after the leader; it is killed\" >&2"
    ));
    script.line("    fi");
    script.line("done");
}
