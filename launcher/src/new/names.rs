//! What the words of `dtrain new` mean.

use crate::cli::NewArgs;
use crate::tasks::{TASKS, Task};
use anyhow::bail;
use dtrain_common::recipe::hints::nearest;
use std::path::{Path, PathBuf};

/// Returns the task and the data that the user names.
pub(super) fn task_and_data(args: &NewArgs) -> anyhow::Result<(&'static Task, Option<PathBuf>)> {
    let known = |word: &str| TASKS.iter().find(|task| task.name == word);
    let classify = &TASKS[0];
    let Some(word) = &args.task else { return Ok((classify, args.data.clone())) };
    if let Some(task) = known(word) {
        return Ok((task, args.data.clone()));
    }
    // `dtrain new --like timm:resnet18 flowers`
    if args.like.is_some() && args.data.is_none() {
        return Ok((classify, Some(word.into())));
    }
    let names: Vec<&str> = TASKS.iter().map(|task| task.name).collect();
    if args.data.is_none() && Path::new(word).exists() {
        bail!("`{word}` is data; name the task before it, such as `dtrain new classify {word}`");
    }
    match nearest(word, &names) {
        Some(near) => bail!("unknown task `{word}`; did you mean `{near}`?"),
        None => bail!("unknown task `{word}`; choose {}", names.join(", ")),
    }
}
