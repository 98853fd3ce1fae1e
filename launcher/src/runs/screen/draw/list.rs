//! The list of runs.

use super::super::super::table;
use super::super::source::Look;
use super::super::view::View;
use super::{Free, Theme, put};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;

/// Returns the rows of the list on a screen with `free` rows, so that there is room for the chosen run.
pub(super) fn rows(free: u16, runs: usize) -> u16 {
    let most = if free >= 18 { free / 3 } else { free / 2 };
    most.min(u16::try_from(runs + 1).unwrap_or(u16::MAX)).max(u16::from(free > 0))
}

pub(super) fn draw(area: Rect, buffer: &mut Buffer, look: &Look, view: &View, theme: Theme) {
    let mut free = Free(area);
    let lines = table::rows(&look.list, area.width.into());
    let Some((title, lines)) = lines.split_first() else { return };
    if area.height > 1 {
        put(free.top(1), buffer, Span::styled(title.as_str(), theme.dim()));
    }
    let height = usize::from(free.0.height);
    // The chosen run is visible.
    let first = (view.place + 1).saturating_sub(height);
    for (place, line) in lines.iter().enumerate().skip(first).take(height) {
        let row = free.top(1);
        let mut style = theme.state(look.list.runs[place].state);
        if place == view.place {
            style = style.patch(theme.chosen());
            buffer.set_style(row, style);
        }
        put(row, buffer, Span::styled(line.as_str(), style));
    }
}
