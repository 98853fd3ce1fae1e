//! Lines on standard error: JSON objects, colours, and warnings that are shown once.

use crate::harness::{Scene, words};
use crate::pty::Pty;
use serde_json::Value;
use std::process::Command;

/// Writes as dtrain's trainer and as a library in it, and fails on rank 1.
const FAILS: &str = r#"
    echo "{\"time\":\"2026-01-02T03:04:05.678Z\",\"level\":\"info\",\"rank\":$RANK,\"message\":\"step 1\",\"fields\":{\"step\":1}}" >&2
    printf 'a library: \033[31m"quoted"\033[0m \377\n' >&2
    echo data
    printf 'no end' >&2
    [ $RANK = 1 ] && { sleep 0.3; exit 7; }
    exec sleep 600"#;

fn launch(scene: &Scene, line: &str, worker: &str) -> Command {
    let mut command = scene.command(&words(line));
    command.env("FAKE_WORKER", worker).env("TERM", "xterm");
    command
}

/// Parses every line strictly.
#[track_caller]
fn objects(text: &str) -> Vec<Value> {
    let object = |line: &str| match serde_json::from_str::<Value>(line) {
        Ok(value) => {
            let [time, level, message] =
                ["time", "level", "message"].map(|key| value[key].as_str().unwrap_or_default());
            assert!(time.len() == 24 && time.ends_with('Z'), "{line}");
            assert!(["info", "warn", "error"].contains(&level) && !message.is_empty(), "{line}");
            value
        }
        Err(error) => panic!("{error}: {line:?}"),
    };
    text.lines().map(object).collect()
}

#[test]
fn every_line_of_two_ranks_and_a_failure_is_an_object() {
    let scene = Scene::new();
    let command = launch(&scene, "--nproc 2 --log-format json demo --run-dir run", FAILS);
    let done = scene.start(command).wait();
    let objects = objects(&done.expect_code(4).stderr);
    let of = |rank: usize, message: &str| {
        objects
            .iter()
            .filter(|object| object["rank"] == rank && object["message"] == message)
            .collect::<Vec<_>>()
    };
    for rank in 0..2 {
        let own = of(rank, "step 1");
        assert!(own.len() == 1 && own[0]["fields"]["step"] == 1 && own[0].get("stream").is_none(), "{own:?}");
        assert_eq!(of(rank, "a library: \u{1b}[31m\"quoted\"\u{1b}[0m \u{fffd}")[0]["stream"], "stderr");
        assert_eq!(of(rank, "no end").len(), 1);
    }
    let last = objects.last().unwrap();
    assert_eq!((&last["level"], &last["fields"]["exit_code"]), (&"error".into(), &4.into()));
    assert_eq!(last["fields"]["failure"]["rank"], 1);
    assert!(!last["message"].as_str().unwrap().contains("dtrain: "), "{last}");
    // The data of a trainer stays as it is, and so do the logs.
    assert_eq!(done.stdout().matches("data\n").count(), 2);
    assert!(!done.stdout().contains('{'));
    assert!(scene.read("run/logs/attempt_0/rank_0/stdout.log") == "data\n");
}

#[test]
fn the_lines_of_a_program_have_rank_and_stream() {
    let scene = Scene::new();
    let script = r"echo one; printf '10%%\r20%%\r' >&2; echo two >&2; printf three";
    for nproc in [1, 2] {
        let done = scene.sh(nproc, &["--log-format=json"], script);
        let lines = objects(&done.expect_code(0).stdout());
        assert_eq!(lines.len(), 2 * nproc);
        assert!(lines.iter().all(|line| line["stream"] == "stdout" && line["rank"].is_number()), "{lines:?}");
        let errors = objects(&done.stderr);
        assert!(
            errors.iter().any(|line| line["message"] == "two" && line["stream"] == "stderr"),
            "{errors:?}"
        );
    }
}

#[test]
fn errors_before_a_start_are_objects_too() {
    for line in [
        "--log-format json no-such-recipe",
        "--log-format=json --nproc 0 demo",
        "--log-format json demo --bogus",
    ] {
        let done = Scene::new().launch(&words(line));
        let objects = objects(&done.expect_code(2).stderr);
        assert!(objects.len() == 1 && objects[0]["level"] == "error", "{objects:?}");
    }
    Scene::new().launch(&words("--log-format xml demo")).expect_code(2).expect_stderr("give text or json");
}

#[test]
fn colours_are_on_terminals_and_never_in_files_and_pipes() {
    const NONE: (&str, &str) = ("TERM", "xterm");
    let worker = "echo 'warning: slow disk' >&2; [ $RANK = 0 ] && exit 3; exec sleep 600";
    let line = "--nproc 2 demo --run-dir run";
    let shown = |(name, value): (&str, &str), line: &str| {
        let (scene, pty) = (Scene::new(), Pty::new(200));
        let mut command = launch(&scene, line, worker);
        // `CI` stands for a terminal with colours, whatever `TERM` says.
        for unset in ["NO_COLOR", "CI", "CLICOLOR", "CLICOLOR_FORCE"] {
            command.env_remove(unset);
        }
        command.env(name, value);
        pty.attach(&mut command);
        let (shown, code) = pty.run(command);
        assert_eq!(code, Some(3));
        let log = scene.read("run/logs/attempt_0/rank_0/stderr.log");
        assert_eq!(log, "warning: slow disk\n", "no colours of the launcher");
        String::from_utf8(shown).unwrap()
    };
    let coloured = shown(NONE, line);
    for part in [
        "\x1b[2m[rank ",
        "\x1b[1m\x1b[33mwarning:\x1b[0m slow disk",
        "\x1b[2mdtrain:\x1b[0m \x1b[1m\x1b[31mrank 0",
    ] {
        assert!(coloured.contains(part), "{part:?} is missing in {coloured:?}");
    }
    for plain in [
        shown(("NO_COLOR", "1"), line),
        shown(("TERM", "dumb"), line),
        shown(NONE, &format!("--color never {line}")),
    ] {
        assert!(!plain.contains('\x1b'), "{plain:?}");
    }
    let piped = |line: &str| {
        let scene = Scene::new();
        let mut command = launch(&scene, line, worker);
        command.env_remove("NO_COLOR");
        scene.start(command).wait().stderr
    };
    assert!(!piped(line).contains('\x1b'));
    assert!(piped(&format!("--color=always {line}")).contains("\x1b[2m[rank "));
}

#[test]
fn a_warning_is_shown_once_for_all_ranks_and_restarts() {
    for format in ["text", "json"] {
        let scene = Scene::new();
        let worker = r#"echo 'warning: slow disk' >&2; echo "step $TORCHELASTIC_RESTART_COUNT" >&2
            [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ] && { sleep 0.3; exit 9; }
            [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; exec sleep 600"#;
        let worker = match format {
            "text" => worker.to_owned(),
            _ => worker.replace(
                "echo 'warning: slow disk'",
                r#"echo '{"time":"2026-01-02T03:04:05.678Z","level":"warn","rank":0,"message":"slow disk"}'"#,
            ),
        };
        let line = format!("--nproc 2 --max-restarts 1 --log-format {format} demo --run-dir run");
        let done = scene.start(launch(&scene, &line, &worker)).wait();
        let stderr = &done.expect_code(0).stderr;
        let is_warning = |line: &&str| {
            line.ends_with("warning: slow disk") || line.contains("\"level\":\"warn\",\"rank\"")
        };
        assert_eq!(stderr.lines().filter(is_warning).count(), 1, "{stderr}");
        let quote = if format == "text" { "\"" } else { "\\\"" };
        assert_eq!(stderr.matches(&format!("4 times {quote}slow disk{quote}")).count(), 1, "{stderr}");
        assert_eq!(stderr.matches("step ").count() - stderr.matches("first step ").count(), 4, "{stderr}");
        for (attempt, rank) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let log = scene.read(&format!("run/logs/attempt_{attempt}/rank_{rank}/stderr.log"));
            assert!(log.contains("slow disk"), "the log has every byte");
        }
    }
}
