//! The command `dtrain launch`, which all systems start once on each node.

use crate::array::Array;
use crate::script::Script;
use crate::spec::{JobSpec, Target};

/// Exit code of `dtrain launch` that means: start me again, I resume.
pub(crate) use dtrain_common::exit::ExitStatus::Requeue as REQUEUE;

/// Returns the lines of the command. `flags` are lines of flags that the system adds.
pub(crate) fn lines(spec: &JobSpec, flags: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut first = format!("{} launch", spec.work.dtrain.quoted());
    if spec.size.gpus_per_node > 0 {
        first.push_str(" --nproc gpu");
    }
    let mut lines = vec![first];
    lines.extend(flags);
    match &spec.work.target {
        Target::Recipe { recipe, set } => {
            lines.push("--run-dir \"$run_dir\"".to_owned());
            lines.push(recipe.quoted().to_owned());
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

/// Adds the user's commands.
pub(crate) fn add_setup(script: &mut Script, spec: &JobSpec) {
    if let Some(commands) = &spec.setup.commands {
        script.part("The commands of --env-setup.");
        script.line(commands.trim_end());
    }
}

/// Sets `run_dir`, and `value` for a sweep. `index` is shell code of the run's number in an array, from 0.
pub(crate) fn add_run_dir(script: &mut Script, spec: &JobSpec, index: &str) {
    let run_dir = spec.work.run_dir.quoted();
    let meaning = match spec.work.target {
        Target::Recipe { .. } => "A job that starts again resumes from this run directory.",
        Target::Program(_) => "The folder of the workers' logs.",
    };
    match &spec.array {
        None => {
            script.part(meaning);
            script.line(format_args!("run_dir={run_dir}"));
        }
        Some(array) => {
            script.part(&format!("Each run of the array has its own folder.\n{meaning}"));
            script.line(format_args!("index={index}"));
            script.line(format_args!("run_dir={run_dir}/$index"));
            if let Array::Sweep { values, .. } = array {
                let values: Vec<_> = values.iter().map(|value| value.quoted()).collect();
                script.line(format_args!("values=({})", values.join(" ")));
                script.line("value=${values[index]}");
            }
        }
    }
}

/// Makes the secret of the rendezvous.
pub(crate) fn add_secret(script: &mut Script) {
    let secret = dtrain_common::env::DTRAIN_RDZV_SECRET;
    script.line("# A new secret for each start: only the nodes of this job may join. It is never printed.");
    script.line(format_args!("{secret}=$(head -c 32 /dev/urandom | base64)"));
    script.line(format_args!("export {secret}"));
}
