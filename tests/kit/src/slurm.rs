//! A real Slurm on the nodes of a [`Network`], for tests of batch scripts. Needs root and Debian's packages
//! `slurm-wlm` and `munge`.
//!
//! Each node has one core for Slurm. Jobs in the partition `high` preempt those in `low`, after a grace time, and in
//! `abrupt`, without it. Drop ends the daemons and
//! all jobs, and so does the end of the test by a signal.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use tempfile::TempDir;

use crate::need::{self, Need, Skipped};
use crate::network::Network;
use crate::process::{Signal, finish, kill, output_text, wait_until};
use crate::programs;

/// Names of the daemons' processes. Other processes in a node belong to jobs.
const DAEMONS: [&str; 4] = ["munged", "slurmctld", "slurmscriptd", "slurmd"];

/// States of jobs that have ended.
const ENDS: [&str; 8] =
    ["BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"];

/// For a command of Slurm, which waits for a busy controller.
const PATIENCE: Duration = Duration::from_secs(60);

/// A Slurm with a controller on `n0` and a daemon on each node.
#[derive(Debug)]
pub struct Slurm {
    // Dropped first: the processes in it.
    network: Network,
    /// The daemon of each node.
    daemons: Mutex<Vec<Child>>,
    /// munged and the controller.
    controller: Vec<Child>,
    files: TempDir,
}

/// The state of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Such as `RUNNING`.
    pub state: String,
    /// How often it was requeued.
    pub restarts: usize,
    /// Exit code and signal, such as `0:0`.
    pub exit_code: String,
}

impl Job {
    /// Returns whether the job has ended and will not start again.
    pub fn is_over(&self) -> bool {
        ENDS.contains(&self.state.as_str())
    }

    fn parse(line: &str) -> Self {
        let field = |name: &str| {
            let value = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or_else(|| panic!("no {name} in {line}")).to_owned()
        };
        Self {
            state: field("JobState"),
            restarts: field("Restarts").parse().unwrap(),
            exit_code: field("ExitCode"),
        }
    }
}

impl Slurm {
    /// Starts Slurm on this number of nodes.
    ///
    /// # Errors
    /// As [`need::require`]: the permission or a program is missing.
    ///
    /// # Panics
    /// As [`need::require`], and if the nodes are not idle in time.
    #[track_caller]
    pub fn new(nodes: usize) -> Result<Self, Skipped> {
        for program in ["munged", "slurmctld", "slurmd", "sbatch", "srun"] {
            need::output(Need::Slurm, Command::new(program).arg("-V"))?;
        }
        let network = Network::new(nodes)?;
        let files = tempfile::tempdir().unwrap();
        let mut slurm = Self { network, daemons: Mutex::default(), controller: Vec::new(), files };
        slurm.write_files();
        slurm.start();
        Ok(slurm)
    }

    /// Returns a path in the folder that all nodes share, in which jobs run.
    pub fn path(&self, name: &str) -> PathBuf {
        self.files.path().join("work").join(name)
    }

    /// Submits the script of `dtrain batch slurm ARGS` and returns the job's id.
    ///
    /// # Panics
    /// If dtrain or Slurm refuses the job.
    #[track_caller]
    pub fn submit_training(&self, args: &[String]) -> String {
        let mut command = Command::new(programs::dtrain());
        command.args(["batch", "slurm", "--submit"]).args(args);
        command.env("DTRAIN_WORKER", programs::worker()).env("OMP_NUM_THREADS", "1");
        command.env("CUDA_VISIBLE_DEVICES", "");
        programs::without_outer_run(&mut command);
        self.output(&command)
    }

    /// Runs a command of Slurm on `n0`, in the shared folder, and returns its standard output without the line end.
    ///
    /// # Panics
    /// If the command fails.
    #[track_caller]
    pub fn run(&self, words: &[&str]) -> String {
        self.output(Command::new(words[0]).args(&words[1..]))
    }

    /// Submits a job that preempts all others, and ends at once.
    ///
    /// # Panics
    /// As [`Slurm::run`].
    #[track_caller]
    pub fn preempt(&self) {
        let nodes = format!("--nodes={}", self.network.nodes().len());
        self.run(&["sbatch", "--partition=high", &nodes, "--time=1", "--output=/dev/null", "--wrap=true"]);
    }

    /// Returns the state of a job, or of each job of an array.
    ///
    /// # Panics
    /// If Slurm does not know the job.
    #[track_caller]
    pub fn jobs(&self, id: &str) -> Vec<Job> {
        self.run(&["scontrol", "show", "job", "--oneliner", id]).lines().map(Job::parse).collect()
    }

    /// Returns the state of a job.
    ///
    /// # Panics
    /// As [`Slurm::jobs`].
    #[track_caller]
    pub fn job(&self, id: &str) -> Job {
        self.jobs(id).remove(0)
    }

    /// Returns the processes of jobs on all nodes.
    pub fn job_processes(&self) -> Vec<u32> {
        let is_daemon = |pid: &u32| {
            // A process without a name has just ended.
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.is_empty() || DAEMONS.contains(&name.trim())
        };
        let all = self.network.nodes().flat_map(|node| node.processes());
        all.filter(|pid| !is_daemon(pid)).collect()
    }

    /// Kills the daemon of a node. Its jobs keep running.
    pub fn kill_daemon(&self, node: usize) {
        let daemon = &mut self.daemons.lock().unwrap()[node];
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    /// Kills the daemon of a node and all processes of its jobs.
    pub fn kill_node(&self, node: usize) {
        self.kill_daemon(node);
        self.network[node].processes().into_iter().for_each(|pid| kill(pid, Signal::KILL));
    }

    /// Starts the killed daemon of a node.
    pub fn restart_daemon(&self, node: usize) {
        self.daemons.lock().unwrap()[node] = self.start_slurmd(node);
    }

    /// Returns the log of the controller, for a failure.
    pub fn log(&self) -> String {
        fs::read_to_string(self.file("slurmctld.log")).unwrap_or_default()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    #[track_caller]
    fn output(&self, command: &Command) -> String {
        let mut entering = self.enter(0, command);
        let output = finish(&mut entering, PATIENCE);
        assert!(output.status.success(), "{command:?}: {}", output_text(&output));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    fn enter(&self, node: usize, command: &Command) -> Command {
        let mut entering = self.network[node].enter(command);
        entering.env("SLURM_CONF", self.file("slurm.conf")).current_dir(self.path(""));
        entering
    }

    fn write_files(&self) {
        fs::create_dir(self.path("")).unwrap();
        for node in self.network.nodes() {
            let spool = self.file(&format!("spool-{}", node.name));
            fs::DirBuilder::new().mode(0o755).create(spool).unwrap();
        }
        fs::create_dir(self.file("state")).unwrap();
        let mut key = fs::OpenOptions::new();
        let mut key = key.write(true).create_new(true).mode(0o600).open(self.file("munge.key")).unwrap();
        let random = fs::File::open("/dev/urandom").unwrap();
        std::io::copy(&mut std::io::Read::take(random, 128), &mut key).unwrap();
        fs::write(self.file("slurm.conf"), self.configuration()).unwrap();
    }

    fn configuration(&self) -> String {
        let dir = self.files.path().display();
        // `cred_expire` is also the time that a requeued job waits. Shorter ones
        // expire on a busy machine before the job starts.
        let mut text = format!(
            "ClusterName=test
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket,cred_expire=10
SlurmUser=root
SlurmdUser=root
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd-%n.log
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmctldHost=n0({})
SlurmctldDebug=verbose
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
MessageTimeout=30
SlurmdTimeout=20
KillWait=5
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1,sched_min_interval=0
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=abrupt Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
",
            self.network[0].address
        );
        for node in self.network.nodes() {
            text += &format!("NodeName={} NodeAddr={} CPUs=1 State=UNKNOWN\n", node.name, node.address);
        }
        text
    }

    fn start(&mut self) {
        let flag = |name: &str, file: &str| format!("--{name}={}", self.file(file).display());
        let files = [
            flag("socket", "munge.socket"),
            flag("key-file", "munge.key"),
            flag("pid-file", "munged.pid"),
            flag("log-file", "munged.log"),
            flag("seed-file", "munged.seed"),
        ];
        let munged = self.spawn(0, Command::new("munged").args(["--foreground", "--force"]).args(files));
        self.controller.push(munged);
        let socket = self.file("munge.socket");
        wait_until("munged", || socket.exists());
        let controller = self.spawn(0, Command::new("slurmctld").arg("-D"));
        self.controller.push(controller);
        let nodes = 0..self.network.nodes().len();
        *self.daemons.lock().unwrap() = nodes.map(|node| self.start_slurmd(node)).collect();
        let nodes = self.network.nodes().len().to_string();
        wait_until("idle nodes of Slurm", || {
            let mut sinfo = Command::new("sinfo");
            sinfo.args(["--noheader", "--states=idle", "--partition=low", "--format=%D"]);
            let output = finish(&mut self.enter(0, &sinfo), PATIENCE);
            String::from_utf8_lossy(&output.stdout).trim() == nodes
        });
    }

    fn start_slurmd(&self, node: usize) -> Child {
        self.spawn(node, Command::new("slurmd").args(["-D", "-N", &self.network[node].name]))
    }

    fn spawn(&self, node: usize, command: &Command) -> Child {
        let mut entering = self.enter(node, command);
        entering.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }
}
