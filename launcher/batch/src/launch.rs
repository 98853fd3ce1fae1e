//! The command `dtrain launch`, which all systems start once on each node.

use crate::array::Array;
use crate::script::Script;
use crate::spec::{JobSpec, Target, TimeLimit};
use crate::text::Word;
use dtrain_common::env::DTRAIN_RDZV_SECRET;
use std::time::Duration;

/// Exit code of `dtrain launch` that means: start me again, I resume.
pub(crate) use dtrain_common::exit::ExitStatus::Requeue as REQUEUE;

/// Returns the lines of the command. `flags` are lines of flags that the system adds.
pub(crate) fn lines(spec: &JobSpec, flags: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut first = format!("{} launch", spec.work.dtrain.quoted());
    if let Some(nproc) = spec.size.nproc() {
        first.push_str(&format!(" --nproc {nproc}"));
    }
    let mut lines = vec![first];
    lines.extend(flags);
    let extra: Vec<_> = spec.extra.launch.iter().map(|word| word.quoted()).collect();
    lines.extend((!extra.is_empty()).then(|| extra.join(" ")));
    match &spec.work.target {
        Target::Recipes { recipes, set } => {
            lines.push("--run-dir \"$run_dir\"".to_owned());
            lines.push(match recipes.as_slice() {
                [recipe] => recipe.quoted().to_owned(),
                _ => "\"$recipe\"".to_owned(),
            });
            lines.extend(set.iter().map(|set| format!("--set {}", set.quoted())));
            if let Some(Array::Sweep { key, .. }) = &spec.array {
                lines.push(format!("--set \"{key}=$value\""));
            }
        }
        Target::Program(words) => {
            lines.push("--log-dir \"$run_dir\"".to_owned());
            let words: Vec<_> = words.iter().map(|word| word.quoted()).collect();
            lines.push(format!("-- {}", words.join(" ")));
        }
    }
    lines
}

/// Shell code that sets `port` by `job`, the same on all nodes.
pub(crate) const PORT: &str = "port=$((24000 + $(printf %s \"$job\" | cksum | cut -d ' ' -f 1) % 8000))";

/// A bash array with an element for each run.
pub(crate) struct PerRun<'a> {
    all: &'static str,
    /// The variable of the element of this run.
    pub(crate) own: &'static str,
    elements: &'a [Word],
}

/// Returns what differs between the runs of an array, beside the run directory.
pub(crate) fn per_run(spec: &JobSpec) -> Option<PerRun<'_>> {
    match (&spec.work.target, &spec.array) {
        (Target::Recipes { recipes, .. }, _) if recipes.len() > 1 => {
            Some(PerRun { all: "recipes", own: "recipe", elements: recipes })
        }
        (_, Some(Array::Sweep { values, .. })) => {
            Some(PerRun { all: "values", own: "value", elements: values })
        }
        _ => None,
    }
}

/// Sets `end`, when the system ends the job, if dtrain watches the time. `lines` set it by the system's own answer; the
/// time limit counts from the start of the job, and modules or a prologue may take minutes until dtrain starts.
pub(crate) fn add_end(script: &mut Script, spec: &JobSpec, lines: impl FnOnce(u64) -> Vec<String>) {
    if let Some(TimeLimit { time, signal_before: Some(_) }) = &spec.time {
        script.part(
            "The end of the job, in seconds since 1970. Without an answer: the limit counts from here.",
        );
        script.lines(lines(seconds(*time)));
    }
}

/// The launcher's own watch of the time until [`add_end`]'s end, for systems without a signal before the limit.
pub(crate) struct Watch {
    /// Shell code that goes before the launcher.
    pub(crate) line: String,
    pub(crate) flags: String,
}

/// Returns the watch, if dtrain watches the time. If the user's commands took all of it, the workers begin nevertheless:
/// they stop at once with code 75, and the job starts again.
pub(crate) fn watch(spec: &JobSpec) -> Option<Watch> {
    let margin = seconds(spec.time.as_ref()?.signal_before?);
    let least = margin + 1;
    Some(Watch {
        line: format!("left=$((end - $(date +%s))) && left=$((left < {least} ? {least} : left))"),
        flags: format!("--time-limit \"${{left}}s\" --time-margin {margin}s"),
    })
}

pub(crate) fn seconds(time: Duration) -> u64 {
    time.as_secs_f64().ceil() as u64
}

/// Returns the lines of the command, in a container of Apptainer if the job has one.
pub(crate) fn contained(spec: &JobSpec, flags: Vec<String>) -> Vec<String> {
    let mut container = apptainer(spec);
    container.extend(lines(spec, flags));
    container
}

/// Returns the words before a command that runs in the job's container of Apptainer.
pub(crate) fn apptainer(spec: &JobSpec) -> Vec<String> {
    let Some(image) = &spec.setup.container else { return Vec::new() };
    let gpus = if spec.size.gpus_per_node > 0 { " --nv" } else { "" };
    let run_dir = if spec.work.run_dir.text().starts_with('/') { " --bind \"$run_dir\"" } else { "" };
    vec![format!("apptainer exec{gpus} --bind \"$PWD\"{run_dir} --pwd \"$PWD\" {}", image.quoted())]
}

/// Lets the script live until its command has handled the system's signals.
pub(crate) fn add_trap(script: &mut Script, spec: &JobSpec) {
    script.part("dtrain handles signals, and this script waits for it.");
    if spec.max_requeues == 0 {
        script.line("trap : TERM INT USR1 USR2");
        return;
    }
    script.line("# A job that the user deletes does not start again.");
    script.line("again=yes");
    script.line("trap 'again=no' TERM INT");
    script.line("trap : USR1 USR2");
}

/// How a job starts again.
pub(crate) enum Again {
    /// By this command of the system, which does not start again a job that the user deleted.
    Step(String),
    /// By this command, which submits another job.
    Submission(String),
    /// The system does it after exit code 75.
    System,
}

/// The node whose exit code the command has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Leader,
    /// The highest of all nodes, such as that of a node that was lost. The run's own result decides.
    Highest,
}

impl Code {
    /// Returns whether the script asks dtrain for the run's code, or about another start.
    fn asks(self, spec: &JobSpec) -> bool {
        spec.max_requeues > 0 || self == Self::Highest && spec.size.nodes > 1
    }
}

/// Begins the command, whose exit code `code` becomes.
pub(crate) fn add_begin(script: &mut Script, spec: &JobSpec, of: Code) {
    script.line("code=0");
    if of.asks(spec) {
        script.line("# An older result is that of another start.");
        script.line("since=$(date +%s)");
    }
}

/// Adds the end of the script: `code` is the command's exit code, and 75 starts the job again. `submission` is shell code
/// of a name that all starts of one submission have.
pub(crate) fn add_again(
    script: &mut Script,
    spec: &JobSpec,
    of: Code,
    container: Vec<String>,
    submission: &str,
    again: &Again,
) {
    let (most, requeue) = (spec.max_requeues, REQUEUE.code());
    let ask = |more: &str| {
        let mut lines = container;
        lines.push(format!(
            "{} requeue \"$run_dir\" --code \"$code\" --since \"$since\" --most {most}{more}",
            spec.work.dtrain.quoted()
        ));
        format!("decided=$({})", lines.join(" \\\n    "))
    };
    if most > 0 {
        script.part(&format!(
            "Code {requeue}: stopped with a checkpoint. The job starts again and resumes, at most {most} times, and not
without progress. dtrain counts in the run directory, for each submission."
        ));
        script.line(format_args!("submission={submission}"));
        let decides = ask(" --submission \"$submission\"");
        match again {
            Again::Step(command) => script.line(format_args!("if {decides}; then\n    {command}\nfi")),
            Again::Submission(command) => {
                script.line("decided=");
                script.line(format_args!("if [ \"$again\" = yes ] && {decides}; then\n    {command}\nfi"));
            }
            Again::System => {
                script.line("decided=");
                script.line(format_args!("if [ \"$again\" = no ] || ! {decides}; then\n    again=no\nfi"));
            }
        }
    } else if of.asks(spec) {
        script.part("The system's code is the highest of all nodes.");
        script.line(format_args!("{} || :", ask("")));
    }
    if of.asks(spec) {
        script.line("# dtrain prints the code of the run.");
        script.line("decided=${decided##*[!0-9]}");
        script.line("code=${decided:-$code}");
    }
    if most > 0 && matches!(again, Again::System) {
        script
            .line(format_args!("if [ \"$again\" = no ] && [ \"$code\" = {requeue} ]; then\n    code=1\nfi"));
    }
    script.line("exit \"$code\"");
}

/// Returns shell code of the script without the lines that fit these expressions of sed, and words that take it: a file's
/// name, or nothing after a pipe.
pub(crate) fn without_lines(expressions: &[&str], command: &str) -> String {
    match expressions {
        [] => format!("{command} \"$0\""),
        _ => format!("sed '{}' \"$0\" | {command}", expressions.join("; ")),
    }
}

/// Adds the user's commands.
pub(crate) fn add_setup(script: &mut Script, spec: &JobSpec) {
    if let Some(commands) = &spec.setup.commands {
        script.part("The commands of --env-setup.");
        script.line(commands.trim_end());
    }
}

/// Sets `run_dir`, and the variable of [`per_run`]. `index` is shell code of the run's number in an array, from 0.
pub(crate) fn add_run_dir(script: &mut Script, spec: &JobSpec, index: &str) {
    let run_dir = spec.work.run_dir.quoted();
    let meaning = match spec.work.target {
        Target::Recipes { .. } => "A job that starts again resumes from this run directory.",
        Target::Program(_) => "The folder of the workers' logs.",
    };
    match spec.runs() {
        None => {
            script.part(meaning);
            script.line(format_args!("run_dir={run_dir}"));
        }
        Some(_) => {
            script.part(&format!("Each run of the array has its own folder.\n{meaning}"));
            script.line(format_args!("index={index}"));
            script.line(format_args!("run_dir={run_dir}/$index"));
            if let Some(PerRun { all, own, elements }) = per_run(spec) {
                script.line(format_args!("{all}=("));
                for (index, element) in elements.iter().enumerate() {
                    script.line(format_args!("    {} # {index}", element.quoted()));
                }
                script.line(format_args!(")\n{own}=${{{all}[index]}}"));
            }
        }
    }
    add_mount(script, spec);
}

/// Makes the run directory, which a container mounts.
fn add_mount(script: &mut Script, spec: &JobSpec) {
    if spec.setup.container.is_some() && spec.work.run_dir.text().starts_with('/') {
        script.line("mkdir -p \"$run_dir\"");
    }
}

/// Makes the secret of the rendezvous for a command that takes its environment to all nodes. Returns the variable, which
/// goes before the command: no other program gets it.
pub(crate) fn add_secret(script: &mut Script) -> String {
    script.line(ABOUT_SECRET);
    script.line(format_args!("secret=$({NEW_SECRET})"));
    format!("{DTRAIN_RDZV_SECRET}=$secret ")
}

/// Makes the file of the secret, for nodes that get no environment. `folder` and `job` are shell code.
pub(crate) fn add_secret_file(script: &mut Script, folder: &str, job: &str) {
    script.line(ABOUT_SECRET);
    script.line("# A folder with a default ACL gives its files another mode than umask.");
    script.line(format_args!("secret={folder}/.{job}.secret"));
    script.line(format_args!(
        "(umask 077 && : > \"$secret\" && chmod 600 \"$secret\" && {NEW_SECRET} > \"$secret\")"
    ));
}

/// Removes the file. Not by a trap, which would replace one of the user's commands.
pub(crate) const REMOVE_SECRET: &str = "rm -f \"$secret\"";

const ABOUT_SECRET: &str =
    "# A new secret for each start: only the nodes of this job may join. It is never printed.";
const NEW_SECRET: &str = "head -c 32 /dev/urandom | base64";
