#![allow(clippy::unwrap_used)]

use super::*;
use clap::Parser;
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    output: OutputArgs,
}

fn flags(line: &[&str]) -> OutputArgs {
    let words = ["dtrain"].iter().chain(line);
    Flags::try_parse_from(words).unwrap().output
}

fn routing(line: &[&str], workers: usize, home: Home) -> anyhow::Result<Routing> {
    let labels = Labels { role: "trainer".into(), hostname: "node-a".into(), template: None };
    Routing::of(&flags(line), workers, home, labels)
}

/// Formats each worker's standard output and error: `s` shown, `k` kept, `b` both, `-` neither.
fn picture(line: &[&str], workers: usize, home: Home) -> String {
    let routing = routing(line, workers, home).unwrap();
    let workers = (0..workers).map(|rank| {
        Stream::BOTH
            .map(|stream| match routing.route(rank, stream) {
                Route { shown: true, kept: true } => 'b',
                Route { shown: true, kept: false } => 's',
                Route { shown: false, kept: true } => 'k',
                Route { shown: false, kept: false } => '-',
            })
            .iter()
            .collect::<String>()
    });
    workers.collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn refused(line: &[&str], workers: usize, home: Home, says: &str) {
    let error = routing(line, workers, home).unwrap_err().to_string();
    assert!(error.contains(says), "{error}");
}

#[test]
fn without_flags_everything_is_shown_and_kept_where_there_is_a_place() {
    assert_eq!(picture(&[], 2, Home::Recipe), "bb bb");
    assert_eq!(picture(&[], 2, Home::RunDir), "bb bb");
    assert_eq!(picture(&["--log-dir", "no/such"], 1, Home::Nowhere), "bb");
    assert_eq!(picture(&[], 2, Home::Nowhere), "ss ss");
}

#[test]
fn redirects_and_tee_mean_what_they_mean_to_torchrun() {
    for (line, expected) in [
        (&["-r", "3"][..], "kk kk"),
        (&["-r", "1"], "ks ks"),
        (&["-r", "0"], "ss ss"),
        (&["-t", "3"], "bb bb"),
        (&["-t", "2"], "sb sb"),
        (&["--tee", "1:1"], "ss bs"),
        (&["-r", "3", "-t", "1"], "bk bk"),
        (&["-r", "0:3,1:2", "-t", "1:3"], "kk bb"),
        (&["--redirects", "3", "--tee", "0:3"], "bb kk"),
    ] {
        assert_eq!(picture(line, 2, Home::RunDir), expected, "{line:?}");
    }
}

#[test]
fn the_filter_is_for_the_screen_alone() {
    assert_eq!(picture(&["--local-ranks-filter", "1"], 2, Home::RunDir), "kk bb");
    assert_eq!(picture(&["--local-ranks-filter", "0"], 2, Home::Nowhere), "ss --");
    assert_eq!(picture(&["--local-ranks-filter", "0,1", "-r", "1:3"], 3, Home::Recipe), "ss kk --");
}

#[test]
fn prefixes() {
    let prefix = |line: &[&str], workers: usize| {
        let routing = routing(line, workers, Home::Nowhere).unwrap();
        routing.prefixes[workers - 1].clone()
    };
    assert_eq!(prefix(&[], 1), "");
    assert_eq!(prefix(&[], 2), "[rank 1] ");
    let template = "[${role_name}${local_rank}|${rank}@${hostname}]: ";
    assert_eq!(prefix(&["--log-line-prefix-template", template], 1), "[trainer0|0@node-a]: ");
    assert_eq!(prefix(&["--log-line-prefix-template", "-$rank "], 3), "-2 ");
    assert_eq!(prefix(&["--log-line-prefix-template="], 3), "");
}

#[test]
fn workers_of_another_node_have_the_ranks_of_all_nodes() {
    let mut routing = routing(&[], 2, Home::Nowhere).unwrap();
    routing.place(Placement { group_rank: 1, group_world_size: 2, first_rank: 3, world_size: 5 });
    assert_eq!(routing.prefixes, ["[rank 3] ", "[rank 4] "]);
    let mut lone = self::routing(&[], 1, Home::Nowhere).unwrap();
    lone.place(Placement { group_rank: 1, group_world_size: 2, first_rank: 1, world_size: 2 });
    assert_eq!(lone.prefixes, ["[rank 1] "], "the outputs of the nodes may come together");
}

#[test]
fn the_flag_comes_before_the_variable() {
    let inherited = PrefixTemplate::new("<${rank}>").unwrap();
    let labels = Labels { role: "trainer".into(), hostname: "node-a".into(), template: Some(inherited) };
    let of = |line: &[&str]| {
        let routing = Routing::of(&flags(line), 1, Home::Nowhere, labels.clone());
        routing.unwrap().prefixes[0].clone()
    };
    assert_eq!(of(&[]), "<0>");
    assert_eq!(of(&["--log-line-prefix-template", "$hostname"]), "node-a");
}

#[test]
fn log_flags_without_log_files_are_errors() {
    refused(
        &["--duplicate-stdout-filters", "x"],
        1,
        Home::Nowhere,
        "--duplicate-stdout-filters writes a file",
    );
    refused(&["--log-max-size", "1 MiB"], 1, Home::Nowhere, "no log files are kept");
    refused(&["--log-max-size", "1 MiB", "-r", "0"], 1, Home::RunDir, "no log files are kept");
    let note = routing(&["-t", "3"], 1, Home::Nowhere).unwrap().note.unwrap();
    assert!(note.starts_with("--tee: the output is shown but not logged"));
    assert_eq!(routing(&["-t", "3"], 1, Home::RunDir).unwrap().note, None);
}

#[test]
fn output_that_would_only_be_kept_gets_a_temporary_folder() {
    let mut routing = routing(&["-r", "1:2"], 2, Home::Nowhere).unwrap();
    assert_eq!(routing.log_dir, None, "nothing is made before every check");
    routing.make_folder().unwrap();
    let folder = routing.log_dir.clone().unwrap();
    let mode = std::fs::metadata(&folder).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    std::fs::remove_dir(folder).unwrap();
    assert_eq!(
        picture(&["-r", "3", "-t", "1"], 1, Home::Nowhere),
        picture(&["-r", "3", "-t", "1"], 1, Home::RunDir)
    );
}

#[test]
fn one_folder_for_logs_is_enough() {
    let line = ["--log-dir", "logs"];
    refused(&line, 1, Home::RunDir, "leave out --log-dir logs");
    refused(&line, 1, Home::Recipe, "--log-dir is for programs");
    assert_eq!(routing(&line, 1, Home::Nowhere).unwrap().log_dir.as_deref(), Some(Path::new("logs")));
}

#[test]
fn ranks_that_are_not_there_are_refused() {
    for (flag, value) in [("--redirects", "0:1,2:1"), ("--tee", "2:0"), ("--local-ranks-filter", "1,2")] {
        refused(
            &[flag, value],
            2,
            Home::RunDir,
            &format!("{flag}: there is no local rank 2; the 2 workers are 0 to 1"),
        );
    }
    refused(&["-t", "1:1"], 1, Home::RunDir, "there is no local rank 1; the only worker is 0");
}

#[test]
fn flags_that_would_have_no_effect_are_refused() {
    let hidden = ["-r", "3", "--local-ranks-filter", "0"];
    refused(&hidden, 2, Home::RunDir, "--local-ranks-filter has no effect");
    let hidden = ["-r", "3", "--log-line-prefix-template", "x"];
    refused(&hidden, 2, Home::RunDir, "--log-line-prefix-template has no effect");
    let hidden = ["-r", "2", "--duplicate-stderr-filters", "x"];
    refused(&hidden, 2, Home::RunDir, "--duplicate-stderr-filters has no effect");
}

#[test]
fn sizes_and_filters_are_handed_on() {
    let given =
        routing(&["--duplicate-stdout-filters", "a,b", "--log-max-size", "0"], 1, Home::RunDir).unwrap();
    assert_eq!(given.filters[0], ["a", "b"]);
    assert!(given.filters[1].is_empty());
    assert_eq!(given.log_size, u64::MAX);
    assert_eq!(routing(&[], 1, Home::RunDir).unwrap().log_size, USUAL_LOG);
}

#[test]
fn streams_come_through_one_channel_where_they_go_to_one_place_and_nothing_needs_them_apart() {
    let pipes = Wiring::Apart([Channel::Pipe; 2]);
    let to = |are_one, terminals| Sinks { are_one, terminals };
    let (file, terminal) = (to(true, [false; 2]), to(true, [true; 2]));
    for (line, workers, home, sinks, is_named, expected) in [
        (&[][..], 1, Home::Nowhere, file, false, Wiring::Together(Channel::Pipe)),
        (&[], 2, Home::Nowhere, file, false, Wiring::Together(Channel::Pipe)),
        (&[], 1, Home::Nowhere, terminal, false, Wiring::Together(Channel::Pty)),
        (&[], 2, Home::Nowhere, terminal, false, Wiring::Together(Channel::Pipe)),
        (&[], 2, Home::Nowhere, terminal, true, Wiring::Together(Channel::Pty)),
        (
            &["--log-line-prefix-template", "x "],
            1,
            Home::Nowhere,
            terminal,
            false,
            Wiring::Together(Channel::Pipe),
        ),
        (&["-r", "0"], 1, Home::RunDir, file, false, Wiring::Together(Channel::Pipe)),
        (&[], 1, Home::RunDir, file, false, pipes),
        (&[], 1, Home::RunDir, terminal, false, pipes),
        (&["-t", "1"], 1, Home::RunDir, terminal, false, pipes),
        (&["-r", "2"], 1, Home::Nowhere, file, false, pipes),
        (&["-r", "0", "--duplicate-stdout-filters", "x"], 1, Home::RunDir, file, false, pipes),
        (&[], 1, Home::Nowhere, to(false, [false; 2]), false, pipes),
        (
            &[],
            1,
            Home::Nowhere,
            to(false, [true, false]),
            false,
            Wiring::Apart([Channel::Pty, Channel::Pipe]),
        ),
        (
            &[],
            1,
            Home::Nowhere,
            to(false, [false, true]),
            false,
            Wiring::Apart([Channel::Pipe, Channel::Pty]),
        ),
        (&[], 2, Home::Nowhere, to(false, [true, false]), false, pipes),
    ] {
        let routing = routing(line, workers, home).unwrap();
        assert_eq!(routing.wiring(0, sinks, is_named), expected, "{line:?}, {workers} workers, {sinks:?}");
    }
}

#[test]
fn the_only_workers_bytes_are_shown_as_they_come_unless_two_streams_meet() {
    let file = Sinks { are_one: true, terminals: [false; 2] };
    let styles = |line: &[&str], home, sinks| {
        let routing = routing(line, 1, home).unwrap();
        let wiring = routing.wiring(0, sinks, false);
        Stream::BOTH.map(|stream| routing.style(0, stream, sinks, wiring))
    };
    let whole = Style::Whole { line_timeout: ELSEWHERE };
    assert_eq!(styles(&[], Home::Nowhere, file), [Style::Raw; 2]);
    assert_eq!(styles(&[], Home::RunDir, file), [whole; 2]);
    assert_eq!(styles(&["-r", "1"], Home::RunDir, file), [Style::Hidden, Style::Raw]);
    assert_eq!(styles(&[], Home::RunDir, Sinks { are_one: false, ..file }), [Style::Raw; 2]);
    let terminal = Sinks { are_one: true, terminals: [true; 2] };
    assert_eq!(styles(&[], Home::Nowhere, terminal), [Style::Raw; 2]);
    assert!(matches!(styles(&[], Home::RunDir, terminal), [Style::Lines { .. }, Style::Lines { .. }]));
}

proptest! {
    #[test]
    fn no_output_is_lost_unless_a_rank_is_hidden(
        redirects in prop::option::of("[0-3]|0:[0-3]|0:[0-3],1:[0-3]"),
        tee in prop::option::of("[0-3]|1:[0-3]"),
    ) {
        let mut line = Vec::new();
        for (flag, value) in [("-r", &redirects), ("-t", &tee)] {
            line.extend(value.iter().flat_map(|value| [flag, value.as_str()]));
        }
        let kept_somewhere = picture(&line, 2, Home::RunDir);
        prop_assert!(!kept_somewhere.contains('-'), "{kept_somewhere}");
        if let Ok(routing) = routing(&line, 2, Home::Nowhere) {
            let routes = routing.routes.iter().flatten();
            // Output that is not shown gets a temporary folder.
            prop_assert!(routes.into_iter().all(|route| route.shown || (route.kept && routing.temporary)));
        }
    }
}
