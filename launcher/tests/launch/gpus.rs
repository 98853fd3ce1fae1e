//! `--gpu-ids` as a user sees it. Cases that need GPUs are tested on inventories, without processes.

use crate::harness::{Finished, Scene};
use dtrain_common::gpu::{GpuError, inventory};

/// Prints the worker's GPU variables.
const SAY: &str = r#"echo "$LOCAL_RANK ${CUDA_VISIBLE_DEVICES-unset} ${CUDA_DEVICE_ORDER-unset}""#;

/// Launches a shell that prints its GPU variables, with these flags and this CUDA_VISIBLE_DEVICES.
#[track_caller]
fn told(flags: &[&str], visible: Option<&str>) -> Finished {
    let scene = Scene::new();
    let mut command = scene.command(&[flags, &["--", "sh", "-c", SAY]].concat());
    command.env_remove("CUDA_DEVICE_ORDER");
    match visible {
        Some(list) => command.env("CUDA_VISIBLE_DEVICES", list),
        None => command.env_remove("CUDA_VISIBLE_DEVICES"),
    };
    scene.start(command).wait()
}

/// Runs the flags with a program and with a recipe, and expects errors with all these texts.
#[track_caller]
fn refused(flags: &[&str], says: &[&str]) {
    for what in [&["--", "true"][..], &["demo"]] {
        let scene = Scene::new();
        let done = scene.launch(&[flags, what].concat());
        done.expect_code(2);
        for part in says {
            done.expect_stderr(part);
        }
        scene.expect_nothing_written();
    }
}

#[test]
fn without_the_flag_the_environment_is_left_as_it_is() {
    for list in ["", "0,junk", "GPU-00000000"] {
        let done = told(&["--nproc", "1"], Some(list));
        assert_eq!(done.expect_code(0).stdout(), format!("0 {list} unset\n"));
    }
    assert_eq!(told(&["--nproc", "1"], None).expect_code(0).stdout(), "0 unset unset\n");
}

#[test]
fn none_hides_every_gpu() {
    for none in ["none", ""] {
        let done = told(&["--gpu-ids", none], Some("0,1"));
        assert_eq!(done.expect_code(0).stdout(), "0  unset\n");
        done.expect_stderr("dtrain: 1 worker of sh on the CPU\n");
    }
    let done = told(&["--nproc", "2", "--gpu-ids", "none"], None);
    done.expect_code(0).expect_stderr("dtrain: 2 workers of sh on the CPU\n");
    let mut lines: Vec<_> = done.stdout().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["[rank 0] 0  unset", "[rank 1] 1  unset"]);
}

#[test]
fn a_recipe_on_the_cpu_by_choice() {
    let scene = Scene::new();
    let mut command = scene.command(&["--gpu-ids", "none", "--nproc", "2", "demo", "--run-dir", "run"]);
    command
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("FAKE_WORKER", r#"echo "${CUDA_VISIBLE_DEVICES-unset}" > "$TEST_DIR/told.$RANK""#);
    let done = scene.start(command).wait();
    done.expect_code(0).expect_stderr("dtrain: 2 workers on the CPU; effective batch");
    assert_eq!((scene.read("told.0"), scene.read("told.1")), ("\n".into(), "\n".into()));
}

/// The harness hides all GPUs, so that only the reason differs between machines.
#[test]
fn gpus_that_are_not_there() {
    let reason = match inventory() {
        Err(GpuError::NoDriver) => "no NVIDIA driver is loaded on this machine",
        Err(_) => "check that `nvidia-smi` works",
        Ok(machine) if machine.gpus.is_empty() => "the NVIDIA driver finds no GPU",
        Ok(_) => "CUDA_VISIBLE_DEVICES=\"\" hides the ",
    };
    for ids in ["0", "0,1", "GPU-8f", "MIG-8f"] {
        let flag = format!("--gpu-ids {ids}: ");
        refused(&["--gpu-ids", ids], &[&flag, reason, "--gpu-ids none"]);
    }
    refused(&["--gpu-ids", "x"], &["--gpu-ids", "`x` is not a GPU; give numbers"]);
}
