//! The page of keys.

use super::{Free, Theme, put};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

const KEYS: [(&str, &str); 11] = [
    ("j k, arrows", "choose a run; scroll a log"),
    ("enter", "the chosen run alone, and back"),
    ("tab", "another chart first"),
    ("l", "the log, and back"),
    ("left, right", "log of another rank"),
    ("tab in a log", "standard output or standard error"),
    ("G, end", "follow the end of the log"),
    ("g, home", "first run; first line of the log"),
    ("space, pgup", "a page down or up"),
    ("ctrl-l, ctrl-z", "draw again; suspend"),
    ("q, esc", "quit; esc first goes back"),
];

pub(super) fn draw(area: Rect, buffer: &mut Buffer, theme: Theme) {
    let mut free = Free(area);
    put(free.top(1), buffer, Span::styled("Keys", theme.title()));
    for (key, what) in KEYS {
        let key = Span::styled(format!("  {key:<16}"), theme.key());
        put(free.top(1), buffer, Line::from_iter([key, Span::raw(what)]));
    }
    free.top(1);
    for line in [
        "left   rest of a running training, by its last steps",
        "saved  step of the newest checkpoint",
        "peak   the most memory that rank 0 took in the step",
    ] {
        put(free.top(1), buffer, Span::styled(format!("  {line}"), theme.dim()));
    }
}
