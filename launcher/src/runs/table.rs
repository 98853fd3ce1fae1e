//! The table of runs, and the lines of changes.

use super::List;
use super::run::Run;
use crate::cli::RunState;
use crate::times::{about, local_time};
use dtrain_common::text::{Align::Left, Align::Right, columns, counted};
use std::collections::BTreeMap;

/// Returns a heading with counts, and a row for each run.
pub(super) fn text(list: &List) -> String {
    let mut out = heading(list);
    if !list.runs.is_empty() {
        out.push('\n');
        let title = [
            "run", "state", "attempt", "job", "epoch", "step", "done", "loss", "best", "left", "saved",
            "about",
        ];
        let mut table = vec![title.map(str::to_owned).to_vec()];
        table.extend(list.runs.iter().map(|run| row(list, run)));
        let align = [Left, Left, Right, Left, Right, Right, Right, Right, Left, Right, Right, Left];
        columns(&mut out, 0, &align, &table);
    }
    if list.is_cut {
        out.push_str("\nThere are more folders than were searched; name a folder nearer to the runs.\n");
    }
    out
}

fn heading(list: &List) -> String {
    let mut counts = BTreeMap::<RunState, usize>::new();
    for run in &list.runs {
        *counts.entry(run.state).or_default() += 1;
    }
    let counts: Vec<_> = counts.iter().map(|(state, count)| format!("{count} {}", state.word())).collect();
    let dir = plain(&list.dir.display().to_string());
    match counts.as_slice() {
        [] if list.is_filtered => format!("{dir}: no run in this state\n"),
        [] => format!("{dir}: no runs\n"),
        counts => format!("{dir}: {}: {}\n", counted(list.runs.len(), "run"), counts.join(", ")),
    }
}

fn row(list: &List, run: &Run) -> Vec<String> {
    let known = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let job = run.record.job.as_ref();
    vec![
        name(list, run),
        run.state.word(),
        known(run.attempt.map(|attempt| attempt.to_string())),
        known(job.map(|job| plain(&format!("{} {}", job.system, job.id)))),
        known(of(run.epoch, run.total_epochs)),
        known(of(run.step, run.total_steps)),
        known(run.percent().map(|percent| format!("{percent}%"))),
        known(run.loss.map(|loss| format!("{loss:.4}"))),
        known(best(run)),
        known(run.remaining.map(about)),
        known(run.checkpoint.map(|step| step.to_string())),
        explanation(run),
    ]
}

pub(super) fn name(list: &List, run: &Run) -> String {
    plain(&list.name(run).display().to_string())
}

fn of(number: Option<u64>, total: Option<u64>) -> Option<String> {
    let number = number?;
    Some(total.map_or_else(|| number.to_string(), |total| format!("{number}/{total}")))
}

fn best(run: &Run) -> Option<String> {
    let best = run.best.as_ref()?;
    Some(plain(&format!("{} {:.4} at {}", best.by.figure, best.value, best.step)))
}

/// Returns why the run is in its state, since when, and what could not be read.
fn explanation(run: &Run) -> String {
    let mut text = run.why.clone();
    match run.record.began() {
        Some(began) if run.state == RunState::Running => {
            text.push_str(&format!(", since {}", local_time(began)))
        }
        _ => {}
    }
    for problem in &run.problems {
        text.push_str(&format!("; {problem}"));
    }
    plain(&text)
}

/// Returns the text as one line: names and messages may hold anything.
pub(super) fn plain(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns the line of a run that changes, with its progress in whole percents.
pub(super) fn line(list: &List, run: &Run) -> String {
    let mut text = format!("{}: {}", name(list, run), run.state.word());
    let attempt = run.attempt.filter(|attempt| *attempt > 0).map(|attempt| format!("attempt {attempt}"));
    let done = run.percent().map(|percent| format!("{percent}% done"));
    let best = best(run).map(|best| format!("best {best}"));
    let saved = run.checkpoint.map(|step| format!("saved at step {step}"));
    for part in [attempt, done, best, saved].into_iter().flatten() {
        text.push_str(&format!(", {part}"));
    }
    // A running run's explanation has ages, which change all the time.
    if run.state != RunState::Running {
        text.push_str(&format!(" ({})", explanation(run)));
    } else if !run.record.host.is_empty() {
        text.push_str(&format!(" (on {})", plain(&run.record.host)));
    }
    text
}
