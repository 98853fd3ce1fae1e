//! Planted bugs: each is found, and the same program without the bug is silent.

use std::process::Command;

use crate::{Ended, Scene};

/// Runs a program with its bug and without it, on streams that run behind the host.
fn both(name: &str, change: impl Fn(&mut Command)) -> [Ended; 2] {
    ["bug", "right"].map(|which| {
        let scene = Scene::new();
        let mut command = scene.command("planted");
        command.args([name, which]).env("FAKE_GPU_COUNT", "2").env("FAKE_GPU_CHECK", "1");
        // Longer than a busy machine stops a program.
        command.env("FAKE_GPU_KERNEL_NS", "200000000");
        change(&mut command);
        let ended = scene.run(&mut command);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended
    })
}

/// Asserts that the bug is reported in these words, and nothing else is.
fn is_reported(name: &str, words: &str) {
    let [bug, right] = both(name, |_| {});
    assert!(bug.err.contains(words), "{bug:?}");
    assert_eq!(right.err, "", "{right:?}");
}

#[test]
fn missing_wait_for_a_copy() {
    is_reported("missing-wait", "race: _Z3addPfPKf on stream");
    // By order, not by luck: also if the streams never ran behind.
    let [bug, right] = both("missing-wait", |command| {
        command.env_remove("FAKE_GPU_KERNEL_NS");
    });
    assert_eq!((bug.count("races"), right.count("races")), (1, 0));
}

#[test]
fn memory_freed_on_another_stream() {
    is_reported("freed-on-another-stream", "race: cudaFreeAsync on stream");
}

#[test]
fn pinned_memory_changed_before_its_copy() {
    is_reported("changed-too-early", "changed before they were copied");
}

#[test]
fn memory_read_before_its_copy() {
    let [bug, right] = both("read-too-early", |_| {});
    assert_eq!((&bug.out[..], &right.out[..]), ("read=238\n", "read=7\n"));
}

#[test]
fn collectives_in_another_order() {
    let pair = |which: &str| {
        let scene = Scene::new();
        let mut ranks = [0, 1].map(|rank| {
            let mut command = scene.command("planted");
            command.args(["order-of-collectives", which]).env("FAKE_GPU_COUNT", "2");
            command.env("RANK", rank.to_string()).env("ID", "planted");
            command
        });
        std::thread::scope(|threads| {
            let [first, second] = &mut ranks;
            let other = threads.spawn(|| scene.run(first));
            [scene.run(second), other.join().unwrap()]
        })
    };
    for ended in pair("bug") {
        assert!(ended.out.contains("error=5 ranks do different collectives: rank"), "{ended:?}");
        assert!(
            ended.out.contains("Broadcast of 1 elements") && ended.out.contains("AllReduce of 1"),
            "{ended:?}"
        );
    }
    for ended in pair("right") {
        assert!(ended.out.ends_with("sum=2\n") || ended.out.ends_with("sum=3\n"), "{ended:?}");
    }
}

#[test]
fn dead_rank_is_reported_to_the_others() {
    let scene = Scene::new();
    let rank = |rank: &str| {
        let mut command = scene.command("planted");
        command.args(["order-of-collectives", "right"]).env("FAKE_GPU_COUNT", "2").env("RANK", rank);
        command.env("ID", "dead").env("FAKE_GPU_NCCL_DEAD", "error").env("FAKE_GPU_FAULT", "nccl:2:hang:1");
        command
    };
    let mut dead = rank("1").stdout(std::process::Stdio::null()).spawn().unwrap();
    std::thread::scope(|threads| {
        let other = threads.spawn(|| scene.run(&mut rank("0")));
        std::thread::sleep(std::time::Duration::from_millis(600));
        dead.kill().unwrap();
        let ended = other.join().unwrap();
        assert!(ended.out.contains("error=6 peer 1 has closed its connection"), "{ended:?}");
    });
    dead.wait().unwrap();
    let mut alone = rank("0");
    let ended = scene.run(alone.env("FAKE_GPU_FAULT", "ncclCommInitRank:1:2"));
    assert!(
        ended.code == Some(1) && ended.out.contains("ncclCommInitRank(&comm, 2, id, rank): 2"),
        "{ended:?}"
    );
}

#[test]
fn host_wait_inside_a_capture() {
    let [bug, right] = both("host-wait-in-a-capture", |_| {});
    assert_eq!((&bug.out[..], &right.out[..]), ("wait=900\nend=901\n", "end=0\n"));
    assert_eq!(bug.counts["calls"]["[forbidden in a capture]"], 1);
}

#[test]
fn context_on_gpu_0_by_every_rank() {
    let [bug, right] = both("context-on-gpu-0", |command| {
        command.env("RANK", "1");
    });
    assert_eq!(bug.counts["contexts"], serde_json::json!([1, 1]));
    assert_eq!(right.counts["contexts"], serde_json::json!([0, 1]));
}

#[test]
fn leak_of_a_mebibyte_a_step() {
    let growth = |ended: &Ended| {
        let steps = ended.counts["steps"].as_array().unwrap();
        let memory: Vec<u64> = steps.iter().map(|step| step["memory"].as_u64().unwrap()).collect();
        memory.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>()
    };
    let [bug, right] = both("leak", |command| {
        command.env_remove("FAKE_GPU_KERNEL_NS");
    });
    // The smallest piece of a GPU's memory is 2 MiB.
    assert_eq!(growth(&bug), [2 << 20; 5]);
    assert_eq!(growth(&right), [0; 5]);
}

#[test]
fn wrong_device_guard() {
    let [bug, right] = both("wrong-device", |_| {});
    assert!(bug.err.contains("illegal address: add(float*, float const*) on GPU 0"), "{bug:?}");
    assert!(bug.err.contains("memory of GPU 1 without peer access"), "{bug:?}");
    assert_eq!((&bug.out[..], &right.out[..]), ("after=700\n", "after=0\n"));
}

#[test]
fn event_waited_on_before_it_is_recorded() {
    is_reported("unrecorded-event", "cudaStreamWaitEvent: an event is waited on before it is recorded");
}

#[test]
fn graph_replayed_with_a_stale_pointer() {
    let [bug, right] = both("stale-pointer", |_| {});
    assert!(bug.err.contains("freed memory"), "{bug:?}");
    assert_eq!((&bug.out[..], &right.out[..]), ("after=700\n", "after=0\n"));
}

#[test]
fn worker_that_computes_on_the_cpu() {
    let [bug, right] = both("on-the-cpu", |_| {});
    assert_eq!((bug.count("kernels"), right.count("kernels")), (0, 1));
    assert_eq!(bug.counts["contexts"], serde_json::json!([0, 0]));
}
