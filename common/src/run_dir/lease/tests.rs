#![allow(clippy::unwrap_used)]
use super::*;

const QUICK: Timing = Timing {
    renewal: Duration::from_millis(30),
    stale: Duration::from_secs(2),
    settle: Duration::from_millis(100),
};
const NONE: Duration = Duration::ZERO;

/// Returns the lease of a process on another machine.
fn elsewhere(beat: u64) -> String {
    let holder = Holder { host: "far".to_owned(), namespace: "other/pid:[1]".to_owned(), ..Holder::this() };
    holder.text(beat)
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.lease");
    (folder, path)
}

/// Makes the lease of a process on another machine, which does not renew it.
fn left_elsewhere() -> (tempfile::TempDir, PathBuf) {
    let (folder, path) = place();
    fs::write(&path, elsewhere(0)).unwrap();
    (folder, path)
}

/// Returns the holder of a lease that is refused.
#[track_caller]
fn held(taken: Result<Lease, LeaseError>) -> String {
    match taken.unwrap_err() {
        LeaseError::Held(who) => who,
        LeaseError::Io(error) => panic!("{error}"),
    }
}

#[track_caller]
fn wait_until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30));
        std::thread::sleep(QUICK.renewal);
    }
}

#[test]
fn a_lease_held_on_this_machine_is_an_error_at_once_and_free_after_release() {
    let (_folder, path) = place();
    let first = Lease::take(path.clone(), NONE, QUICK).unwrap();
    assert_eq!(held(Lease::take(path.clone(), NONE, QUICK)), Holder::this().describe());
    drop(first);
    assert!(!path.exists());
    Lease::take(path, NONE, QUICK).unwrap();
}

#[test]
fn a_lease_of_a_dead_process_of_this_machine_is_taken_at_once() {
    let (_folder, path) = place();
    let dead = Holder { started: 1, ..Holder::this() };
    fs::write(&path, dead.text(7)).unwrap();
    let timing = Timing { stale: Duration::from_secs(3600), ..QUICK };
    let lease = Lease::take(path.clone(), NONE, timing).unwrap();
    assert_eq!(Holder::parse(&fs::read_to_string(&path).unwrap()), Some(Holder::this()));
    drop(lease);
}

#[test]
fn a_lease_of_another_machine_is_taken_only_when_stale() {
    let (_folder, path) = left_elsewhere();
    let (stop, stopped) = mpsc::channel::<()>();
    let renewing = std::thread::spawn({
        let path = path.clone();
        move || {
            let file = OpenOptions::new().write(true).open(path).unwrap();
            for beat in 1.. {
                file.write_all_at(elsewhere(beat).as_bytes(), 0).unwrap();
                if stopped.recv_timeout(QUICK.renewal) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        }
    });
    let who = held(Lease::take(path.clone(), NONE, QUICK));
    assert!(who.ends_with("on far"), "{who}");
    drop(stop);
    renewing.join().unwrap();
    let begun = Instant::now();
    Lease::take(path, NONE, QUICK).unwrap();
    assert!(begun.elapsed() >= QUICK.stale);
}

#[test]
fn of_two_takers_of_a_stale_lease_the_last_has_it() {
    let (_folder, path) = left_elsewhere();
    let own = Holder::this();
    let other = Holder { pid: own.pid + 1, ..own.clone() };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| overwrite(&path, &elsewhere(0), &own, QUICK.settle).unwrap());
        while fs::read_to_string(&path).unwrap() == elsewhere(0) {
            std::thread::yield_now();
        }
        write_atomic(&path, other.text(0).as_bytes()).unwrap();
        assert!(!first.join().unwrap());
    });
    assert!(!overwrite(&path, &elsewhere(0), &own, QUICK.settle).unwrap(), "it is not stale any more");
}

#[test]
fn of_two_takers_from_a_lost_machine_one_has_the_lease() {
    let (_folder, path) = left_elsewhere();
    let holder = Holder::parse(&elsewhere(0)).unwrap().describe();
    let other = Holder { pid: Holder::this().pid + 1, ..Holder::this() };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| Lease::take_from_lost(path.clone(), &holder, QUICK));
        while fs::read_to_string(&path).unwrap() == elsewhere(0) {
            std::thread::yield_now();
        }
        write_atomic(&path, other.text(0).as_bytes()).unwrap();
        assert!(matches!(first.join().unwrap(), Err(LeaseError::Held(_))));
    });
    assert_eq!(fs::read_to_string(&path).unwrap(), other.text(0));
}

#[test]
fn a_renewed_lease_is_not_taken_from_its_holder() {
    let (_folder, path) = left_elsewhere();
    let holder = Holder::parse(&elsewhere(0)).unwrap().describe();
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| Lease::take_from_lost(path.clone(), &holder, QUICK));
        for beat in 1.. {
            std::thread::sleep(QUICK.renewal);
            write_atomic(&path, elsewhere(beat).as_bytes()).unwrap();
            if taker.is_finished() {
                break;
            }
        }
        assert!(matches!(taker.join().unwrap(), Err(LeaseError::Held(_))));
    });
}

#[test]
fn a_lease_of_another_holder_is_neither_renewed_nor_removed() {
    let (_folder, path) = place();
    let lost = Lease::take(path.clone(), NONE, QUICK).unwrap();
    write_atomic(&path, elsewhere(3).as_bytes()).unwrap();
    wait_until(|| lost.is_lost());
    drop(lost);
    assert_eq!(fs::read_to_string(&path).unwrap(), elsewhere(3));
}

#[test]
fn a_suspended_process_of_this_machine_keeps_its_lease() {
    let (_folder, path) = place();
    fs::write(&path, Holder::this().text(7)).unwrap();
    let patience = QUICK.stale + Duration::from_millis(200);
    assert_eq!(held(Lease::take(path, patience, QUICK)), Holder::this().describe());
}

#[test]
fn a_lease_is_renewed() {
    let (_folder, path) = place();
    let _lease = Lease::take(path.clone(), NONE, QUICK).unwrap();
    let first = fs::read_to_string(&path).unwrap();
    wait_until(|| fs::read_to_string(&path).unwrap() != first);
}

fn wait_until_renewed(path: &Path) {
    let own = Holder::this();
    wait_until(|| content(path).unwrap().is_some_and(|text| Holder::parse(&text).as_ref() == Some(&own)));
}

#[test]
fn a_removed_or_truncated_lease_is_written_again() {
    let (_folder, path) = place();
    let lease = Lease::take(path.clone(), NONE, QUICK).unwrap();
    fs::remove_file(&path).unwrap();
    wait_until_renewed(&path);
    for broken in [&b""[..], b"process 1", b"\xff\xff"] {
        write_atomic(&path, broken).unwrap();
        wait_until_renewed(&path);
    }
    assert!(!lease.is_lost());
    assert!(lease.failure().is_none());
    drop(lease);
    assert!(!path.exists());
}

#[test]
fn a_lease_missing_after_a_long_pause_is_lost() {
    let (_folder, path) = place();
    // As if the process had been suspended: at its next look, others could have taken the lease.
    let timing = Timing { stale: Duration::ZERO, ..QUICK };
    let lease = Lease::take(path.clone(), NONE, timing).unwrap();
    fs::remove_file(&path).unwrap();
    wait_until(|| lease.is_lost());
}

#[test]
fn a_failed_renewal_is_reported_and_retried() {
    let (_folder, path) = place();
    let lease = Lease::take(path.clone(), NONE, QUICK).unwrap();
    // A folder cannot be written like a file.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    wait_until(|| lease.failure().is_some());
    fs::remove_dir(&path).unwrap();
    wait_until_renewed(&path);
    assert!(!lease.is_lost());
}

#[test]
fn a_slow_read_does_not_count_as_a_silent_holder() {
    let mut watch = Watch::default();
    let now = Instant::now();
    let at = |ms| now + Duration::from_millis(ms);
    let away = Duration::from_millis(1500);
    let settle = Duration::from_secs(1);
    assert_eq!(watch.unchanged_for("beat 1", NONE, at(0), settle), NONE);
    assert_eq!(watch.unchanged_for("beat 1", NONE, at(900), settle), Duration::from_millis(900));
    assert_eq!(watch.unchanged_for("beat 1", away, at(2400), settle), NONE, "it was away");
    assert!(!watch.renewed);
    assert_eq!(watch.unchanged_for("beat 2", NONE, at(2500), settle), NONE);
    assert!(watch.renewed);
}
