#![allow(clippy::unwrap_used)]

use super::*;

pub(in crate::launch) fn inbox() -> Inbox {
    let (sender, events) = crossbeam_channel::unbounded();
    Inbox {
        start_time: StartTime::now(),
        sender,
        events,
        family: Family::default(),
        job: None,
        senders: Senders::default(),
    }
}

/// Returns the result of checks that hang, as on a file system that does not answer.
fn hanging(inbox: &Inbox) -> BeforeStart<()> {
    inbox.while_nothing_runs(|| std::thread::sleep(Duration::from_secs(20))).unwrap()
}

#[test]
fn checks_that_hang_are_left_when_the_guardian_is_killed() {
    let inbox = inbox();
    inbox.sender.send(Event::Abandoned).unwrap();
    let signal = signals::KILL;
    assert!(matches!(hanging(&inbox), Err(by) if by == signal));
}

#[test]
fn checks_that_hang_are_left_at_once_at_a_second_request() {
    let takes_at_once = || {
        let inbox = inbox();
        let events = inbox.sender.clone();
        let start_time = Instant::now();
        let asking = std::thread::spawn(move || {
            events.send(Event::Stop { signal: signals::TERM, again: false }).unwrap();
            events.send(Event::Stop { signal: signals::INT, again: true }).unwrap();
        });
        let signal = signals::TERM;
        assert!(matches!(hanging(&inbox), Err(by) if by == signal));
        let took = start_time.elapsed();
        asking.join().unwrap();
        took < LAST_CHECKS
    };
    // A busy machine may be late, but not always.
    assert!((0..5).any(|_| takes_at_once()));
}

#[test]
fn a_first_request_leaves_the_checks_their_time() {
    let inbox = inbox();
    inbox.sender.send(Event::Stop { signal: signals::INT, again: false }).unwrap();
    let start_time = Instant::now();
    let _ = hanging(&inbox);
    assert!(start_time.elapsed() >= LAST_CHECKS);
}
