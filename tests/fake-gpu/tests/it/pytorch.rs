//! PyTorch on the fake machine: the unmodified libtorch runs, and bugs of programs are found through it.

use std::path::{Path, PathBuf};
use std::process::Command;

use dtrain_test_kit::need::{Need, Skipped, require};

use crate::names::libtorch;
use crate::{Ended, LAYOUT, Scene};

/// Returns a Python that finds PyTorch and the fake libraries.
fn python(scene: &Scene) -> Result<Command, Skipped> {
    let lib = libtorch()?;
    let packages = lib.ancestors().nth(3).unwrap().join("pytorch/packages");
    // libtorch's wheel is for this version. The Python of `target/pytorch` sets its own paths.
    let is_right = |name: &&str| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.stdout.starts_with(b"Python 3.11."))
    };
    let found = ["python3.11", "python3"].into_iter().find(is_right).filter(|_| packages.is_dir());
    let name = require(Need::PyTorch, found.ok_or("no Python 3.11, or no target/pytorch/packages"))?;
    LAYOUT.add_torch(lib.parent().unwrap()).unwrap();
    LAYOUT.add_packages(&packages.canonicalize().unwrap()).unwrap();
    let mut python = Command::new(name);
    scene.set(&mut python);
    Ok(python)
}

/// Runs a program's text. Its first line sets `bug`.
fn run(text: &str, bug: bool, change: impl Fn(&mut Command)) -> Result<Ended, Skipped> {
    let scene = Scene::new();
    let mut python = python(&scene)?;
    python.args(["-c", &format!("bug = {}\nimport torch\n{text}", if bug { "True" } else { "False" })]);
    python.env("FAKE_GPU_CHECK", "1");
    change(&mut python);
    let ended = scene.run(&mut python);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    Ok(ended)
}

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

#[test]
fn missing_wait_is_found_through_libtorch() {
    let text = "
pinned, side = torch.ones(1000).pin_memory(), torch.cuda.Stream()
device = torch.empty(1000, device='cuda')
torch.cuda.synchronize()
with torch.cuda.stream(side):
    device.copy_(pinned, non_blocking=True)
if not bug:
    torch.cuda.current_stream().wait_stream(side)
print((device + 1)[:1].item())
";
    let Ok(ended) = run(text, true, |_| {}) else { return };
    assert!(ended.err.contains("race: ") && ended.err.contains("CUDAFunctorOnSelf_add"), "{ended:?}");
    let Ok(ended) = run(text, false, |_| {}) else { return };
    assert_eq!((&ended.out[..], &ended.err[..]), ("2.0\n", ""));
}

#[test]
fn stale_pointer_of_a_graph_is_found_through_libtorch() {
    let text = "
x = torch.ones(8 << 20, device='cuda')
y = torch.empty_like(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    torch.add(x, 1, out=y)
graph.replay()
if bug:
    del x
    torch.cuda.empty_cache()
graph.replay()
try:
    torch.cuda.synchronize()
    print('fine')
except RuntimeError as error:
    print('illegal memory access' in str(error), flush=True)
    import os
    os._exit(0)
";
    let Ok(ended) = run(text, true, |_| {}) else { return };
    assert!(ended.out == "True\n" && ended.err.contains("freed memory"), "{ended:?}");
    let Ok(ended) = run(text, false, |_| {}) else { return };
    assert_eq!(ended.out, "fine\n");
}

#[test]
fn operations_of_a_step_are_counted() {
    let scene = Scene::new();
    let Ok(mut python) = python(&scene) else { return };
    python.arg(program("resnet.py")).arg("5").env("FAKE_GPU_CHECK", "1");
    let ended = scene.run(&mut python);
    assert!(ended.code == Some(0) && ended.err.is_empty(), "{ended:?}");
    let step = ended.counts["steps"].as_array().unwrap().last().unwrap();
    let counted = ["kernels", "copies", "host_waits", "collectives"].map(|name| step[name].as_u64().unwrap());
    assert_eq!(counted, [279, 3, 1, 0]);
    assert_eq!(ended.counts["contexts"], serde_json::json!([1]));
    assert!(ended.counts["calls"].as_object().unwrap().keys().all(|name| !name.starts_with("[reported]")));
}

#[test]
fn data_parallel_training_uses_a_gpu_for_each_rank() {
    let scene = Scene::new();
    let Ok(mut python) = python(&scene) else { return };
    python.args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]);
    python.arg(program("resnet.py")).arg("4").env("FAKE_GPU_COUNT", "2").env("FAKE_GPU_CHECK", "1");
    let ended = scene.run(&mut python);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut steps = Vec::new();
    for entry in std::fs::read_dir(scene.folder.path()).unwrap().map(Result::unwrap) {
        let counts: serde_json::Value =
            serde_json::from_slice(&std::fs::read(entry.path()).unwrap()).unwrap();
        if counts["kernels"] != 0 {
            let rank: usize = counts["rank"].as_str().unwrap().parse().unwrap();
            assert_eq!(counts["contexts"][rank], 1);
            assert_eq!(counts["contexts"][1 - rank], 0);
            assert_eq!(counts["races"], 0);
            let step = counts["steps"].as_array().unwrap().last().unwrap();
            steps.push(["kernels", "collectives", "host_waits"].map(|name| step[name].as_u64().unwrap()));
        }
    }
    assert_eq!(steps, [[343, 5, 1]; 2]);
}

#[test]
fn collectives_between_two_ranks_have_the_right_values() {
    let scene = Scene::new();
    let Ok(mut python) = python(&scene) else { return };
    python.args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]);
    python.arg(program("collectives.py")).env("FAKE_GPU_COUNT", "2");
    let ended = scene.run(&mut python);
    assert!(ended.code == Some(0) && ended.out.matches("fine").count() == 2, "{ended:?}");
    assert!(!ended.err.contains("is not implemented"), "{ended:?}");
}

#[test]
fn large_tensors_are_hollow() {
    let text = "
x = torch.zeros(3 << 30, dtype=torch.uint8, device='cuda')
y = x.clone()
host = y.to('cpu', non_blocking=False) if bug else None
print(torch.cuda.memory_allocated() >> 30, y[5].item())
import resource
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 << 20)
";
    let hollow = |command: &mut Command| {
        command.env("FAKE_GPU_HOLLOW", "64MiB");
    };
    let Ok(ended) = run(text, true, hollow) else { return };
    assert_eq!(ended.out, "6 0\nTrue\n");
}

#[test]
fn expandable_segments_grow_and_shrink() {
    let text = "
parts = [torch.ones(3 << 20, device='cuda') for _ in range(8)]
before = torch.cuda.mem_get_info()[0]
del parts
torch.cuda.empty_cache()
print((torch.cuda.mem_get_info()[0] - before) >> 20, torch.cuda.memory_reserved())
";
    let expandable = |command: &mut Command| {
        command.env("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True");
    };
    let Ok(ended) = run(text, false, expandable) else { return };
    // Segments of 20 MiB.
    assert_eq!(ended.out, "100 0\n");
    assert!(ended.counts["calls"]["cuMemMap"].as_u64().unwrap() > 0);
}
