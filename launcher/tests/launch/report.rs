//! `dtrain report` of a program, and the live page beside a real launch.

use crate::harness::{Finished, Scene};
use rustix::process::Signal;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

const WAITS: &str = "touch $TEST_DIR/ready.$RANK; while [ ! -e $TEST_DIR/go ]; do sleep 0.01; done; exit 9";

fn command(scene: &Scene, args: &[&str]) -> Command {
    scene.adapt(Command::new(env!("CARGO_BIN_EXE_dtrain")), &["report"]).into_command(args)
}

#[track_caller]
fn report(scene: &Scene, args: &[&str]) -> Finished {
    let output = command(scene, args).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    Finished { code: output.status.code(), stdout: output.stdout, stderr }
}

fn launch(scene: &Scene) -> Command {
    scene.command(&["--nproc", "1", "--run-dir", "runs/a", "--", "sh", "-c", WAITS])
}

/// Sends a request and returns the whole answer.
fn ask(port: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_live_page_answers_loopback_alone_and_tells_the_end_of_the_run() {
    let scene = Scene::new();
    let run = scene.start(launch(&scene));
    scene.wait_for_ready(1);
    let page = scene.start_as("page", command(&scene, &["runs/a", "--live", "--port", "0"]));
    page.wait_for_stdout("Ctrl-C ends the page; the runs continue.\n");
    let printed = page.stdout();
    let port = printed.strip_prefix("http://127.0.0.1:").unwrap().split_once("/\n").unwrap().0;
    assert!(printed.contains(&format!("ssh -L {port}:localhost:{port} ")), "{printed}");
    let get = |path: &str, host: &str| ask(port, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    let shown = get("/", &format!("localhost:{port}"));
    assert!(shown.starts_with("HTTP/1.1 200 OK\r\n") && shown.contains("<!-- a report of dtrain -->"));
    let data = get("/data.json", "127.0.0.1:9");
    assert!(data.contains(r#""state":"running""#) && data.contains("The run has no metrics"), "{data}");
    assert!(get("/data.json", "evil.example").starts_with("HTTP/1.1 403 "));
    assert!(get("/../runs", "localhost").starts_with("HTTP/1.1 404 "));
    assert!(ask(port, "POST / HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with("HTTP/1.1 405 "));
    let taken = report(&scene, &["runs/a", "--live", "--port", port]);
    taken
        .expect_code(2)
        .expect_stderr(&format!("port {port} is in use; give another with --port N, or --port 0"));
    fs::write(scene.path("go"), "").unwrap();
    run.wait_leaving_processes().expect_code(9);
    page.wait_for_stdout("No run is running any more (failed). The page stays until Ctrl-C.\n");
    assert!(get("/data.json", "localhost").contains(r#""exit_code":9"#));
    page.signal(Signal::INT);
    assert_eq!(page.wait().expect_code(0).stderr, "");
}

#[test]
fn a_report_of_a_program_is_a_file_in_its_run_directory() {
    let scene = Scene::new();
    fs::write(scene.path("go"), "").unwrap();
    scene.start(launch(&scene)).wait().expect_code(9);
    let done = report(&scene, &["runs/a"]);
    assert!(done.expect_code(0).stdout().starts_with("runs/a/report.html ("), "{}", done.stdout());
    let page = scene.read("runs/a/report.html");
    assert!(page.contains("rank 0 failed: exit code 9"), "{page}");
    report(&scene, &["runs"])
        .expect_code(2)
        .expect_stderr("not a run directory, but holds some; name one, such as runs/a");
    report(&scene, &["runs/a", "--port", "80"]).expect_code(2).expect_stderr("--live");
    report(&scene, &["runs/a", "--live", "-o", "x.html"]).expect_code(2).expect_stderr("cannot be used with");
}
