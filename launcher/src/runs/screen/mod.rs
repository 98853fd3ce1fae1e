//! `dtrain runs watch` on a terminal: the runs, and the curves, memory, GPUs and logs of the chosen one, on a whole screen.
//!
//! `source` reads the runs on a thread, `view` holds the user's choices, `draw` makes a picture of both. Keys, signals and
//! looks at the runs arrive as events.

mod curve;
mod draw;
mod history;
mod log;
#[cfg(test)]
mod samples;
mod source;
mod terminal;
mod view;

use super::List;
use crate::cli::WatchArgs;
use anyhow::{Context, anyhow};
use crossbeam_channel::{Receiver, Sender, unbounded};
use draw::Theme;
use dtrain_agent::io::process::handlers;
use dtrain_agent::signals;
use dtrain_common::exit::ExitStatus;
use ratatui::crossterm::event::{self, KeyEvent};
use rustix::process::Signal;
pub(super) use source::sort;
use source::{Look, Source};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, SystemTime};
use terminal::FullScreen;
use view::{Next, View};

/// Ctrl-Z of another program, such as `kill -TSTP`.
const SUSPEND: i32 = Signal::TSTP.as_raw();

/// What the screen waits for.
#[derive(Debug)]
enum Event {
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    /// A thread has ended.
    Ended(&'static str),
    Signal(i32),
    Look(Box<Look>),
}

/// Tells of the end of its thread, also by a panic.
struct Thread(Sender<Event>, &'static str);

impl Drop for Thread {
    fn drop(&mut self) {
        let _ = self.0.send(Event::Ended(self.1));
    }
}

/// Returns whether keys can be read.
pub(super) fn has_keys() -> bool {
    io::stdin().is_terminal() || File::open("/dev/tty").is_ok()
}

/// Shows the runs until the user quits.
///
/// # Errors
///
/// The folder cannot be listed, or the terminal cannot be used.
pub(super) fn run(args: &WatchArgs) -> anyhow::Result<ExitCode> {
    // A wrong folder is an error on the usual screen.
    let first = List::read(&args.which, SystemTime::now())?;
    let (events, received) = unbounded();
    let on_signal = events.clone();
    let heard: Vec<i32> = signals::STOP.into_iter().chain([SUSPEND, signals::CONT]).collect();
    handlers::listen(&heard, move |signal, _| {
        let _ = on_signal.send(Event::Signal(signal));
    })
    .context("cannot receive signals")?;
    let (want, wanted) = unbounded();
    let source = Source::new(args.which.clone(), Duration::from_secs_f64(args.interval), first);
    let look = source.first_look();
    let looks = Thread(events.clone(), "cannot read the runs any more");
    thread::Builder::new().name("runs".to_owned()).spawn(move || source.run(&wanted, &looks.0))?;
    let mut screen = FullScreen::enter().context("cannot use the terminal")?;
    let keys = Thread(events, "the terminal was closed");
    thread::Builder::new().name("keys".to_owned()).spawn(move || read_keys(&keys.0))?;
    let end = show(&mut screen, look, &received, &want);
    drop(screen);
    end
}

/// Sends keys until the terminal is closed.
fn read_keys(events: &Sender<Event>) {
    while let Ok(event) = event::read() {
        let event = match event {
            event::Event::Key(key) => Event::Key(key),
            event::Event::Resize(..) => Event::Resized,
            _ => continue,
        };
        if events.send(event).is_err() {
            return;
        }
    }
}

/// Draws what has changed until the user quits or a signal ends it.
fn show(
    screen: &mut FullScreen,
    mut look: Look,
    events: &Receiver<Event>,
    want: &Sender<source::Wanted>,
) -> anyhow::Result<ExitCode> {
    let theme = Theme::of_terminal();
    let mut view = View::default();
    view.follow(&look);
    let _ = want.send(view.wanted());
    // From Ctrl-Z to the signal to continue, the terminal is the shell's.
    let mut suspended = false;
    loop {
        if !suspended {
            screen
                .draw(|frame| draw::draw(frame, &look, &mut view, theme))
                .context("cannot draw on the terminal")?;
        }
        let first = events.recv().context("the threads that read runs and keys have ended")?;
        let before = view.wanted();
        // A held key sends many events: one picture is enough.
        for event in std::iter::once(first).chain(events.try_iter()) {
            let next = match event {
                Event::Key(key) => view.on_key(key, &look),
                Event::Resized => Some(Next::Draw),
                Event::Look(newer) => {
                    view.follow(&newer);
                    look = *newer;
                    None
                }
                Event::Signal(SUSPEND) => Some(Next::Suspend),
                Event::Signal(signals::CONT) => {
                    screen.take_again()?;
                    suspended = false;
                    None
                }
                // Ctrl-C is the usual end, also as a signal.
                Event::Signal(signals::INT) => Some(Next::Quit),
                Event::Signal(signal) => return Ok(ExitStatus::Signal(signal).into()),
                Event::Ended(why) => return Err(anyhow!(why)),
            };
            match next {
                Some(Next::Quit) => return Ok(ExitStatus::Success.into()),
                Some(Next::Suspend) => {
                    suspended = true;
                    FullScreen::suspend()?;
                }
                Some(Next::Redraw) => screen.clear()?,
                Some(Next::Draw) | None => {}
            }
        }
        if view.wanted() != before {
            let _ = want.send(view.wanted());
        }
    }
}
