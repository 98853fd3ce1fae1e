//! The log of a rank: its end below the charts, or a whole page.

use super::super::super::run::Run;
use super::super::source::{Detail, Look};
use super::super::view::View;
use super::{Free, Theme, put, rule};
use dtrain_agent::io::output::Stream;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;
use std::collections::VecDeque;
use unicode_width::UnicodeWidthChar;

/// Draws the last lines below a title.
pub(super) fn end(area: Rect, buffer: &mut Buffer, detail: &Detail, theme: Theme) {
    let mut free = Free(area);
    rule(free.top(1), buffer, Span::styled(title(detail), theme.title()), theme);
    draw_lines(free.0, buffer, detail, detail.log.end());
}

/// Draws the log alone, from where the user has scrolled to.
pub(super) fn page(
    area: Rect,
    buffer: &mut Buffer,
    look: &Look,
    run: &Run,
    detail: &Detail,
    view: &mut View,
    theme: Theme,
) {
    let mut free = Free(area);
    let place = match view.log_end {
        Some(end) => format!(", line {end} of {}", detail.log.end()),
        None => ", following".to_owned(),
    };
    let name = super::plain(&look.list.name(run).display().to_string());
    let title = format!("{name}: {} of {}{place}", title(detail), run.record.nproc.max(1));
    rule(free.top(1), buffer, Span::styled(title, theme.title()), theme);
    view.log_rows = free.0.height.into();
    draw_lines(free.0, buffer, detail, view.log_end.unwrap_or(detail.log.end()));
}

fn title(detail: &Detail) -> String {
    let stream = match detail.stream {
        Some(Stream::Stdout) => "standard output",
        _ => "standard error",
    };
    format!("{stream} of rank {}", detail.rank)
}

/// Draws the lines before line `end`, long ones on several rows.
fn draw_lines(area: Rect, buffer: &mut Buffer, detail: &Detail, end: usize) {
    let log = &detail.log;
    if log.lines.is_empty() {
        put(area, buffer, Span::raw("(empty)"));
        return;
    }
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let shown = end.saturating_sub(log.before).clamp(1, log.lines.len());
    let mut rows = VecDeque::new();
    for line in log.lines.iter().take(shown).rev() {
        for row in broken(line, width).into_iter().rev() {
            if rows.len() < height {
                rows.push_front(row);
            }
        }
        if rows.len() >= height {
            break;
        }
    }
    let mut free = Free(area);
    rows.into_iter().for_each(|row| put(free.top(1), buffer, Span::raw(row)));
}

/// Breaks a line into rows of at most `width` columns.
fn broken(line: &str, width: usize) -> Vec<String> {
    let mut rows = vec![String::new()];
    let mut used = 0;
    for c in line.chars() {
        let columns = c.width().unwrap_or(0);
        if used + columns > width && used > 0 {
            rows.push(String::new());
            used = 0;
        }
        if let Some(row) = rows.last_mut() {
            row.push(c);
        }
        used += columns;
    }
    rows
}
