//! Scripts written for torchrun, without knowledge of dtrain.

use crate::harness::{Finished, Scene};
use dtrain_test_kit::need;
use std::fs;
use std::path::Path;

/// Meets its peers at MASTER_ADDR and MASTER_PORT, like torch.distributed, and sums a number over all.
const MEET: &str = r#"
import argparse, json, os, socket, time

parser = argparse.ArgumentParser()
parser.add_argument("--number", type=int, required=True)
number = parser.parse_args().number
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
own = number * (rank + 1)

def connect():
    end = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(place)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)

if rank == 0:
    peers = []
    with socket.create_server(place) as server:
        for _ in range(world - 1):
            peers.append(server.accept()[0])
    total = own + sum(int(peer.makefile().readline()) for peer in peers)
    for peer in peers:
        peer.sendall(f"{total}\n".encode())
else:
    with connect() as peer:
        peer.sendall(f"{own}\n".encode())
        total = int(peer.makefile().readline())
print(json.dumps({"rank": rank, "total": total}))
"#;

/// Rank 1 fails as Python programs do; the others would wait for ever.
const RAISE: &str = r#"
import os, signal
if os.environ["RANK"] == "1":
    raise ValueError("no data for rank 1")
signal.pause()
"#;

/// Returns the JSON objects that the workers printed, in the order of their ranks.
fn answers(done: &Finished) -> Vec<serde_json::Value> {
    let stdout = done.stdout();
    let objects = stdout.lines().filter_map(|line| line.find('{').map(|start| &line[start..]));
    let mut answers: Vec<serde_json::Value> =
        objects.map(|object| serde_json::from_str(object).unwrap()).collect();
    answers.sort_by_key(|answer| answer["rank"].as_u64());
    answers
}

#[test]
fn a_script_meets_its_peers_where_the_variables_say() {
    for world in [1, 2, 3] {
        let scene = Scene::new();
        fs::write(scene.path("meet.py"), MEET).unwrap();
        let nproc = world.to_string();
        let done = scene.launch(&["--nproc", &nproc, "--", "python3", "meet.py", "--number", "10"]);
        done.expect_code(0);
        if world > 1 {
            done.expect_stderr(
                "starting again without the store; to avoid this, set TORCHELASTIC_USE_AGENT_STORE=False",
            );
        }
        let total = 10 * (1..=world).sum::<u64>();
        let expected: Vec<_> =
            (0..world).map(|rank| serde_json::json!({"rank": rank, "total": total})).collect();
        assert_eq!(answers(&done), expected);
    }
}

#[test]
fn rank_0_has_the_port_where_the_user_says_so() {
    let scene = Scene::new();
    fs::write(scene.path("meet.py"), MEET).unwrap();
    let mut command = scene.command(&["--nproc", "2", "--", "python3", "meet.py", "--number", "10"]);
    command.env("TORCHELASTIC_USE_AGENT_STORE", "False");
    let done = scene.start(command).wait();
    done.expect_code(0);
    assert!(!done.stderr.contains("starting again"), "{}", done.stderr);
}

#[test]
fn a_rank_that_raises_ends_all_and_its_exception_is_shown() {
    let scene = Scene::new();
    fs::write(scene.path("raise.py"), RAISE).unwrap();
    scene
        .launch(&["--nproc", "3", "--", "python3", "raise.py"])
        .expect_code(1)
        .expect_stderr("rank 1")
        .expect_stderr("ValueError: no data for rank 1");
}

#[test]
fn distributed_data_parallel_trains_unchanged() {
    let Ok(python) = need::pytorch() else { return };
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/bench");
    let script = scripts.join("ddp_script.py");
    let python = python.to_str().unwrap();
    let ways = [vec![python, script.to_str().unwrap()], vec![python, "-m", "ddp_script"]];
    let results = ways.map(|way| {
        let scene = Scene::new();
        let words = [&["--nproc", "2", "--"], way.as_slice(), &["--steps", "7"]].concat();
        let mut command = scene.command(&words);
        command
            .env("OMP_NUM_THREADS", "1")
            .env("GLOO_SOCKET_IFNAME", "lo")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PYTHONPATH", &scripts);
        let done = scene.start(command).wait();
        done.expect_code(0);
        answers(&done)
    });
    let [one, other] = &results;
    assert_eq!(one.len(), 2, "{one:?}");
    for (rank, answer) in one.iter().enumerate() {
        assert_eq!((&answer["rank"], &answer["world"]), (&rank.into(), &2.into()), "{answer}");
        assert_eq!(answer["steps"], 7, "{answer}");
        assert!(answer["loss"].as_f64().is_some_and(|loss| loss > 0.0), "{answer}");
    }
    // Each rank has other samples, but all have the same model.
    assert_ne!(one[0]["loss"], one[1]["loss"]);
    assert_eq!(one[0]["parameters"], one[1]["parameters"]);
    assert_eq!(one, other);
}
