//! The user's choice of a view, and the change that each key makes. No terminal, no files.

use super::super::run::Run;
use super::source::{Look, Wanted};
use dtrain_agent::io::output::Stream;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::path::PathBuf;

/// A picture that fills the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Page {
    /// All runs, and the chosen one below.
    #[default]
    Runs,
    /// The chosen run alone.
    Run,
    /// The log of a rank.
    Log,
}

/// What follows from a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Draw,
    /// Draw every cell again.
    Redraw,
    Suspend,
    Quit,
}

/// The user's choices.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) page: Page,
    pub(super) has_help: bool,
    /// The chosen run's directory, and its place in the list.
    pub(super) chosen: Option<PathBuf>,
    pub(super) place: usize,
    /// The chart that comes first.
    pub(super) chart: usize,
    pub(super) rank: usize,
    pub(super) stream: Option<Stream>,
    /// The line after the last shown one; absent: the end, also when the log grows.
    pub(super) log_end: Option<usize>,
    /// Rows for lines of the log, when it was last drawn.
    pub(super) log_rows: usize,
}

impl View {
    pub(super) fn wanted(&self) -> Wanted {
        Wanted { run: self.chosen.clone(), rank: self.rank, stream: self.stream }
    }

    /// Returns the chosen run.
    pub(super) fn run<'a>(&self, look: &'a Look) -> Option<&'a Run> {
        look.list.runs.get(self.place)
    }

    /// Finds the chosen run in a new list. If it is gone, the one in its place is chosen.
    pub(super) fn follow(&mut self, look: &Look) {
        let runs = &look.list.runs;
        let same = runs.iter().position(|run| Some(&run.path) == self.chosen.as_ref());
        self.choose(look, same.unwrap_or(self.place));
    }

    fn choose(&mut self, look: &Look, place: usize) {
        self.place = place.min(look.list.runs.len().saturating_sub(1));
        let run = self.run(look);
        if run.map(|run| &run.path) != self.chosen.as_ref() {
            // The log of the rank that failed says most.
            let failed = run.and_then(|run| run.result.failure.as_ref()).map_or(0, |failure| failure.rank);
            let chosen = run.map(|run| run.path.clone());
            (self.chosen, self.rank, self.stream, self.log_end) = (chosen, failed, None, None);
        }
    }

    /// Changes what a key changes.
    pub(super) fn on_key(&mut self, key: KeyEvent, look: &Look) -> Option<Next> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Some(Next::Quit),
                KeyCode::Char('z') => Some(Next::Suspend),
                KeyCode::Char('l') => Some(Next::Redraw),
                _ => None,
            };
        }
        if self.has_help {
            // Any key closes the help.
            self.has_help = false;
            return Some(if key.code == KeyCode::Char('q') { Next::Quit } else { Next::Draw });
        }
        let page = self.rows();
        match key.code {
            KeyCode::Char('q') => return Some(Next::Quit),
            KeyCode::Esc if self.page == Page::Runs => return Some(Next::Quit),
            KeyCode::Esc => self.page = Page::Runs,
            KeyCode::Char('?') => self.has_help = true,
            KeyCode::Enter => self.page = if self.page == Page::Runs { Page::Run } else { Page::Runs },
            KeyCode::Char('l') => self.page = if self.page == Page::Log { Page::Runs } else { Page::Log },
            KeyCode::Left | KeyCode::Char('h') => self.choose_rank(self.rank.saturating_sub(1)),
            KeyCode::Right => self.choose_rank((self.rank + 1).min(self.ranks(look) - 1)),
            KeyCode::Tab if self.page == Page::Log => self.other_stream(look),
            KeyCode::Tab => self.chart += 1,
            KeyCode::BackTab => self.chart = self.chart.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(look, 1),
            KeyCode::Up | KeyCode::Char('k') => self.move_by(look, -1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.move_by(look, page),
            KeyCode::PageUp => self.move_by(look, -page),
            KeyCode::Home | KeyCode::Char('g') => self.move_by(look, isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.move_by(look, isize::MAX),
            _ => return None,
        }
        Some(Next::Draw)
    }

    /// Returns the lines of a page.
    fn rows(&self) -> isize {
        if self.page == Page::Log { self.log_rows.max(2) as isize - 1 } else { 10 }
    }

    fn ranks(&self, look: &Look) -> usize {
        self.run(look).map_or(1, |run| run.record.nproc.max(1))
    }

    fn choose_rank(&mut self, rank: usize) {
        if rank != self.rank {
            (self.rank, self.log_end) = (rank, None);
        }
    }

    fn other_stream(&mut self, look: &Look) {
        let shown = look.detail.as_ref().and_then(|detail| detail.stream);
        self.stream = Some(if shown == Some(Stream::Stderr) { Stream::Stdout } else { Stream::Stderr });
        self.log_end = None;
    }

    /// Moves the choice in the list, or the lines of the log.
    fn move_by(&mut self, look: &Look, rows: isize) {
        if self.page != Page::Log {
            self.choose(look, self.place.saturating_add_signed(rows));
            return;
        }
        let Some(log) = look.detail.as_ref().map(|detail| &detail.log) else { return };
        // The first page stays full.
        let first = log.end().min(log.before + self.log_rows.max(1));
        let end = self.log_end.unwrap_or(log.end()).saturating_add_signed(rows).max(first);
        self.log_end = (end < log.end()).then_some(end);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::samples::{look, run};
    use super::*;
    use crate::cli::RunState::{Failed, Running};

    fn press(view: &mut View, look: &Look, code: KeyCode) -> Option<Next> {
        view.on_key(KeyEvent::new(code, KeyModifiers::NONE), look)
    }

    fn chosen(view: &View, look: &Look) -> String {
        view.run(look).map(|run| run.path.display().to_string()).unwrap_or_default()
    }

    #[test]
    fn the_choice_follows_its_run() {
        let mut view = View::default();
        let first = look(vec![run("a", Running), run("b", Running), run("c", Failed)]);
        view.follow(&first);
        assert_eq!(chosen(&view, &first), "runs/a");
        press(&mut view, &first, KeyCode::Char('j'));
        assert_eq!(chosen(&view, &first), "runs/b");
        let other = look(vec![run("new", Running), run("a", Running), run("b", Failed), run("c", Failed)]);
        view.follow(&other);
        assert_eq!((chosen(&view, &other).as_str(), view.place), ("runs/b", 2));
        let removed = look(vec![run("a", Failed), run("c", Failed)]);
        view.follow(&removed);
        assert_eq!(chosen(&view, &removed), "runs/c");
        let none = look(vec![]);
        view.follow(&none);
        assert!(view.run(&none).is_none());
        for code in [KeyCode::Down, KeyCode::Up, KeyCode::End, KeyCode::Right, KeyCode::Tab, KeyCode::Enter] {
            assert_eq!(press(&mut view, &none, code), Some(Next::Draw));
        }
        view.follow(&first);
        assert_eq!(chosen(&view, &first), "runs/a");
        press(&mut view, &first, KeyCode::End);
        assert_eq!(chosen(&view, &first), "runs/c");
        assert_eq!(view.wanted().rank, 1, "the rank that failed");
        press(&mut view, &first, KeyCode::PageUp);
        assert_eq!(chosen(&view, &first), "runs/a");
    }

    #[test]
    fn escape_goes_back_and_then_quits() {
        let look = look(vec![run("a", Running)]);
        let mut view = View::default();
        press(&mut view, &look, KeyCode::Char('l'));
        press(&mut view, &look, KeyCode::Char('?'));
        assert!(view.page == Page::Log && view.has_help);
        press(&mut view, &look, KeyCode::Esc);
        assert!(view.page == Page::Log && !view.has_help);
        press(&mut view, &look, KeyCode::Esc);
        assert_eq!(view.page, Page::Runs);
        assert_eq!(press(&mut view, &look, KeyCode::Esc), Some(Next::Quit));
        assert_eq!(press(&mut view, &look, KeyCode::Char('q')), Some(Next::Quit));
        let ctrl =
            |view: &mut View, c| view.on_key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL), &look);
        view.has_help = true;
        assert_eq!(ctrl(&mut view, 'c'), Some(Next::Quit));
        assert_eq!(ctrl(&mut view, 'z'), Some(Next::Suspend));
        assert_eq!(press(&mut view, &look, KeyCode::Char('x')), Some(Next::Draw), "closes the help");
        assert_eq!(press(&mut view, &look, KeyCode::Char('x')), None);
    }

    #[test]
    fn a_log_that_is_scrolled_stays_and_its_end_is_followed() {
        let mut look = look(vec![run("a", Running)]);
        let mut view = View { page: Page::Log, log_rows: 4, ..View::default() };
        view.follow(&look);
        let log = &mut look.detail.as_mut().unwrap().log;
        (log.before, log.lines) = (100, (0..20).map(|line| line.to_string()).collect());
        press(&mut view, &look, KeyCode::Up);
        assert_eq!(view.log_end, Some(119));
        press(&mut view, &look, KeyCode::PageUp);
        assert_eq!(view.log_end, Some(116));
        press(&mut view, &look, KeyCode::Home);
        assert_eq!(view.log_end, Some(104));
        press(&mut view, &look, KeyCode::PageDown);
        assert_eq!(view.log_end, Some(107));
        press(&mut view, &look, KeyCode::End);
        assert_eq!(view.log_end, None);
        press(&mut view, &look, KeyCode::Up);
        press(&mut view, &look, KeyCode::Right);
        assert_eq!((view.wanted().rank, view.log_end), (1, None));
        press(&mut view, &look, KeyCode::Right);
        assert_eq!(view.wanted().rank, 1, "the last one");
        press(&mut view, &look, KeyCode::Tab);
        assert_eq!(view.wanted().stream, Some(Stream::Stdout));
    }
}
