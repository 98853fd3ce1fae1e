//! dtrain on a machine of fake GPUs: the CUDA path of libtorch, without a GPU.

mod choice;
mod commands;
mod loading;
mod nodes;
mod steps;
mod suite;
mod trainings;
mod without_weights;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use dtrain_test_kit::fake_gpus::MachineId;
use dtrain_test_kit::need::{Need, Skipped, require};
use dtrain_test_kit::thorough;
use dtrain_tests::process::{expect_exit_code, finish, output_text};
use dtrain_tests::programs::{program, without_outer_run};
use dtrain_tests::runs::{Run, Sandbox, TINY, resnet18};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(240);

/// Skips the test if libtorch is without CUDA.
pub(crate) fn need_cuda() -> Result<(), Skipped> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/libtorch/torch");
    let torch = std::env::var_os("LIBTORCH").map_or_else(default, PathBuf::from);
    let library = torch.join("lib/libtorch_cuda.so");
    let found = library.exists().then_some(()).ok_or_else(|| format!("no {}", library.display()));
    require(Need::LibtorchCuda, found)
}

/// A machine with this many fake GPUs, and runs on it.
pub(crate) struct Machine {
    pub(crate) sandbox: Sandbox,
    gpus: usize,
    id: MachineId,
}

impl Machine {
    pub(crate) fn new(gpus: usize, recipe: &str) -> Result<Self, Skipped> {
        Self::of(gpus, Sandbox::new(recipe))
    }

    pub(crate) fn of(gpus: usize, sandbox: Sandbox) -> Result<Self, Skipped> {
        need_cuda()?;
        Ok(Self { sandbox, gpus, id: MachineId::new() })
    }

    /// Describes the machine by a file's text.
    pub(crate) fn describe(&self, text: &str) {
        fs::write(self.sandbox.path("machine.toml"), text).unwrap();
    }

    /// Returns the command of `dtrain WORDS` on the machine, in the sandbox's folder.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = self.command_of("dtrain".as_ref());
        command.args(words);
        command
    }

    /// Returns the command of a program on the machine, in the sandbox's folder.
    fn command_of(&self, started: &Path) -> Command {
        let mut command = Command::new(program("fake-gpu"));
        without_outer_run(&mut command);
        match self.sandbox.path("machine.toml") {
            file if file.exists() => command.arg("--machine").arg(file),
            _ => command.args(["--gpus", &self.gpus.to_string()]),
        };
        command.arg("--").arg(started);
        self.sandbox.scene().mark(&mut command);
        command.env_remove("CUDA_VISIBLE_DEVICES").env("OMP_NUM_THREADS", "1");
        // `gpu clear` asks the workers whose sockets are here.
        command.env("XDG_RUNTIME_DIR", self.sandbox.path(""));
        command.env("FAKE_GPU_ID", self.id.as_str()).env("FAKE_GPU_CHECK", "1");
        command
    }

    /// Runs `dtrain launch --run-dir RUN ARGS recipe.toml`. `variables` describe the machine.
    pub(crate) fn launch(&self, run: &str, args: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = self.command(&[&["launch", "--run-dir", run], args, &["recipe.toml"]].concat());
        command.env("FAKE_GPU_COUNTS", self.counts_path(run));
        finish(command.envs(variables.iter().copied()), LIMIT)
    }

    #[track_caller]
    pub(crate) fn train(&self, run: &str, args: &[&str]) -> (Run, String) {
        let text = expect_exit_code(&self.launch(run, args, &[]), 0);
        (self.sandbox.run(run), text)
    }

    /// Returns the value of `FAKE_GPU_COUNTS` for a run.
    fn counts_path(&self, run: &str) -> PathBuf {
        let folder = self.sandbox.path(&format!("counts-{run}"));
        fs::create_dir_all(&folder).unwrap();
        folder.join("counts")
    }

    /// Returns the counts of the workers of a run, by rank.
    pub(crate) fn counts(&self, run: &str) -> Vec<Value> {
        let entries = fs::read_dir(self.sandbox.path(&format!("counts-{run}"))).unwrap();
        let files =
            entries.map(|entry| serde_json::from_slice(&fs::read(entry.unwrap().path()).unwrap()).unwrap());
        let mut workers: Vec<Value> = files.filter(|counts: &Value| counts["kernels"] != 0).collect();
        workers.sort_by_key(|counts| counts["rank"].as_str().map(str::to_owned));
        workers
    }

    /// Returns the counts of a run's workers, each with one context, on its own GPU, and no access without an order.
    #[track_caller]
    fn expect_own_gpus(&self, run: &str, text: &str) -> Vec<Value> {
        let workers = self.counts(run);
        assert_eq!(workers.len(), self.gpus, "{run}: {text}");
        for (rank, counts) in workers.iter().enumerate() {
            let mut contexts = vec![0; self.gpus];
            contexts[rank] = 1;
            assert_eq!(counts["contexts"], json!(contexts), "{run}: {text}");
            assert_eq!(counts["races"], 0, "{run}: {text}");
        }
        workers
    }
}

/// The driver lists GPUs, and CUDA reports no GPU.
#[test]
fn a_machine_with_gpus_does_not_train_on_the_cpu_unasked() {
    let Ok(machine) = Machine::new(2, TINY) else { return };
    machine.describe("driver-error = 100\n[[gpu]]\ncount = 2\n");
    for &nproc in thorough::cases(&["auto", "gpu", "2"], 1) {
        let output = machine.launch("run", &["--nproc", nproc], &[]);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{nproc}: {text}");
        assert!(
            text.contains("CUDA finds none of these GPUs") || text.contains("no GPU is usable"),
            "{text}"
        );
        assert!(text.contains("--gpu-ids none"), "{text}");
    }
    let args = ["--nproc", "1", "--gpu-ids", "none", "--set", "train.steps=1"];
    let text = expect_exit_code(&machine.launch("run", &args, &[]), 0);
    assert!(text.contains(" on 1 x CPU in "), "{text}");
}

/// A GPU that fails is a failed worker, at any moment, and another attempt continues.
#[test]
fn a_failing_gpu_is_a_failed_worker() {
    let Ok(machine) = Machine::new(1, &resnet18()) else { return };
    // `fake_faults` sees one within a step.
    let faults = [
        ("model", "cudaMemcpyAsync:3:illegal-address", "an illegal memory access"),
        ("step", "launch:900:illegal-address", "an illegal memory access"),
        ("ecc", "launch:900:ecc", "uncorrectable ECC error"),
    ];
    for &(name, fault, cause) in thorough::cases(&faults, 1) {
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
