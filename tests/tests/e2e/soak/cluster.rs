//! Starts the agents of a run, and starts those again that have failed, as a batch system does.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use dtrain_common::env::DTRAIN_WORKER;
use dtrain_test_kit::network::Network;
use dtrain_test_kit::programs;
use dtrain_test_kit::scene::{Finished, Launch, Scene};

use super::plan::Plan;

/// From the end of an agent to its next start.
const PAUSE: Duration = Duration::from_millis(100);
/// The same after a code that a start at once may not change: the leader did not come, or refused the node.
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// The agent of a node.
pub(super) struct Agent<'a> {
    pub(super) launch: Option<Launch<'a>>,
    /// All agents of the node that have ended.
    pub(super) ended: Vec<Finished>,
    start_at: Instant,
}

/// All agents of a training.
pub(super) struct Cluster<'a> {
    pub(super) scene: &'a Scene,
    pub(super) network: &'a Network,
    pub(super) agents: Vec<Agent<'a>>,
    plan: &'a Plan,
    args: &'a [String],
}

impl<'a> Cluster<'a> {
    pub(super) fn new(scene: &'a Scene, network: &'a Network, plan: &'a Plan, args: &'a [String]) -> Self {
        let agent = |_| Agent { launch: None, ended: Vec::new(), start_at: Instant::now() };
        Self { scene, network, agents: (0..plan.nodes).map(agent).collect(), plan, args }
    }

    /// Collects ended agents and starts those that are due.
    pub(super) fn poll(&mut self) {
        for agent in &mut self.agents {
            let Some(mut launch) = agent.launch.take() else { continue };
            if launch.child.try_wait().unwrap().is_none() {
                agent.launch = Some(launch);
                continue;
            }
            let done = launch.wait_leaving_processes();
            agent.start_at = Instant::now() + if done.code == Some(5) { LONG_PAUSE } else { PAUSE };
            agent.ended.push(done);
        }
        if self.has_succeeded() {
            return;
        }
        let leader_runs = self.agents[0].launch.is_some();
        for node in 0..self.agents.len() {
            let agent = &self.agents[node];
            // The leader may fail after it has told a node that the run has succeeded.
            let waits = agent.succeeded() && leader_runs;
            if agent.launch.is_none() && Instant::now() >= agent.start_at && !waits {
                self.agents[node].launch = Some(self.start(node));
            }
        }
    }

    /// Returns whether the leader's agent has ended with success.
    pub(super) fn has_succeeded(&self) -> bool {
        self.agents[0].launch.is_none() && self.agents[0].succeeded()
    }

    /// Returns whether the run has succeeded and all agents have ended.
    pub(super) fn is_over(&self) -> bool {
        self.has_succeeded() && self.agents.iter().all(|agent| agent.launch.is_none())
    }

    /// Returns the folder in which the agent of a node runs.
    pub(super) fn folder(&self, node: usize) -> String {
        format!("node-{}", if self.plan.is_shared { 0 } else { node })
    }

    /// Returns the processes on a node among these.
    pub(super) fn on(&self, node: usize, pids: Vec<u32>) -> Vec<u32> {
        let here = self.network[node].processes();
        pids.into_iter().filter(|pid| here.contains(pid)).collect()
    }

    fn start(&self, node: usize) -> Launch<'a> {
        let mut command = programs::launch();
        command.env("CUDA_VISIBLE_DEVICES", "").env(DTRAIN_WORKER, programs::worker()).args(self.args);
        self.scene.mark(&mut command).current_dir(self.scene.path(&self.folder(node)));
        let name = format!("n{node}.{}", self.agents[node].ended.len());
        self.scene.start_as(&name, self.network[node].enter(&command))
    }
}

impl Agent<'_> {
    fn succeeded(&self) -> bool {
        self.ended.last().is_some_and(|done| done.code == Some(0))
    }
}

/// Returns the number of starts of workers that a leader reports.
pub(super) fn started(stderr: &str) -> usize {
    stderr.lines().filter(|line| line.starts_with("dtrain: started ")).count()
}

/// Returns the nodes that a leader blames, in order.
pub(super) fn blamed(stderr: &str) -> Vec<usize> {
    let host = |line: &str| {
        let text = match line.strip_prefix("dtrain: lost node ") {
            Some(text) => text,
            None => line.strip_prefix("dtrain: rank ")?.split_once(" failed after ")?.1.split_once(" on ")?.1,
        };
        text.strip_prefix('n')?.split(':').next()?.parse().ok()
    };
    stderr.lines().filter_map(host).collect()
}

/// Copies the files of a failed training to a folder that remains.
pub(super) fn keep(scene: &Scene, seed: u64) -> PathBuf {
    let folder = programs::build_folder().join(format!("soak-{seed}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::process::Command::new("cp").arg("-a").args([scene.path(""), folder.clone()]).status().unwrap();
    folder
}
