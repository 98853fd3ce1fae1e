//! The list as JSON. Its form is part of the command line: names stay, others may be added.

use super::List;
use super::run::Run;
use crate::times::time_value;
use serde_json::{Value, json};

pub(super) fn object(list: &List) -> Value {
    json!({
        "path": list.dir,
        "runs": list.runs.iter().map(|run| of(list, run)).collect::<Vec<_>>(),
        "cut": list.is_cut,
    })
}

fn of(list: &List, run: &Run) -> Value {
    let (record, result) = (&run.record, &run.result);
    let cause = result.failure.as_ref().and_then(|failure| failure.cause.as_ref());
    json!({
        "name": list.name(run).to_string_lossy(),
        "path": run.path.to_string_lossy(),
        "state": run.state,
        "about": run.why,
        "problems": run.problems,
        "attempt": run.attempt,
        "host": (!record.host.is_empty()).then_some(&record.host),
        "began": time_value(record.began()),
        "nproc": (record.nproc > 0).then_some(record.nproc),
        "nodes": (record.nodes > 0).then_some(record.nodes),
        "job": record.job,
        "exit_code": result.exit_code,
        "cause": cause,
        "step": run.step,
        "total_steps": run.total_steps,
        "epoch": run.epoch,
        "total_epochs": run.total_epochs,
        "loss": run.loss,
        "best": run.best.as_ref().map(|best| json!({
            "by": best.by.to_string(), "figure": best.by.figure, "value": best.value, "step": best.step,
        })),
        "remaining_s": run.remaining.map(|left| left.as_secs_f64().round()),
        "checkpoint": run.checkpoint,
    })
}
