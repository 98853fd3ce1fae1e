//! The machine: memory that processes share, faults, hollow copies, MIG, and words that nobody knows.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Scene;

#[test]
fn processes_share_memory_and_a_killed_one_returns_it() {
    let scene = Scene::new();
    let set = |name| {
        let mut command = scene.command("calls");
        command.arg(name).env("FAKE_GPU_MEMORY", "4GiB");
        command
    };
    assert!(!scene.id.folder().exists());
    let mut holder = set("hold").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    // The test's harness removes this folder.
    assert!(scene.id.folder().join("lock").exists());
    let held = 450 + 1024;
    let during = scene.run(&mut set("memory"));
    assert_eq!(during.out, format!("nvml={held}\nfree={}\nmalloc=2\n", 4096 - held - 450));
    holder.kill().unwrap();
    // Not yet waited for: a zombie has no memory.
    let start = Instant::now();
    loop {
        let after = scene.run(&mut set("memory"));
        if after.out == format!("nvml=0\nfree={}\nmalloc=0\n", 4096 - 450) {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{after:?}");
    }
    holder.wait().unwrap();
}

#[test]
fn faults_hit_the_named_call_of_the_named_rank() {
    let scene = Scene::new();
    let fault = |fault: &str, rank: &str| {
        scene.run(scene.command("calls").arg("fault").env("FAKE_GPU_FAULT", fault).env("RANK", rank))
    };
    assert_eq!(fault("cudaMalloc:2:out-of-memory", "0").out, "first=0\nsecond=2\nwait=0\nlast=2\n");
    assert_eq!(fault("cudaMalloc:2:2:1", "0").out, "first=0\nsecond=0\nwait=0\nlast=0\n");
    let ended = fault("launch:3:illegal-address:0", "0");
    assert!(ended.out.starts_with("first=0\nsecond=0\nwait=700\nlast=700\n"), "{ended:?}");
    let ended = fault("cudaStreamSynchronize:1:ecc", "0");
    assert!(ended.out.contains("wait=214\nlast=214\nnvml=0\n"), "{ended:?}");
}

#[test]
fn wrong_variable_ends_the_program_with_one_sentence() {
    let scene = Scene::new();
    let ended = scene.run(scene.command("calls").arg("memory").env("FAKE_GPU_MEMRY", "4GiB"));
    let words = "fake-gpu: unknown variable FAKE_GPU_MEMRY: did you mean FAKE_GPU_MEMORY?\n";
    assert_eq!((ended.code, &ended.out[..], &ended.err[..]), (Some(1), "", words));
}

#[test]
fn timeline_shows_streams_behind_the_host() {
    let scene = Scene::new();
    let mut command = scene.command("calls");
    let ended =
        scene.run(command.arg("fault").env("FAKE_GPU_TIMELINE", "1").env("FAKE_GPU_KERNEL_NS", "3000000"));
    let events = ended.counts["traceEvents"].as_array().unwrap();
    let kernels: Vec<f64> = events
        .iter()
        .filter(|event| event["name"] == "_Z3addPfPKf")
        .map(|event| event["dur"].as_f64().unwrap())
        .collect();
    assert!(kernels.len() == 3 && kernels.iter().all(|microseconds| *microseconds >= 3000.), "{kernels:?}");
}

#[test]
fn lost_gpu_is_lost_for_nvml_too() {
    let scene = Scene::new();
    let ended = scene.run(scene.command("calls").arg("fault").env("FAKE_GPU_FAULT", "launch:3:lost"));
    assert!(ended.out.ends_with("wait=999\nlast=999\nnvml=15\n"), "{ended:?}");
}

#[test]
fn endless_kernel_never_ends() {
    let scene = Scene::new();
    let mut command = scene.command("calls");
    command.arg("fault").env("FAKE_GPU_FAULT", "launch:2:hang").stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn hollow_copies_take_no_memory_and_are_checked() {
    let scene = Scene::new();
    let ended = scene.run(scene.command("calls").arg("hollow").env("FAKE_GPU_HOLLOW", "1MiB"));
    assert!(ended.out.contains("byte=9\n") && ended.out.contains("outside=1\n"), "{ended:?}");
    let peak = ended.out.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 100 << 10, "{peak} KiB");
    assert_eq!((ended.count("copies"), ended.count("fills")), (3, 2));
}

#[test]
fn unknown_functions_fail_loudly_and_once() {
    let scene = Scene::new();
    let ended = scene.run(scene.command("calls").arg("unsupported"));
    assert_eq!(ended.out, "first=10\nsecond=10\n");
    let words = "fake-gpu: libcusparse.so.12: cusparseCreate is not implemented";
    assert_eq!(ended.err.matches(words).count(), 1, "{ended:?}");
}

#[test]
fn cuda_opens_one_instance_and_nvml_lists_all() {
    let scene = Scene::new();
    let file = scene.folder.path().join("machine.toml");
    let text = "[[gpu]]\nmemory = \"40GiB\"\nmig = [{ profile = \"1g.5gb\", memory = \"5GiB\", multiprocessors = 14 }, \
                { profile = \"2g.10gb\", memory = \"10GiB\", multiprocessors = 28 }]\n";
    std::fs::write(&file, text).unwrap();
    let second = "MIG-fa4e0000-0000-4000-8000-000000000001";
    let mut command = scene.command("calls");
    command.arg("mig").env("FAKE_GPU_MACHINE", &file).env("CUDA_VISIBLE_DEVICES", second);
    let ended = scene.run(&mut command);
    assert!(ended.out.contains(&format!("instance={second}\n")), "{ended:?}");
    assert!(ended.out.ends_with("devices=1 total=10240\n"), "{ended:?}");
}

#[test]
fn command_refuses_what_it_does_not_know() {
    let scene = Scene::new();
    let file = scene.folder.path().join("machine.toml");
    std::fs::write(&file, "[[gpu]]\nname = \"A\"\nmemry = \"4GiB\"\n").unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fake-gpu"));
        scene.set(&mut command);
        scene.run(command.arg("--beside-a-driver").args(arguments).args(["--", "true"])).err
    };
    let of_file = run(&["--machine", file.to_str().unwrap()]);
    let expected = format!("error: {}:3: unknown word \"memry\": did you mean \"memory\"?\n", file.display());
    assert_eq!(of_file, expected);
    assert_eq!(run(&["--gpus", "65"]), "error: more than 64 GPUs: ask for 64 at most\n");
    let torch = scene.folder.path().join("torch");
    std::fs::create_dir(&torch).unwrap();
    std::fs::write(torch.join("version.py"), "__version__ = '2.10.0+cu130'\n").unwrap();
    let of_torch = run(&["--torch", torch.to_str().unwrap()]);
    assert!(of_torch.contains("is libtorch 2.10.0+cu130, the fake GPUs know 2.11.0+cu130: use that version"));
    assert_eq!(of_torch.lines().count(), 1);
}
