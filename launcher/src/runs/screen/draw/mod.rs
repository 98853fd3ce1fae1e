//! Makes the picture of a look at the runs and the user's choices. The smaller the screen, the less it shows.

mod charts;
mod detail;
mod facts;
mod help;
mod list;
mod log;
mod theme;

use super::super::fit::cut;
use super::super::table::{heading, plain};
use super::source::{Detail, Look};
use super::view::{Page, View};
use crate::times::local_time;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::prelude::Frame;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

pub(super) use theme::Theme;

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, look: &Look, view: &mut View, theme: Theme) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    let mut free = Free(area);
    if area.height >= 4 {
        header(free.top(1), buffer, look, theme);
    }
    if area.height >= 8 {
        footer(free.bottom(1), buffer, view, theme);
    }
    if let Some(error) = &look.error {
        let text = format!("not read again: {}", plain(error));
        put(free.top(1), buffer, Span::styled(cut(&text, area.width.into()), theme.bad()));
    }
    if view.has_help {
        help::draw(free.0, buffer, theme);
        return;
    }
    let Some(run) = view.run(look) else {
        let text = "No runs yet. A run appears here when it begins.";
        put(free.top(1), buffer, Span::raw(cut(text, area.width.into())));
        return;
    };
    // After another run was chosen, its details arrive a moment later.
    let nothing = Detail::default();
    let known = look.detail.as_ref().filter(|detail| detail.path == run.path);
    let detail = known.unwrap_or(&nothing);
    match view.page {
        Page::Runs => {
            list::draw(free.top(list::rows(free.0.height, look.list.runs.len())), buffer, look, view, theme);
            detail::draw(free.0, buffer, look, run, detail, view, theme);
        }
        Page::Run => detail::draw(free.0, buffer, look, run, detail, view, theme),
        Page::Log => log::page(free.0, buffer, look, run, detail, view, theme),
    }
}

fn header(area: Rect, buffer: &mut Buffer, look: &Look, theme: Theme) {
    let time = local_time(look.time);
    let room = usize::from(area.width).saturating_sub(time.len() + 2);
    let heading = heading(&look.list);
    let (left, has_time) =
        if room >= 20 { (cut(&heading, room), true) } else { (cut(&heading, area.width.into()), false) };
    put(area, buffer, Span::styled(left, theme.title()));
    if has_time {
        Line::styled(time, theme.dim()).right_aligned().render(area, buffer);
    }
}

fn footer(area: Rect, buffer: &mut Buffer, view: &View, theme: Theme) {
    let keys: &[(&str, &str)] = match (view.has_help, view.page) {
        (true, _) => &[("any key", "back"), ("q", "quit")],
        (_, Page::Runs) => &[
            ("?", "help"),
            ("q", "quit"),
            ("j/k", "run"),
            ("enter", "alone"),
            ("l", "log"),
            ("tab", "chart"),
        ],
        (_, Page::Run) => {
            &[("?", "help"), ("q", "quit"), ("esc", "back"), ("j/k", "run"), ("l", "log"), ("tab", "chart")]
        }
        (_, Page::Log) => &[
            ("?", "help"),
            ("q", "quit"),
            ("esc", "back"),
            ("j/k", "scroll"),
            ("G", "follow"),
            ("left/right", "rank"),
            ("tab", "stream"),
        ],
    };
    let spans = keys.iter().flat_map(|(key, what)| {
        [Span::styled(*key, theme.key()), Span::styled(format!(" {what}  "), theme.dim())]
    });
    put(area, buffer, Line::from_iter(spans));
}

/// The part of the screen that is still empty.
struct Free(Rect);

impl Free {
    /// Takes rows from above; fewer, if fewer are empty.
    fn top(&mut self, rows: u16) -> Rect {
        let rows = rows.min(self.0.height);
        let taken = Rect { height: rows, ..self.0 };
        self.0 = Rect { y: self.0.y + rows, height: self.0.height - rows, ..self.0 };
        taken
    }

    /// Takes rows from below.
    fn bottom(&mut self, rows: u16) -> Rect {
        let rows = rows.min(self.0.height);
        self.0.height -= rows;
        Rect { y: self.0.y + self.0.height, height: rows, ..self.0 }
    }
}

/// Writes a line into the first row, cut to its width.
fn put<'a>(area: Rect, buffer: &mut Buffer, line: impl Into<Line<'a>>) {
    line.into().render(area, buffer);
}

/// Draws a line with a title in it, above a part of the screen.
fn rule(area: Rect, buffer: &mut Buffer, title: Span<'_>, theme: Theme) {
    let text = cut(&title.content, usize::from(area.width).saturating_sub(4));
    let used = Span::raw(text.as_str()).width() + 4;
    let rest = "─".repeat(usize::from(area.width).saturating_sub(used));
    let parts = [
        Span::styled("─ ", theme.dim()),
        Span::styled(text, title.style),
        Span::styled(format!(" {rest}"), theme.dim()),
    ];
    put(area, buffer, Line::from_iter(parts));
}

#[cfg(test)]
mod tests;
