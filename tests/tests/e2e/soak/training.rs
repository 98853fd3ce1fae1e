//! One training with its faults, and the comparison with undisturbed ones.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use dtrain_common::manifest::Manifest;
use dtrain_common::run_dir::RunDir;
use dtrain_test_kit::faults::{Fault, Kind, Moment};
use dtrain_test_kit::need::Skipped;
use dtrain_test_kit::network::{Addresses, Network};
use dtrain_test_kit::scene::Scene;
use dtrain_tests::runs::{Run, gpt};
use safetensors::SafeTensors;

use super::cluster::{self, Cluster};
use super::inject::{self, Lasting};
use super::plan::{Plan, effect, explains};
use super::watch::Watch;

/// The time for one training on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);
/// The time between two looks at everything.
const LOOK: Duration = Duration::from_millis(20);

const STEPS: u64 = 400;
const CHECKPOINTS: &str = "[checkpoint]\nevery = \"20 steps\"\n";
/// Amplifies differences of rounding less than Adam.
const OPTIMIZER: &str = "name = \"sgd\"\nmomentum = 0.9\nlr = ";

/// The largest difference of weights if rounding differs, as a multiple of that between undisturbed trainings
/// with two and with three ranks, 4e-7. One step changes a weight by 3e-3.
const ROUNDING: f64 = 10.0;

/// Exit codes of agents in a disturbed run: killed, success, a node lost after SIGTERM, not joined, stopped,
/// killed, SIGTERM.
const CODES: [Option<i32>; 7] = [None, Some(0), Some(4), Some(5), Some(75), Some(137), Some(143)];

/// Undisturbed trainings.
pub(super) struct References {
    two: Run,
    three: Run,
    /// The recipe of three nodes, on two.
    two_of_three: Run,
    _scenes: [Scene; 3],
}

/// The end of a disturbed training.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) faults: Vec<Fault>,
    /// Exit codes of all agents by node.
    pub(super) codes: Vec<Vec<String>>,
    /// Epochs whose workers were started.
    pub(super) epochs: usize,
    /// Reports of the leaders that name a node.
    pub(super) reports: usize,
    /// The largest difference of weights, if the ranks may have changed.
    pub(super) difference: Option<f64>,
    pub(super) problems: Vec<String>,
}

impl References {
    /// Trains.
    pub(super) fn train() -> Result<Self, Skipped> {
        let train = |nodes: usize, recipe_nodes: usize| {
            let quiet = Plan { is_elastic: false, admits: false, faults: Vec::new(), ..Plan::new(0) };
            let plan = Plan { nodes, clocks: vec![0; nodes], ..quiet };
            let (scene, network) = (scene(nodes), Network::new(nodes)?);
            let args = args(&plan, Plan { nodes: recipe_nodes, ..plan.clone() }.micro_batch());
            let mut cluster = Cluster::new(&scene, &network, &plan, &args);
            let begun = Instant::now();
            while !cluster.is_over() {
                assert!(begun.elapsed() < LIMIT, "the undisturbed training does not end");
                cluster.poll();
                sleep(LOOK);
            }
            for agent in &cluster.agents {
                assert_eq!(agent.ended.len(), 1, "{}", agent.ended[0].stderr);
            }
            eprintln!("undisturbed training on {nodes} nodes: {:.1} s", begun.elapsed().as_secs_f64());
            drop(cluster);
            Ok((run(&scene), scene))
        };
        let [(two, a), (three, b), (two_of_three, c)] = [train(2, 2)?, train(3, 3)?, train(2, 3)?];
        Ok(Self { two, three, two_of_three, _scenes: [a, b, c] })
    }

    /// Returns the largest difference of weights between two and three ranks.
    pub(super) fn rounding(&self) -> f64 {
        difference(&self.two_of_three.weights(), &self.three.weights())
    }
}

fn args(plan: &Plan, micro_batch: usize) -> Vec<String> {
    let admit = if plan.admits { "checkpoint" } else { "restart" };
    let text = format!(
        "--nproc-per-node 1 --nnodes {} --rdzv-endpoint n0:29500 --max-restarts 1000 --run-dir run \
         --rdzv-conf join_timeout=20,last_call_timeout=2,admit={admit} \
         --set memory.micro_batch={micro_batch} recipe.toml",
        plan.nnodes()
    );
    text.split(' ').map(str::to_owned).collect()
}

fn scene(nodes: usize) -> Scene {
    let scene = Scene::new();
    for node in 0..nodes {
        let folder = scene.path(&format!("node-{node}"));
        fs::create_dir(&folder).unwrap();
        let recipe = gpt(STEPS, CHECKPOINTS).replace("effective_batch = 8", "effective_batch = 12");
        let recipe = recipe.replace("lr = ", OPTIMIZER);
        fs::write(folder.join("recipe.toml"), recipe).unwrap();
    }
    scene
}

fn run(scene: &Scene) -> Run {
    Run(RunDir::new(scene.path("node-0/run")))
}

/// A training, its faults so far, and the reports of its leaders.
struct Training<'a> {
    cluster: Cluster<'a>,
    begun: Instant,
    injected: Vec<(Instant, Fault)>,
    lasting: Vec<Lasting>,
    watch: Watch,
    /// The number of nodes blamed by the leader that runs now, and by all.
    blamed: usize,
    reports: usize,
    problems: Vec<String>,
}

/// Trains with the faults of the plan. Keeps the files of a training that fails.
pub(super) fn disturb(plan: &Plan, references: &References) -> Outcome {
    let network = Network::with(Addresses::V4, &plan.clocks).unwrap();
    let scene = scene(plan.nodes);
    let args = args(plan, plan.micro_batch());
    let mut training = Training {
        cluster: Cluster::new(&scene, &network, plan, &args),
        begun: Instant::now(),
        injected: Vec::new(),
        lasting: Vec::new(),
        watch: Watch::default(),
        blamed: 0,
        reports: 0,
        problems: Vec::new(),
    };
    training.train(&plan.faults);
    let Training { cluster, injected, watch, reports, mut problems, .. } = training;
    problems.extend(watch.violations);
    let mut difference = None;
    if cluster.is_over() {
        network.wait_until_empty();
        difference = compare(plan, &run(&scene), references, &mut problems);
    }
    let code = |code: Option<i32>| code.map_or("-".to_owned(), |code| code.to_string());
    let ended = cluster.agents.iter().map(|agent| agent.ended.iter().map(|done| code(done.code)).collect());
    let epochs = cluster.agents[0].ended.iter().map(|done| cluster::started(&done.stderr)).sum();
    if !problems.is_empty() {
        problems.push(format!("files are in {}", cluster::keep(&scene, plan.seed).display()));
    }
    let faults = injected.into_iter().map(|(_, fault)| fault).collect();
    Outcome { faults, codes: ended.collect(), epochs, reports, difference, problems }
}

impl Training<'_> {
    fn train(&mut self, faults: &[Fault]) {
        let mut faults = faults.iter().copied().peekable();
        while !self.cluster.is_over() {
            self.cluster.poll();
            inject::poll(&self.cluster, &mut self.lasting);
            self.watch.look(self.cluster.scene);
            self.check_blame();
            let last = self.injected.last().map_or(self.begun, |(at, _)| *at);
            let due = faults
                .peek()
                .copied()
                .filter(|it| matches!(it.moment, Moment::Pause(pause) if last.elapsed() >= pause));
            let due = due.filter(|_| !self.cluster.has_succeeded());
            // If the node has no such process now, later.
            if let Some(fault) = due.filter(|it| inject::inject(&self.cluster, *it, &mut self.lasting)) {
                eprintln!("  {:6.2} s: {fault}", self.begun.elapsed().as_secs_f64());
                self.injected.push((Instant::now(), fault));
                faults.next();
            }
            if self.begun.elapsed() > LIMIT {
                return self.problems.push(format!("the run has not ended within {LIMIT:?}"));
            }
            sleep(LOOK);
        }
        self.check_codes();
    }

    /// Checks that nodes that the leader has blamed since the last call were disturbed.
    fn check_blame(&mut self) {
        let Some(leader) = &self.cluster.agents[0].launch else {
            self.blamed = 0;
            return;
        };
        let blamed = cluster::blamed(&leader.stderr());
        for node in blamed.iter().skip(self.blamed) {
            self.reports += 1;
            let is_cause =
                |(at, fault): &(Instant, Fault)| explains(fault, *node) && at.elapsed() < effect(fault);
            if !self.injected.iter().any(is_cause) {
                let time = self.begun.elapsed().as_secs_f64();
                self.problems.push(format!("n{node} is blamed after {time:.2} s, and was not disturbed"));
            }
        }
        self.blamed = blamed.len();
    }

    /// Checks the agents' exit codes. Without a late fault, all agents end with success.
    fn check_codes(&mut self) {
        let is_stopped = self.injected.iter().any(|(_, fault)| fault.kind == Kind::Terminate);
        let is_quiet = self.injected.iter().all(|(at, fault)| at.elapsed() > effect(fault));
        for (node, agent) in self.cluster.agents.iter().enumerate() {
            let is_wrong = |code| !CODES.contains(&code) || (code == Some(4) && !is_stopped);
            for done in agent.ended.iter().filter(|done| is_wrong(done.code)) {
                self.problems.push(format!("n{node} ended with code {:?}", done.code));
            }
            let last = agent.ended.last().and_then(|done| done.code);
            if is_quiet && last != Some(0) {
                self.problems.push(format!("n{node} ended with code {last:?} although the run succeeded"));
            }
        }
    }
}

/// Compares the run with the undisturbed one. Returns the difference of weights if the ranks may have changed.
fn compare(plan: &Plan, run: &Run, references: &References, problems: &mut Vec<String>) -> Option<f64> {
    let latest = run.0.latest();
    if let Err(error) = Manifest::read(&latest).and_then(|manifest| manifest.verify(&latest)) {
        problems.push(format!("the last checkpoint is damaged: {error}"));
    }
    if run.result().exit_code != Some(0) {
        problems.push(format!("result.json has exit code {:?}", run.result().exit_code));
    }
    let reference = if plan.nodes == 2 { &references.two } else { &references.three };
    let (weights, losses) = (run.weights(), run.per_step("loss"));
    if plan.is_exact() {
        if weights != reference.weights() {
            problems.push("the weights differ".to_owned());
        }
        if losses != reference.per_step("loss") {
            problems.push("the losses differ".to_owned());
        }
        return None;
    }
    let usual = references.rounding();
    let found = difference(&weights, &reference.weights());
    if found > ROUNDING * usual {
        problems.push(format!("the weights differ by {found:e}, by rounding alone {usual:e}"));
    }
    if losses.len() != reference.per_step("loss").len() {
        problems.push(format!("{} steps are recorded", losses.len()));
    }
    Some(found)
}

/// Returns the largest difference of two files of weights.
fn difference(one: &[u8], other: &[u8]) -> f64 {
    let load = |bytes: &[u8]| -> Vec<f32> {
        let tensors = SafeTensors::deserialize(bytes).unwrap();
        let mut names = tensors.names();
        names.sort_unstable();
        let bytes: Vec<u8> =
            names.iter().flat_map(|name| tensors.tensor(name).unwrap().data().to_vec()).collect();
        bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
    };
    let (one, other) = (load(one), load(other));
    assert_eq!(one.len(), other.len());
    one.iter().zip(&other).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
}
