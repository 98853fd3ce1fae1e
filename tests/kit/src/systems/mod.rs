//! Batch systems that are not installed here. Stand-ins of their commands take the jobs of `dtrain batch`; a
//! [`Queue`] starts scripts as PBS, LSF or Flux, and [`pods`] runs manifests as Kubernetes.

pub mod pods;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::process::{Signal, kill};
use crate::programs;
use crate::scene::{Finished, Launch, Scene};

/// Exit code of a job that LSF starts again if the script asks for it.
const REQUEUE: i32 = 75;

/// A batch system with its jobs.
#[derive(Debug)]
pub struct Queue<'a> {
    scene: &'a Scene,
    system: &'static str,
    /// Number of the first job. Ports depend on it, so no other test has it.
    number: u32,
    starts: usize,
    last_code: Option<i32>,
}

impl<'a> Queue<'a> {
    /// Returns an empty queue of the system that `dtrain batch` calls by this name.
    ///
    /// # Panics
    /// If its files cannot be written.
    pub fn new(scene: &'a Scene, system: &'static str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        fs::create_dir_all(spool(scene)).unwrap();
        let number = std::process::id() * 100 + COUNT.fetch_add(1, Ordering::Relaxed) % 100;
        Self { scene, system, number, starts: 0, last_code: None }
    }

    /// Runs `dtrain batch SYSTEM --submit ARGS` to its end.
    pub fn submit(&self, args: &[&str]) -> Finished {
        self.submit_with(args, &[])
    }

    /// As [`Queue::submit`], with these variables. `REFUSE` is the reason why the system takes no job.
    pub fn submit_with(&self, args: &[&str], variables: &[(&str, &str)]) -> Finished {
        let mut command = Command::new(programs::dtrain());
        // The flag comes before `--`.
        command.args(["batch", self.system, "--submit"]).args(args).envs(variables.iter().copied());
        self.adapt(&mut command);
        self.scene.start_as(".submit", command).wait_leaving_processes()
    }

    /// Returns the id of the first job.
    pub fn first_id(&self) -> String {
        match self.system {
            "pbs" => format!("{}.server", self.number),
            "lsf" => self.number.to_string(),
            _ => "f0".to_owned(),
        }
    }

    /// Starts the next job, as run `index` of an array. `None`: no job waits.
    pub fn start(&mut self, index: Option<u32>) -> Option<Launch<'a>> {
        // LSF starts the same job again, the other systems have a new one for each start.
        let is_same = self.system == "lsf";
        let number = if is_same { 0 } else { self.starts };
        let script = fs::read_to_string(spool(self.scene).join(format!("{number}.SC"))).ok()?;
        if is_same && self.starts > 0 {
            let again = format!("#BSUB -Q {REQUEUE}");
            (self.last_code == Some(REQUEUE)).then_some(())?;
            script.lines().find(|line| *line == again)?;
        }
        let mut command = Command::new(programs_folder().join("driver"));
        command.env("SYSTEM", self.system).env("NUMBER", number.to_string());
        // PBS: a job that starts again is a single one.
        if let Some(index) = index.filter(|_| is_same || self.starts == 0) {
            command.env("INDEX", index.to_string());
        }
        self.adapt(&mut command);
        self.starts += 1;
        Some(self.scene.start_as(&format!(".start-{}", self.starts), command))
    }

    /// Waits for the end of a start.
    pub fn wait(&mut self, launch: Launch<'a>) -> Finished {
        let done = launch.wait();
        self.last_code = done.code;
        done
    }

    /// Starts jobs until none waits.
    pub fn drive(&mut self, index: Option<u32>) -> Vec<Finished> {
        let mut done = Vec::new();
        while let Some(launch) = self.start(index) {
            done.push(self.wait(launch));
        }
        done
    }

    /// Sends a signal to all processes of the running job, as `qsig` and `bkill -s` do.
    pub fn signal(&self, signal: Signal) {
        self.scene.alive().into_iter().for_each(|pid| kill(pid, signal));
    }

    fn adapt(&self, command: &mut Command) {
        adapt(self.scene, command);
        command.env("JOBS", self.number.to_string());
    }
}

/// Returns the exit codes.
pub fn codes(done: &[Finished]) -> Vec<Option<i32>> {
    done.iter().map(|done| done.code).collect()
}

/// Makes a command one of the scene's, with the stand-ins in `PATH`.
fn adapt(scene: &Scene, command: &mut Command) {
    let path = std::env::var("PATH").unwrap_or_default();
    scene.mark(command).env("PATH", format!("{}:{path}", programs_folder().display()));
    programs::without_outer_run(command);
    command.env("SPOOL", spool(scene)).env("CUDA_VISIBLE_DEVICES", "");
}

fn programs_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/systems")
}

/// Returns the folder of the jobs that the stand-ins took.
fn spool(scene: &Scene) -> PathBuf {
    scene.path(".spool")
}
