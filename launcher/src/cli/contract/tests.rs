#![allow(clippy::unwrap_used)]

use super::super::parse::launch_words;
use super::*;
use proptest::prelude::*;

fn contract(line: &[&str]) -> Result<ContractArgs, clap::Error> {
    launch_words(line).map(|args| args.contract)
}

#[track_caller]
pub(crate) fn refused(line: &[&str], says: &[&str]) {
    let error = match contract(line) {
        Ok(args) => args.check().unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    for word in says {
        assert!(error.contains(word), "{line:?}: {error}");
    }
}

#[track_caller]
pub(crate) fn notes(line: &[&str]) -> Vec<String> {
    contract(line).unwrap().check().unwrap()
}

#[test]
fn flags_that_contradict_each_other_are_named() {
    refused(&["-m", "--no-python"], &["-m", "--no-python", "contradict each other"]);
}

#[test]
fn flags_without_use_are_answered_with_a_sentence() {
    for (line, flag) in [
        (&["--monitor-interval", "0.5"][..], "--monitor-interval is ignored"),
        (&["--start-method", "fork"], "--start-method is ignored"),
        (&["--event_log_handler", "console"], "--event-log-handler is ignored"),
        (&["--logs-specs", "x"], "--logs-specs is ignored"),
        (&["--run-path"], "--run-path is ignored"),
    ] {
        let notes = notes(line);
        assert!(notes.len() == 1 && notes[0].starts_with(flag), "{notes:?}");
    }
    assert_eq!(notes(&["--event-log-handler", "null"]), [""; 0], "torchrun's own default");
    refused(&["--start-method", "thread"], &["--start-method", "forkserver"]);
}

#[test]
fn a_flag_may_be_cut_short_as_long_as_it_is_clear() {
    let args = launch_words(&[
        "--nproc_per",
        "2",
        "--master_p",
        "1",
        "--rdzv-e=localhost:2",
        "--standal",
        "t.py",
        "--nproc_per",
        "9",
    ]);
    let args = args.unwrap();
    assert_eq!(args.nproc, Some(super::super::Nproc::Count(2)));
    assert!(args.contract.rendezvous.standalone && args.contract.rendezvous.master_port.is_some());
    assert_eq!(args.target().unwrap().unwrap().args, ["--nproc_per", "9"]);
    refused(&["--master", "x"], &["--master"]);
}

#[test]
fn all_six_signals_are_handled_unless_some_are_named() {
    assert_eq!(contract(&[]).unwrap().signals().len(), 6);
    let named = contract(&["--signals-to-handle", "SIGUSR1,TERM"]).unwrap().signals();
    assert_eq!(named, [signals::USR1, signals::TERM]);
    assert_eq!(contract(&["--signals-to-handle", "SIGUSR1,TERM"]).unwrap().signal_names(), "SIGUSR1,SIGTERM");
    refused(&["--signals-to-handle", "TERM,KILL"], &["--signals-to-handle", "\"KILL\""]);
}

#[test]
fn signals_have_names_with_and_without_sig() {
    for (text, number) in [("SIGTERM", signals::TERM), ("int", signals::INT), (" Usr1", signals::USR1)] {
        assert_eq!(signal(text), Ok(number));
    }
    for text in ["", "KILL", "STOP", "SIG", "CHLD", "15", "nonsense"] {
        assert!(signal(text).is_err(), "{text:?}");
    }
    refused(&["--signals-to-handle", "TERM,"], &["--signals-to-handle"]);
}

#[test]
fn intervals_are_above_zero() {
    for text in ["0.1", "5", "1e-3"] {
        assert!(interval(text).is_ok());
    }
    for text in ["0", "-1", "nan", "inf", "", "soon"] {
        assert!(interval(text).is_err(), "{text:?}");
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,20}") {
        let _ = (signal(&text), interval(&text));
    }
}
