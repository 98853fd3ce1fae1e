//! The name of a checkpoint's folder.

const PREFIX: &str = "step-";

/// The name of the folder of the checkpoint after `step` optimizer steps, such as `step-00000120`.
pub fn folder_name(step: u64) -> String {
    format!("{PREFIX}{step:08}")
}

/// The step of a checkpoint folder's name, when it is spelt as [`folder_name`] spells it.
pub fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix(PREFIX)?.parse().ok()?;
    (name == folder_name(step)).then_some(step)
}
