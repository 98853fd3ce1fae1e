//! The words of the launcher and of the program.

#![allow(clippy::unwrap_used)]

use super::super::Form;
use super::*;
use proptest::prelude::*;
use std::ffi::OsStr;

#[track_caller]
fn target(line: &[&str]) -> (Form, String, Vec<String>) {
    let args = launch_words(line).unwrap();
    let target = args.target().unwrap().unwrap();
    let text = |word: &OsStr| word.to_str().unwrap().to_owned();
    (target.form, text(target.name), target.args.iter().map(|word| text(word)).collect())
}

#[track_caller]
fn expect(line: &[&str], form: Form, name: &str, args: &[&str]) {
    let (found, found_name, found_args) = target(line);
    assert_eq!((found, found_name.as_str()), (form, name), "{line:?}");
    assert_eq!(found_args, args, "{line:?}");
}

#[test]
fn the_form_follows_from_flags_and_name() {
    expect(&["demo"], Form::Recipe, "demo", &[]);
    expect(&["a.toml", "--nproc", "2"], Form::Recipe, "a.toml", &[]);
    expect(&["a/train.py"], Form::Script, "a/train.py", &[]);
    expect(&["-m", "pkg.train", "x"], Form::Module, "pkg.train", &["x"]);
    expect(&["--module", "train.py"], Form::Module, "train.py", &[]);
    expect(&["--no-python", "./train.py"], Form::Program, "./train.py", &[]);
    expect(&["--", "train.py"], Form::Program, "train.py", &[]);
    expect(&["--", "demo"], Form::Program, "demo", &[]);
    expect(&["-m", "--", "pkg.train"], Form::Module, "pkg.train", &[]);
    assert_eq!(launch_words(&["--nproc", "2"]).unwrap().target().unwrap(), None);
}

#[test]
fn arguments_after_a_script_or_module_belong_to_it() {
    let own = ["--nproc", "9", "-m", "--", "--no-such", "--help", "-x=1"];
    for before in
        [&["--nproc", "2", "t.py"][..], &["--nproc", "2", "-m", "t"], &["--nproc", "2", "--no-python", "t"]]
    {
        let line = [before, &own].concat();
        assert_eq!(target(&line).2, own, "{line:?}");
        assert_eq!(launch_words(&line).unwrap().nproc, Some(Nproc::Count(2)));
    }
}

#[test]
fn a_recipe_keeps_its_flags_wherever_they_stand() {
    for line in [
        &["--nproc", "2", "a.toml", "--set", "x=1", "--set", "y=2"][..],
        &["a.toml", "--set", "x=1", "--nproc", "2", "--set=y=2"],
        &["--set", "x=1", "--set", "y=2", "--nproc", "2", "a.toml"],
    ] {
        let args = launch_words(line).unwrap();
        assert_eq!(args.set, ["x=1", "y=2"]);
        assert_eq!(args.nproc, Some(Nproc::Count(2)));
        expect(line, Form::Recipe, "a.toml", &[]);
    }
    let error = launch_words(&["a.toml", "--epochs", "3"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownArgument);
    let text = error.to_string();
    assert!(
        text.contains("tip: to change a key of the recipe, use '--set'") && !text.contains("-- --"),
        "{text}"
    );
}

#[test]
fn two_targets_are_refused() {
    for (line, says) in [
        (&["a.toml", "b.toml"][..], "two recipes are given, `a.toml` and `b.toml`"),
        (&["a.toml", "t.py"], "both a recipe (`a.toml`) and a program (`t.py`)"),
        (&["a.toml", "--", "t"], "both a recipe (`a.toml`) and a program (`t`)"),
        (&["a.toml", "-m", "t"], "both a recipe (`a.toml`) and a module (`t`)"),
        (&["--nproc", "2", "a.toml", "t.py", "a b"], "alone with `dtrain launch --nproc 2 t.py 'a b'`"),
        (&["a.toml", "--nproc", "2", "--", "t", "--x"], "alone with `dtrain launch --nproc 2 -- t --x`"),
        (&["a.toml", "-m"], "-m comes after `a.toml`"),
        (&["a.toml", "--no-python"], "--no-python comes after `a.toml`"),
    ] {
        let error = launch_words(line).unwrap().target().unwrap_err().to_string();
        assert!(error.contains(says), "{line:?}: {error}");
    }
}

#[test]
fn a_try_passes_on_the_flags_that_its_launches_share() {
    let given = |line: &[&str]| launch_words(line).unwrap().given;
    assert_eq!(
        given(&["--nproc", "2", "a.toml", "--try", "--gpu-ids", "0,1", "--hang-timeout=9"]),
        ["--nproc=2", "--gpu-ids=0,1", "--hang-timeout=9"]
    );
    let own = ["a.toml", "--try", "--set", "a.b=1", "--run-dir", "x", "--max-restarts", "2"];
    let of_the_user = ["--on-end", "mail me", "--log-format", "json", "--color", "always"];
    assert!(given(&[&own[..], &of_the_user].concat()).is_empty());
}

#[test]
fn flags_may_be_spelled_with_underscores() {
    let launch = command(false).unwrap().0;
    let launch = launch.find_subcommand("launch").unwrap();
    for arg in launch.get_arguments() {
        let names: Vec<_> = arg.get_long_and_visible_aliases().unwrap_or_default();
        let all: Vec<_> = names.iter().copied().chain(arg.get_all_aliases().unwrap_or_default()).collect();
        for name in names {
            assert!(all.contains(&name.replace('-', "_").as_str()), "--{name}");
        }
    }
    command(false).unwrap().0.debug_assert();
}

proptest! {
    #[test]
    fn no_word_of_a_script_is_lost_or_taken(own in prop::collection::vec("[-a-z=.]{0,8}", 0..6)) {
        let line: Vec<&str> = ["t.py"].into_iter().chain(own.iter().map(String::as_str)).collect();
        let (form, name, args) = target(&line);
        prop_assert_eq!((form, name.as_str()), (Form::Script, "t.py"));
        prop_assert_eq!(args, own);
    }

    #[test]
    fn no_line_panics(line in prop::collection::vec("(--nproc|--set|-m|--|demo|t.py|--role|[a-z=.-]{0,4})", 0..7)) {
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        if let Ok(args) = launch_words(&line) {
            let _ = args.target();
        }
    }
}
