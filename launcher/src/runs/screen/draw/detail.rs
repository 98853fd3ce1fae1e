//! The chosen run: its state, failure, facts, charts and the end of its log.

use super::super::super::run::Run;
use super::super::super::table::{epochs, plain, steps};
use super::super::source::{Detail, Look};
use super::super::view::View;
use super::facts::{facts, troubles};
use super::{Free, Theme, charts, cut, log, put, rule};
use crate::times::about;
use dtrain_common::text::wrapped;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// Columns of the labels.
const LABELS: usize = 8;
/// The most columns of the progress bar.
const BAR: usize = 30;
/// Rows of the smallest charts and of the shortest end of a log.
const CHARTS: u16 = 6;
const LOG: u16 = 3;

pub(super) fn draw(
    area: Rect,
    buffer: &mut Buffer,
    look: &Look,
    run: &Run,
    detail: &Detail,
    view: &View,
    theme: Theme,
) {
    let mut free = Free(area);
    rule(free.top(1), buffer, Span::styled(title(run), theme.state(run.state).patch(theme.title())), theme);
    for line in trouble_lines(run, detail, area) {
        put(free.top(1), buffer, Span::styled(line, theme.bad()));
    }
    let width = usize::from(area.width);
    if let Some(line) = progress(run, width, theme) {
        put(free.top(1), buffer, line);
    }
    let has_curves = detail.history.last.is_some();
    let facts = facts(look, run, detail);
    // On a low screen charts say more than the last facts.
    let room = free.0.height.saturating_sub(if has_curves { CHARTS } else { LOG });
    let shown = if area.height < 12 { facts.len() } else { usize::from(room.max(2)).min(facts.len()) };
    for (label, text) in facts.iter().take(shown) {
        let text = cut(text, width.saturating_sub(LABELS));
        let parts = [Span::styled(format!("{label:<LABELS$}"), theme.dim()), Span::raw(text)];
        put(free.top(1), buffer, Line::from_iter(parts));
    }
    let left = free.0.height;
    let log_rows = match has_curves {
        _ if detail.stream.is_none() => 0,
        true if detail.log.lines.is_empty() => 0,
        false => left,
        true if left < CHARTS => left,
        true if left < CHARTS + LOG => 0,
        true => (left / 4).clamp(LOG, 10),
    };
    let log_area = free.bottom(log_rows);
    if has_curves {
        charts::draw(free.0, buffer, &detail.history, view.chart, theme);
    }
    if log_rows >= 2 {
        log::end(log_area, buffer, detail, theme);
    }
}

fn title(run: &Run) -> String {
    let name = plain(&run.path.display().to_string());
    format!("{name}: {}, {}", run.state.word(), plain(&run.why))
}

/// Returns the troubles, wrapped into at most a third of the area.
fn trouble_lines(run: &Run, detail: &Detail, area: Rect) -> Vec<String> {
    let width = usize::from(area.width);
    let mut text = String::new();
    troubles(run, detail).iter().for_each(|trouble| wrapped(&mut text, width.max(1), 0, 2, trouble));
    let most = usize::from((area.height / 3).max(3.min(area.height.saturating_sub(1))));
    text.lines().take(most).map(|line| cut(line, width)).collect()
}

/// Returns epoch, step, a bar, and the rest of the time.
fn progress(run: &Run, width: usize, theme: Theme) -> Option<Line<'static>> {
    let step = steps(run)?;
    let percent = run.percent();
    let mut before = format!("{:<LABELS$}{step}", "step");
    before.extend(percent.map(|percent| format!(" {percent}%")));
    let epoch = epochs(run).map(|epoch| format!("epoch {epoch}"));
    let rest = run.remaining.map(|rest| format!("{} left", about(rest)));
    let after = [epoch, rest].into_iter().flatten().collect::<Vec<_>>().join(", ");
    let used = before.len() + after.len() + 5;
    let mut parts = vec![
        Span::styled(before[..LABELS].to_owned(), theme.dim()),
        Span::raw(before[LABELS..].to_owned() + "  "),
    ];
    let bar = BAR.min(width.saturating_sub(used));
    if let Some(percent) = percent.filter(|_| bar >= 5) {
        let done = bar * percent as usize / 100;
        parts.push(Span::styled("█".repeat(done), theme.bar()));
        parts.push(Span::styled("░".repeat(bar - done), theme.dim()));
        parts.push(Span::raw("  "));
    }
    parts.push(Span::raw(after));
    Some(Line::from_iter(parts))
}
