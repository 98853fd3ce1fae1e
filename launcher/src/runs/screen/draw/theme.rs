//! Colours, or none with `NO_COLOR`.

use crate::cli::RunState;
use ratatui::style::{Color, Modifier, Style};

/// Whether the terminal shows colours.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Theme {
    has_colors: bool,
}

impl Theme {
    /// Returns the theme that the environment asks for: <https://no-color.org>.
    pub(in super::super) fn of_terminal() -> Self {
        Self { has_colors: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    #[cfg(test)]
    pub(super) fn plain() -> Self {
        Self { has_colors: false }
    }

    #[cfg(test)]
    pub(super) fn colored() -> Self {
        Self { has_colors: true }
    }

    /// Returns the color, or the terminal's own.
    fn color(self, color: Color) -> Color {
        if self.has_colors { color } else { Color::Reset }
    }

    fn style(self, color: Color) -> Style {
        if self.has_colors { Style::new().fg(color) } else { Style::new() }
    }

    pub(super) fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(super) fn key(self) -> Style {
        self.style(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub(super) fn bad(self) -> Style {
        self.style(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(super) fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(super) fn bar(self) -> Style {
        self.style(Color::Green)
    }

    /// Returns the style of a run in this state.
    pub(super) fn state(self, state: RunState) -> Style {
        match state {
            RunState::Running => self.style(Color::Green),
            RunState::Failed | RunState::OutOfMemory | RunState::Lost | RunState::Unreadable => {
                self.style(Color::Red)
            }
            RunState::Requeue | RunState::Stopped => self.style(Color::Yellow),
            RunState::Succeeded | RunState::NotStarted => Style::new(),
        }
    }

    /// Returns the color of the curve with this number in its chart.
    pub(super) fn curve(self, number: usize) -> Color {
        self.color([Color::Cyan, Color::Yellow, Color::Magenta, Color::Green][number % 4])
    }
}
