//! The table of runs, and the lines of changes.

use super::List;
use super::fit::{Column, cut, lines};
use super::run::Run;
use crate::cli::RunState;
use crate::colour::{ERROR, GOOD, WARNING, paint};
use crate::times::{about, local_time};
use anstyle::Style;
use dtrain_common::text::{Align, Align::Left, Align::Right, counted, wrapped};
use std::collections::BTreeMap;

/// The columns of the table. At a narrow terminal the least important are left out.
const COLUMNS: [Column; 12] = [
    column("run", Left, 11, 12),
    column("state", Left, 10, WHOLE),
    column("attempt", Right, 1, WHOLE),
    column("job", Left, 0, WHOLE),
    column("epoch", Right, 3, WHOLE),
    column("step", Right, 8, WHOLE),
    column("done", Right, 9, WHOLE),
    column("loss", Right, 6, WHOLE),
    column("best", Left, 4, WHOLE),
    column("left", Right, 7, WHOLE),
    column("saved", Right, 2, WHOLE),
    column("about", Left, 5, 16),
];

/// Texts of the column are not cut.
const WHOLE: usize = usize::MAX;

const fn column(title: &'static str, align: Align, importance: u8, least: usize) -> Column {
    Column { title, align, importance, least }
}

/// Returns a heading with counts, and a row for each run. No line is longer than `width` columns.
pub(super) fn text(list: &List, width: usize) -> String {
    let mut out = cut(&heading(list), width) + "\n";
    if !list.runs.is_empty() {
        out.push('\n');
        rows(list, width).iter().for_each(|row| out.extend([row.as_str(), "\n"]));
    }
    if list.is_cut {
        out.push('\n');
        let more = "There are more folders than were searched; name a folder nearer to the runs.";
        wrapped(&mut out, width, 0, 0, more);
    }
    out
}

/// Returns the text with states in colour.
pub(super) fn coloured(list: &List, width: usize) -> String {
    let styles = list.runs.iter().map(|run| (run.state.word(), style(run.state)));
    let styles: BTreeMap<_, _> = styles.collect();
    let line = |line: &str| {
        // A state follows the name of its run.
        let found =
            styles.iter().filter_map(|(word, style)| Some((line.find(&format!("  {word} "))?, word, *style)));
        match found.min_by_key(|(at, ..)| *at) {
            Some((at, word, style)) => {
                let (name, rest) = line.split_at(at + 2);
                format!("{name}{}{}", paint(style, word), &rest[word.len()..])
            }
            None => line.to_owned(),
        }
    };
    text(list, width).split_inclusive('\n').map(line).collect()
}

fn style(state: RunState) -> Style {
    match state {
        RunState::Succeeded | RunState::Running => GOOD,
        RunState::Failed | RunState::OutOfMemory | RunState::Lost | RunState::Unreadable => ERROR,
        _ => WARNING,
    }
}

/// Returns the title and a row for each run, of at most `width` columns.
pub(super) fn rows(list: &List, width: usize) -> Vec<String> {
    let rows: Vec<_> = list.runs.iter().map(|run| row(list, run)).collect();
    lines(&COLUMNS, &rows, width)
}

/// Returns the folder and how many of its runs are in each state.
pub(super) fn heading(list: &List) -> String {
    let mut counts = BTreeMap::<RunState, usize>::new();
    for run in &list.runs {
        *counts.entry(run.state).or_default() += 1;
    }
    let counts: Vec<_> = counts.iter().map(|(state, count)| format!("{count} {}", state.word())).collect();
    let dir = plain(&list.dir.display().to_string());
    match counts.as_slice() {
        [] if list.is_filtered => format!("{dir}: no run in this state"),
        [] => format!("{dir}: no runs"),
        counts => format!("{dir}: {}: {}", counted(list.runs.len(), "run"), counts.join(", ")),
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
        known(epochs(run)),
        known(steps(run)),
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

/// Returns the epoch, and the number of all.
pub(super) fn epochs(run: &Run) -> Option<String> {
    of(run.epoch, run.total_epochs)
}

/// Returns the step, and the number of all.
pub(super) fn steps(run: &Run) -> Option<String> {
    of(run.step, run.total_steps)
}

fn of(number: Option<u64>, total: Option<u64>) -> Option<String> {
    let number = number?;
    Some(total.map_or_else(|| number.to_string(), |total| format!("{number}/{total}")))
}

/// Returns the best value so far, with its figure and step.
pub(super) fn best(run: &Run) -> Option<String> {
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
