//! dtrain on a machine of fake GPUs: the CUDA path of libtorch, without a GPU.

use std::fs;
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dtrain_test_kit::need::{Need, Skipped, require};
use dtrain_tests::process::{finish, output_text};
use dtrain_tests::programs::{program, without_outer_run};
use dtrain_tests::runs::{Run, Sandbox, TINY, gpt};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(240);

/// A machine with this many fake GPUs, and runs on it.
struct Machine {
    sandbox: Sandbox,
    gpus: usize,
    id: String,
}

impl Machine {
    fn new(gpus: usize, recipe: &str) -> Result<Self, Skipped> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let torch = std::env::var("LIBTORCH").unwrap_or_else(|_| {
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../target/libtorch/torch")
                .to_string_lossy()
                .into_owned()
        });
        let library = Path::new(&torch).join("lib/libtorch_cuda.so");
        let found = library.exists().then_some(()).ok_or_else(|| format!("no {}", library.display()));
        require(Need::LibtorchCuda, found)?;
        let id = format!("e2e-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Ok(Self { sandbox: Sandbox::new(recipe), gpus, id })
    }

    /// Runs `dtrain launch --run-dir RUN ARGS recipe.toml`. `variables` describe the machine.
    fn launch(&self, run: &str, args: &[&str], variables: &[(&str, &str)]) -> Output {
        let folder = self.sandbox.path(&format!("counts-{run}"));
        fs::create_dir_all(&folder).unwrap();
        let mut command = std::process::Command::new(program("fake-gpu"));
        without_outer_run(&mut command);
        command.args(["--gpus", &self.gpus.to_string(), "--", "dtrain", "launch", "--run-dir", run]);
        command.args(args).arg("recipe.toml").current_dir(self.sandbox.path(""));
        command.env_remove("CUDA_VISIBLE_DEVICES").env("OMP_NUM_THREADS", "1").env("FAKE_GPU_ID", &self.id);
        command.env("FAKE_GPU_COUNTS", folder.join("counts")).env("FAKE_GPU_CHECK", "1");
        finish(command.envs(variables.iter().copied()), LIMIT)
    }

    #[track_caller]
    fn train(&self, run: &str, args: &[&str]) -> (Run, String) {
        let output = self.launch(run, args, &[]);
        let text = output_text(&output);
        assert!(output.status.success(), "{text}");
        (self.sandbox.run(run), text)
    }

    /// Returns the counts of the workers of a run, by rank.
    fn counts(&self, run: &str) -> Vec<Value> {
        let entries = fs::read_dir(self.sandbox.path(&format!("counts-{run}"))).unwrap();
        let files =
            entries.map(|entry| serde_json::from_slice(&fs::read(entry.unwrap().path()).unwrap()).unwrap());
        let mut workers: Vec<Value> = files.filter(|counts: &Value| counts["kernels"] != 0).collect();
        workers.sort_by_key(|counts| counts["rank"].as_str().map(str::to_owned));
        workers
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let user = rustix::process::getuid().as_raw();
        let _ = fs::remove_dir_all(format!("/dev/shm/fake-gpu-{user}-{}", self.id));
    }
}

/// Every worker has one context, on its own GPU, computes each step there, and no operation lacks an order.
#[test]
fn every_rank_computes_its_steps_on_its_own_gpu() {
    for (gpus, sets) in [
        (1, &["precision.amp=bf16"][..]),
        (2, &["precision.amp=bf16"]),
        (2, &["precision.amp=fp16", "memory.micro_batch=2", "memory.recompute=on"]),
        (2, &["precision.amp=off", "memory.shard_optimizer=true", "ema.decay=0.9"]),
        (1, &["model.compile=graph"]),
    ] {
        let Ok(machine) = Machine::new(gpus, &gpt(6, "")) else { return };
        let ranks = gpus.to_string();
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let (run, text) = machine.train("run", &[&["--nproc", &ranks], &sets[..]].concat());
        assert!(text.contains(&format!(" on {gpus} x GPU in ")), "{text}");
        assert_eq!(run.result().steps, Some(6), "{sets:?}");
        let workers = machine.counts("run");
        assert_eq!(workers.len(), gpus, "{sets:?}: {text}");
        for (rank, counts) in workers.iter().enumerate() {
            let mut contexts = vec![0; gpus];
            contexts[rank] = 1;
            assert_eq!(counts["contexts"], serde_json::json!(contexts), "{sets:?}");
            assert_eq!(counts["races"], 0, "{sets:?}: {text}");
            // A host wait ends one; preparation and evaluation have others.
            let steps = counts["steps"].as_array().unwrap();
            let trained = steps.iter().filter(|step| step["kernels"].as_u64() > Some(20)).count();
            assert!(trained >= 6, "{sets:?}: {steps:?}");
        }
    }
}

#[test]
fn a_run_on_gpus_resumes() {
    let Ok(machine) = Machine::new(2, TINY) else { return };
    let steps = |steps| format!("train.steps={steps}");
    machine.train("run", &["--nproc", "2", "--set", &steps(3)]);
    let (run, text) = machine.train("run", &["--nproc", "gpu", "--set", &steps(5)]);
    assert!(text.contains("after step 3") && text.contains(" on 2 x GPU in "), "{text}");
    assert_eq!(run.result().steps, Some(5));
}

/// The driver lists GPUs, and CUDA reports that there is none.
#[test]
fn a_machine_with_gpus_does_not_train_on_the_cpu_unasked() {
    let Ok(machine) = Machine::new(2, TINY) else { return };
    let file = machine.sandbox.path("machine.toml");
    fs::write(&file, "driver-error = 100\n[[gpu]]\ncount = 2\n").unwrap();
    let broken = [("FAKE_GPU_MACHINE", file.to_str().unwrap())];
    for nproc in ["gpu", "auto", "2"] {
        let output = machine.launch("run", &["--nproc", nproc], &broken);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{nproc}: {text}");
        assert!(
            text.contains("CUDA finds none of these GPUs") || text.contains("no GPU is usable"),
            "{text}"
        );
        assert!(text.contains("--gpu-ids none"), "{text}");
    }
    let output =
        machine.launch("run", &["--nproc", "1", "--gpu-ids", "none", "--set", "train.steps=1"], &broken);
    let text = output_text(&output);
    assert!(output.status.success() && text.contains(" on 1 x CPU in "), "{text}");
}

/// A GPU that fails is a failed worker, at any moment, and another attempt continues.
#[test]
fn a_failing_gpu_is_a_failed_worker() {
    let Ok(machine) = Machine::new(1, TINY) else { return };
    for (name, fault, cause) in [
        ("model", "cudaMemcpyAsync:3:illegal-address", "an illegal memory access"),
        ("step", "launch:900:illegal-address", "an illegal memory access"),
        ("ecc", "launch:900:ecc", "uncorrectable ECC error"),
    ] {
        let args = ["--nproc", "1", "--set", "train.steps=3"];
        let output = machine.launch(name, &args, &[("FAKE_GPU_FAULT", fault)]);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(4), "{name}: {text}");
        assert!(text.contains(cause) && !text.contains("CUDA_LAUNCH_BLOCKING=1\n"), "{name}: {text}");
        assert!(!text.contains("panicked"), "{name}: {text}");
        let failure = machine.sandbox.run(name).result().failure;
        let message = failure.and_then(|failure| failure.message);
        assert!(message.as_ref().is_some_and(|message| message.contains(cause)), "{name}: {message:?}");
    }
}
