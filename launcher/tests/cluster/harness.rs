//! A launcher on each of several nodes.

use dtrain_common::env::DTRAIN_RDZV_SECRET;
use dtrain_test_kit::need::Skipped;
use dtrain_test_kit::network::{Addresses, Network};
use dtrain_test_kit::process::{Signal, signal, wait_until};
pub(crate) use dtrain_test_kit::scene::{Finished, Launch, Scene};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The endpoint of node 0.
pub(crate) const ENDPOINT: &str = "n0:29500";

/// Ready, then until a stop signal or the file `go`: a line in the file that all workers share.
pub(crate) const WORK: &str = r#"
    trap 'echo "$RANK" >> "$TEST_DIR/signalled"; trap - TERM; kill -TERM $$' TERM
    trap 'echo "$RANK" >> "$TEST_DIR/signalled"; trap - INT; kill -INT $$' INT
    echo $$ > "$TEST_DIR/pid.$RANK"
    : > "$TEST_DIR/ready.$RANK.$TORCHELASTIC_RESTART_COUNT"
    until [ -e "$TEST_DIR/go" ]; do
        echo "$TORCHELASTIC_RESTART_COUNT $RANK" >> "$TEST_DIR/written"
        sleep 0.05
    done
"#;

/// Nodes with a shared folder and a secret.
pub(crate) struct Cluster {
    // Dropped first: the processes on the nodes.
    pub(crate) network: Network,
    pub(crate) scene: Scene,
}

impl Cluster {
    /// As [`Network::new`].
    #[track_caller]
    pub(crate) fn new(nodes: usize) -> Result<Self, Skipped> {
        Self::with(Addresses::V4, &vec![0; nodes])
    }

    /// As [`Network::with`].
    #[track_caller]
    pub(crate) fn with(addresses: Addresses, ahead: &[i64]) -> Result<Self, Skipped> {
        let network = Network::with(addresses, ahead)?;
        let scene = Scene::new();
        write_secret(&scene.path("secret"), "0123456789abcdef0123456789abcdef");
        Ok(Self { network, scene })
    }

    /// Returns the command `dtrain launch ARGS`. Without the flag of the secret, anyone may join.
    pub(crate) fn command(&self, args: &[impl AsRef<OsStr>]) -> Command {
        let mut command = self.scene.command(args);
        command.env(DTRAIN_RDZV_SECRET, "none");
        command
    }

    /// Starts `dtrain launch ARGS` on a node, with a lease of 1 s unless the arguments set another.
    pub(crate) fn start_with(&self, node: usize, args: &[&str]) -> Launch<'_> {
        let command = self.command(&with_short_lease(args));
        self.scene.start_as(&format!(".n{node}"), self.network[node].enter(&command))
    }

    /// Starts `dtrain launch --nnodes N FLAGS -- sh -c SCRIPT` on a node, with the endpoint and the secret.
    pub(crate) fn start(&self, node: usize, nnodes: &str, flags: &[&str], script: &str) -> Launch<'_> {
        let before = ["--nnodes", nnodes, "--rdzv-endpoint", ENDPOINT, "--rdzv-secret", "secret"];
        self.start_with(node, &[&before, flags, &["--", "sh", "-c", script]].concat())
    }

    /// As [`Cluster::start`], on each node.
    pub(crate) fn start_all(&self, nnodes: &str, flags: &[&str], script: &str) -> Vec<Launch<'_>> {
        (0..self.network.nodes().len()).map(|node| self.start(node, nnodes, flags, script)).collect()
    }

    /// As [`Cluster::start_all`] for as many nodes as there are, and waits until all workers of [`WORK`] are ready.
    #[track_caller]
    pub(crate) fn work(&self, flags: &[&str]) -> Vec<Launch<'_>> {
        let nodes = self.network.nodes().len();
        let launches = self.start_all(&nodes.to_string(), flags, WORK);
        self.wait_for_workers(0..nodes, 0);
        launches
    }

    /// Waits until these ranks of [`WORK`] are ready in the attempt.
    #[track_caller]
    pub(crate) fn wait_for_workers(&self, ranks: impl IntoIterator<Item = usize>, attempt: u32) {
        for rank in ranks {
            let file = self.scene.path(&format!("ready.{rank}.{attempt}"));
            wait_until(&format!("rank {rank} to be ready in attempt {attempt}"), || file.exists());
        }
    }

    /// Ends the workers of [`WORK`] with exit code 0.
    pub(crate) fn finish_work(&self) {
        fs::write(self.scene.path("go"), "").unwrap();
    }

    /// Returns the process of a rank of [`WORK`].
    #[track_caller]
    pub(crate) fn worker(&self, rank: usize) -> u32 {
        let text = self.scene.read(&format!("pid.{rank}"));
        text.trim().parse().unwrap()
    }

    /// Returns the launcher below the guardian on a node.
    #[track_caller]
    pub(crate) fn launcher(&self, node: usize) -> u32 {
        let here = self.network[node].processes();
        self.scene.launcher().into_iter().find(|pid| here.contains(pid)).expect("a launcher")
    }

    /// Sends a rank of [`WORK`] a signal.
    #[track_caller]
    pub(crate) fn signal_worker(&self, rank: usize, number: Signal) {
        signal(self.worker(rank), number);
    }

    /// Waits for the end of all launchers, and fails if a process is left on a node.
    #[track_caller]
    pub(crate) fn wait<'a>(&'a self, launches: impl IntoIterator<Item = Launch<'a>>) -> Vec<Finished> {
        let done = launches.into_iter().map(Launch::wait_leaving_processes).collect();
        self.network.wait_until_empty();
        done
    }

    /// Ends the workers of [`WORK`], and expects exit code 0 of all launchers.
    #[track_caller]
    pub(crate) fn finish<'a>(&'a self, launches: impl IntoIterator<Item = Launch<'a>>) -> Vec<Finished> {
        self.finish_work();
        let done = self.wait(launches);
        expect_codes(&done, 0);
        done
    }

    /// Fails if an attempt wrote after a later one had begun.
    #[track_caller]
    pub(crate) fn expect_one_writer(&self) {
        let text = self.scene.read("written");
        let attempts: Vec<u32> =
            text.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect();
        assert!(attempts.is_sorted(), "two attempts wrote at once:\n{text}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in self.network.nodes() {
                let text = fs::read_to_string(self.scene.path(&format!(".{}.err", node.name)));
                eprintln!("standard error of {}:\n{}", node.name, text.unwrap_or_default());
            }
        }
    }
}

/// Adds a lease of 1 s to the settings of a command line, so that tests of lost nodes take no longer than needed.
pub(crate) fn with_short_lease(args: &[&str]) -> Vec<String> {
    const SHORT: &str = "keep_alive_max_attempt=5";
    let mut args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    match args.iter().position(|arg| arg == "--rdzv-conf") {
        Some(at) if args[at + 1].contains("keep_alive") => {}
        Some(at) => args[at + 1] += &format!(",{SHORT}"),
        None => args.splice(0..0, ["--rdzv-conf".to_owned(), SHORT.to_owned()]).for_each(drop),
    }
    args
}

/// Writes a secret that others cannot read.
pub(crate) fn write_secret(path: &Path, secret: &str) {
    fs::write(path, secret).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Fails if the launchers did not all end with this code.
#[track_caller]
pub(crate) fn expect_codes(done: &[Finished], code: i32) {
    let codes: Vec<_> = done.iter().map(|done| done.code).collect();
    let text: String = done.iter().enumerate().map(|(n, done)| format!("n{n}:\n{}\n", done.stderr)).collect();
    assert!(codes.iter().all(|found| *found == Some(code)), "{codes:?} instead of {code}:\n{text}");
}

/// Returns how many of the launchers' messages contain the text.
pub(crate) fn count_lines(done: &[Finished], text: &str) -> usize {
    done.iter().flat_map(|done| done.stderr.lines()).filter(|line| line.contains(text)).count()
}
