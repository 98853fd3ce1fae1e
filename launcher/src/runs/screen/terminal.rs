//! The terminal as a whole screen, and its state before.

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::prelude::Frame;
use rustix::process::{Signal, kill_current_process_group};
use std::io::{self, Stdout, stdout};
use std::panic;

/// The screen of this program. Dropping it restores the terminal.
pub(super) struct FullScreen(Terminal<CrosstermBackend<Stdout>>);

impl FullScreen {
    /// Takes the terminal. A panic of any thread restores it, so that its message can be read.
    pub(super) fn enter() -> io::Result<Self> {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            hook(info);
        }));
        // From here on, dropping restores.
        let mut screen = Self(Terminal::new(CrosstermBackend::new(stdout()))?);
        screen.take()?;
        Ok(screen)
    }

    fn take(&mut self) -> io::Result<()> {
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen)?;
        self.clear()
    }

    /// Takes the terminal once more: another program may have used it.
    pub(super) fn take_again(&mut self) -> io::Result<()> {
        restore();
        self.take()
    }

    /// Gives the terminal back and suspends this program and those that started with it in one job, as Ctrl-Z does for others.
    /// The signal to continue must be answered with [`Self::take_again`].
    pub(super) fn suspend() -> io::Result<()> {
        restore();
        Ok(kill_current_process_group(Signal::STOP)?)
    }

    /// Draws every cell again.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        // `Terminal::clear` asks the terminal for the place of its cursor, and the answer may go to the thread that reads keys.
        let size = self.0.size()?;
        self.0.resize(size.into())
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.0.draw(draw).map(|_| ())
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back as it was. Does nothing if that has happened.
fn restore() {
    // A terminal that is gone needs nothing.
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
}
