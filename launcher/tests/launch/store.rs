//! The store that the launcher serves to PyTorch's programs.

use crate::harness::{Finished, Scene};
use dtrain_test_kit::need;
use std::fs;
use std::path::Path;

/// Rank 0 leaves the group and ends; rank 1 uses the store after that.
const LEAVE: &str = r#"
import fcntl, os, sys
import torch.distributed as dist

assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
lock = open("lock", "w")
if dist.get_rank() == 0:
    # The system gives the lock back when the process has ended.
    fcntl.flock(lock, fcntl.LOCK_EX)
    store.set("locked", "")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)
store.wait(["locked"])
dist.barrier()
dist.destroy_process_group()
fcntl.flock(lock, fcntl.LOCK_EX)
store.set("late", "words")
print("rank 1 has", store.get("late").decode(), store.add("number", 7))
"#;

/// The first attempt meets and fails; the second meets again, in an empty store.
const AGAIN: &str = r#"
import os, sys
import torch, torch.distributed as dist

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
one = torch.ones(1)
dist.all_reduce(one)
known = store.check(["mark"])
dist.barrier()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    store.set("mark", "")
    sys.exit(9)
print("sum", int(one), "known", known)
dist.destroy_process_group()
"#;

/// Sends every request to PyTorch's own server and to the launcher's.
const ASK: &str = r#"
import os, sys, threading
from datetime import timedelta
from torch.distributed import TCPStore

def ask(port):
    results = []
    connect = lambda: TCPStore("127.0.0.1", port, timeout=timedelta(seconds=30))
    store, other = connect(), connect()

    def note(act):
        try:
            results.append(act())
        except Exception as error:
            results.append(type(error).__name__)

    def meanwhile(act, then):
        thread = threading.Thread(target=lambda: note(act))
        thread.start()
        note(then)
        thread.join()

    short = timedelta(milliseconds=20)
    acts = [
        lambda: store.set("key", "value"),
        lambda: other.get("key"),
        lambda: store.set("key", b"\x00\xff" * 300000),
        lambda: hash(other.get("key")) == hash(b"\x00\xff" * 300000),
        lambda: store.set("", ""),
        lambda: store.get(""),
        lambda: store.add("number", 5),
        lambda: other.add("number", -7),
        lambda: other.get("number"),
        lambda: store.set("text", "12 x"),
        lambda: store.add("text", 1),
        lambda: store.compare_set("number", "1", "2"),
        lambda: store.compare_set("number", "-2", "2"),
        lambda: store.compare_set("none", "expected", "new"),
        lambda: store.check(["none"]),
        lambda: store.compare_set("none", "", "new"),
        lambda: store.check(["none", "number"]),
        lambda: store.check(["none", "missing"]),
        lambda: store.num_keys(),
        lambda: store.delete_key("none"),
        lambda: store.delete_key("none"),
        lambda: store.num_keys(),
        lambda: store.append("list", "a"),
        lambda: other.append("list", "bc"),
        lambda: store.get("list"),
        lambda: store.multi_set(["m1", "m2", "m3"], ["1", "", "three"]),
        lambda: other.multi_get(["m3", "m2", "m1", "m3"]),
        lambda: store.multi_get([]),
        lambda: store.wait(["m1", "m2"]),
        lambda: store.wait(["never", "m1"], short),
        lambda: store.get("m1"),
        lambda: store.queue_len("queue"),
        lambda: store.queue_pop("queue", block=False),
        lambda: store.queue_push("queue", "first"),
        lambda: other.queue_push("queue", "second"),
        lambda: store.check(["queue"]),
        lambda: store.wait(["queue", "m1"]),
        lambda: store.queue_len("queue"),
        lambda: store.queue_pop("queue"),
        lambda: store.queue_pop("queue", block=False),
        lambda: store.check(["queue"]),
        lambda: store.num_keys(),
        lambda: sorted(store.list_keys()),
        lambda: store.clone().get("m3"),
        lambda: store.has_extended_api(),
    ]
    # No answer comes to set, append and push: a question behind them is answered when they are done.
    for act in acts:
        note(act)
        store.num_keys(), other.num_keys()
    # The order in which two threads are done is none of the server's.
    waits = len(results)
    meanwhile(lambda: other.wait(["late", "later"]), lambda: store.multi_set(["late", "later"], ["", ""]))
    meanwhile(lambda: other.get("counted"), lambda: store.add("counted", 1))
    meanwhile(lambda: other.queue_pop("queue"), lambda: store.queue_push("queue", "third"))
    results[waits:] = sorted(map(str, results[waits:]))
    # At which call a client sees that it was disconnected is none of the server's.
    def is_refused(*acts):
        try:
            client = connect()
            for act in acts:
                act(client)
        except Exception as error:
            return type(error).__name__
    note(lambda: is_refused(lambda bad: bad.set("long", b"x" * (8 * 1024 * 1024 + 1)), lambda bad: bad.get("key")))
    note(lambda: is_refused(lambda bad: bad.set("k" * 9000, ""), lambda bad: bad.get("key")))
    note(lambda: is_refused(lambda bad: bad.set("words", "none"), lambda bad: bad.add("words", 1)))
    note(lambda: store.check(["long"]))
    return results

if os.environ["RANK"] == "0":
    own = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    theirs, ours = ask(own.port), ask(int(os.environ["MASTER_PORT"]))
    for number, pair in enumerate(zip(theirs, ours)):
        assert pair[0] == pair[1], (number, *pair)
    print("same", len(theirs), len(ours))
"#;

fn launch(python: &Path, script: &str, flags: &[&str], env: &[(&str, &str)]) -> Finished {
    let scene = Scene::new();
    fs::write(scene.path("script.py"), script).unwrap();
    let python = python.to_str().unwrap();
    let words = [flags, &["--nproc", "2", "--", python, "script.py"]].concat();
    let mut command = scene.command(&words);
    command.envs([("OMP_NUM_THREADS", "1"), ("GLOO_SOCKET_IFNAME", "lo")]);
    command.envs(env.iter().copied());
    scene.start(command).wait()
}

#[test]
fn the_store_outlives_rank_0() {
    let Ok(python) = need::pytorch() else { return };
    let done = launch(&python, LEAVE, &[], &[]);
    done.expect_code(0);
    assert!(done.stdout().contains("rank 1 has words 7"), "{}", done.stdout());
}

#[test]
fn a_restarted_group_meets_again_in_an_empty_store() {
    let Ok(python) = need::pytorch() else { return };
    let done = launch(&python, AGAIN, &["--max-restarts", "1"], &[]);
    done.expect_code(0);
    let met = done.stdout().matches("sum 2 known False").count();
    assert_eq!(met, 2, "{}", done.stdout());
}

#[test]
fn pytorchs_client_gets_the_same_answers_as_of_its_own_server() {
    let Ok(python) = need::pytorch() else { return };
    let done = launch(&python, ASK, &[], &[]);
    done.expect_code(0);
    assert!(done.stdout().contains("same 55 55"), "{}", done.stdout());
}
