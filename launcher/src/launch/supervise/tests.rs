#![allow(clippy::unwrap_used)]

use super::*;

fn supervisor() -> Supervisor {
    let (events_out, events) = crossbeam_channel::unbounded();
    Supervisor {
        begun: Begun::now(),
        events_out,
        events,
        family: Family::default(),
        job: None,
    }
}

/// What comes of checks that hang, as on a file system that does not answer.
fn hanging(supervisor: &Supervisor) -> Early<()> {
    supervisor
        .while_nothing_runs(|| std::thread::sleep(Duration::from_secs(20)))
        .unwrap()
}

#[test]
fn checks_that_hang_are_left_when_the_guardian_is_killed() {
    let supervisor = supervisor();
    supervisor.events_out.send(Event::Abandoned).unwrap();
    let signal = signals::KILL;
    assert!(matches!(hanging(&supervisor), Early::Stopped { signal: by } if by == signal));
}

#[test]
fn checks_that_hang_are_left_at_once_at_a_second_request() {
    let takes_at_once = || {
        let supervisor = supervisor();
        let events = supervisor.events_out.clone();
        let begun = Instant::now();
        let asking = std::thread::spawn(move || {
            events
                .send(Event::Stop {
                    signal: signals::TERM,
                })
                .unwrap();
            std::thread::sleep(SAME_REQUEST * 2);
            events.send(Event::Stop { signal: signals::INT }).unwrap();
        });
        let signal = signals::TERM;
        assert!(matches!(hanging(&supervisor), Early::Stopped { signal: by } if by == signal));
        let took = begun.elapsed();
        asking.join().unwrap();
        took < LAST_CHECKS
    };
    // A busy machine may be late, but not always.
    assert!((0..5).any(|_| takes_at_once()));
}

#[test]
fn a_request_that_comes_twice_at_a_time_leaves_the_checks_their_time() {
    let supervisor = supervisor();
    for _ in 0..2 {
        supervisor
            .events_out
            .send(Event::Stop { signal: signals::INT })
            .unwrap();
    }
    let begun = Instant::now();
    hanging(&supervisor);
    assert!(begun.elapsed() >= LAST_CHECKS);
}
