//! Copies of the state in memory on several nodes: workers with the environment of nodes, which are this
//! machine, and a folder of copies for each node.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dtrain_common::env::{DTRAIN_MEMORY_COPIES, WorkerEnv};
use dtrain_common::memory_copies::{COPY, FILES, SLOTS, clear, mark, marks};
use dtrain_test_kit::thorough;
use dtrain_tests::process::{output_text, wait_until};
use dtrain_tests::programs::{without_outer_run, worker};
use dtrain_tests::ranks::{node_environments, start, wait};
use dtrain_tests::runs::{Run, Sandbox, assert_close, gpt};

use super::nodes::{checkpoint_files, expect_success};

const LIMIT: Duration = Duration::from_secs(120);
/// Many more than ranks take until they are killed, also on a busy machine.
const STEPS: usize = 120;
/// The steps after which ranks are killed: more than the steps between two checkpoints.
const KILLED: usize = 18;

const MEMORY: &str = r#"
[memory]
shard_optimizer = SHARD
[ema]
decay = 0.9
[checkpoint]
every = "16 steps"
in_memory = true
"#;

/// Several attempts of one training. A node is a number; it has `copies-N` for its copies.
struct Training {
    sandbox: Sandbox,
    /// The steps of attempts that nothing kills: a few more than the killed ones took.
    steps: usize,
}

impl Training {
    fn new(shards: bool) -> Self {
        let recipe = gpt(STEPS as u64, &MEMORY.replace("SHARD", &shards.to_string()));
        // The number of steps must not change the learning rate.
        let recipe = recipe.replace("lr = 0.01", "lr = 0.01\nschedule = { name = \"constant\" }");
        let sandbox = Sandbox::new(&recipe.replace("effective_batch = 8", "effective_batch = 12"));
        Self { sandbox, steps: STEPS }
    }

    fn slot(&self, node: usize, slot: usize) -> std::path::PathBuf {
        self.sandbox.path(&format!("copies-{node}")).join(SLOTS[slot])
    }

    /// Returns the steps that attempts have taken.
    fn taken(&self) -> usize {
        let text = fs::read_to_string(self.sandbox.path("run/metrics.jsonl")).unwrap_or_default();
        let is_step = |line: &&str| line.contains("\"loss\"") && !line.contains("\"eval\"");
        text.lines().filter(is_step).count()
    }

    /// Starts an attempt of `steps` steps. Each of `nodes` has its number and its number of ranks.
    fn start(&self, run: &str, nodes: &[(usize, usize)], steps: usize) -> Vec<std::process::Child> {
        for (node, _) in nodes {
            for slot in (0..SLOTS.len()).map(|slot| self.slot(*node, slot)) {
                fs::create_dir_all(&slot).unwrap();
                for name in FILES.map(|name| slot.join(name)).iter().filter(|path| !path.exists()) {
                    fs::write(name, "").unwrap();
                }
            }
        }
        let sizes: Vec<usize> = nodes.iter().map(|(_, ranks)| *ranks).collect();
        start(&node_environments(&sizes), |env: &WorkerEnv| {
            let mut command = Command::new(worker());
            without_outer_run(&mut command);
            command.env("CUDA_VISIBLE_DEVICES", "").current_dir(self.sandbox.path(""));
            let copies = format!("copies-{}", nodes[env.group_rank].0);
            command.env(DTRAIN_MEMORY_COPIES, self.sandbox.path(&copies));
            command.args(["recipe.toml", "--run-dir", run, "--set", &format!("train.steps={steps}")]);
            command
        })
    }

    /// Starts an attempt and kills its ranks after at least `steps` steps.
    fn killed_after(mut self, steps: usize, nodes: &[(usize, usize)]) -> Self {
        let mut ranks = self.start("run", nodes, STEPS);
        wait_until("some steps", || self.taken() >= steps);
        // The ranks of other nodes first: those of the leader's node may be a step ahead.
        ranks.iter_mut().rev().for_each(|rank| rank.kill().unwrap());
        wait(ranks, LIMIT);
        self.steps = self.taken() + 6;
        self
    }

    /// Finishes the run with an attempt; returns rank 0's output.
    fn finished_by(&self, nodes: &[(usize, usize)]) -> String {
        let outputs = wait(self.start("run", nodes, self.steps), LIMIT);
        expect_success(&outputs);
        output_text(&outputs[0])
    }

    /// Trains without a disturbance.
    fn whole(&self, nodes: &[usize]) -> Run {
        let other = Self { sandbox: Sandbox::new(""), steps: self.steps };
        fs::copy(self.sandbox.path("recipe.toml"), other.sandbox.path("recipe.toml")).unwrap();
        let nodes: Vec<(usize, usize)> = nodes.iter().copied().enumerate().collect();
        expect_success(&wait(other.start("whole", &nodes, self.steps), LIMIT));
        fs::rename(other.sandbox.path("whole"), self.sandbox.path("whole")).unwrap();
        self.sandbox.run("whole")
    }
}

/// Returns the line about the resume, and the step if it is from memory.
#[track_caller]
fn resumed(text: &str) -> (&str, Option<usize>) {
    let line = text.lines().find(|line| line.contains("resumed from ")).unwrap_or_else(|| panic!("{text}"));
    let step = line.split("after step ").nth(1).and_then(|rest| rest.trim().parse().ok());
    (line, step.filter(|_| line.contains("in memory of ")))
}

/// Copies the contents of a folder, with its symbolic links, over those of another one.
fn copy_all(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().unwrap();
    assert!(copied.success());
}

#[test]
fn a_replaced_node_costs_no_step() {
    // Shards or none, the ranks of nodes, and the nodes that are replaced by empty ones.
    type Case<'a> = (bool, &'a [usize], &'a [usize]);
    let cases: [Case<'_>; 8] = [
        (true, &[1, 2, 1], &[1]),
        (false, &[1, 1], &[1]),
        (false, &[1, 2, 1], &[1, 2]),
        (true, &[1, 1, 1, 1], &[1, 3]),
        (true, &[1, 1], &[1]),
        (true, &[1, 1, 1], &[1]),
        (true, &[1, 1, 1], &[2]),
        (true, &[2, 1, 1], &[2]),
    ];
    for &(shards, ranks, lost) in thorough::cases(&cases, 2) {
        let case = format!("shards {shards}, {ranks:?} without {lost:?}");
        let nodes: Vec<(usize, usize)> = ranks.iter().copied().enumerate().collect();
        let training = Training::new(shards).killed_after(KILLED, &nodes);
        let replaced =
            nodes.iter().map(|(node, ranks)| (node + 10 * usize::from(lost.contains(node)), *ranks));
        let text = training.finished_by(&replaced.collect::<Vec<_>>());
        let (line, step) = resumed(&text);
        assert!(step.is_some_and(|step| step >= KILLED - 1), "{case}: {line}");
        // Without shards, each node has all.
        let has_sources = shards && nodes.len() - lost.len() > 1;
        assert_eq!(line.contains("copies in memory of "), has_sources, "{case}: {line}");
        let (run, whole) = (training.sandbox.run("run"), training.whole(ranks));
        assert_eq!(run.per_step("loss"), whole.per_step("loss"), "{case}");
        let files = |run: &Run| checkpoint_files(&run.0.latest());
        assert!(files(&run) == files(&whole), "{case}: the checkpoints differ");
    }
}

#[test]
fn other_numbers_of_ranks_resume_from_the_copies() {
    type Nodes<'a> = &'a [(usize, usize)];
    let cases: [[Nodes<'_>; 2]; 3] = [
        [&[(0, 1), (1, 1), (2, 1)], &[(0, 1), (2, 1)]],
        [&[(0, 2), (1, 1)], &[(0, 2), (1, 1), (2, 1)]],
        [&[(0, 1), (1, 1)], &[(0, 2)]],
    ];
    for &[before, after] in thorough::cases(&cases, 1) {
        let training = Training::new(true).killed_after(KILLED, before);
        let text = training.finished_by(after);
        let line = text.lines().find(|line| line.contains("resumed from the cop")).unwrap();
        assert!(line.contains("in memory"), "{line}");
        let (run, whole) = (training.sandbox.run("run"), training.whole(&[1]));
        assert_close(&run.per_step("loss"), &whole.per_step("loss"), 1e-3);
    }
}

/// Tears the newer copy of node 2. Returns the step of the older one, if a run can resume from it.
fn tear_newer_copy(training: &Training) -> Option<usize> {
    let newest = (0..2).max_by_key(|slot| marks(&training.slot(0, *slot)).unwrap()[0]).unwrap();
    // A slot that was being written is whole at no step.
    let older = marks(&training.slot(0, 1 - newest)).unwrap()[0] as usize;
    let is_whole = older > 0 && older == marks(&training.slot(2, 1 - newest)).unwrap()[2] as usize;
    let is_newest = training.sandbox.run("run").0.steps().unwrap().iter().all(|step| *step < older as u64);
    clear(&training.slot(2, newest)).unwrap();
    Some(older).filter(|_| is_whole && is_newest)
}

/// Each disturbance leaves fewer copies than a resume needs, or copies that do not belong together. It returns the step
/// of an older copy that the run resumes from.
#[test]
fn torn_and_stale_copies_are_refused() {
    type Case<'a> = (&'a str, [(usize, usize); 3], fn(&Training) -> Option<usize>);
    let cases: [Case<'_>; 6] = [
        ("the newer copy is torn", [(0, 1), (11, 1), (2, 1)], tear_newer_copy),
        ("rank 0's copies are torn", [(0, 1), (1, 1), (2, 1)], |training| {
            (0..2).for_each(|slot| mark(&training.slot(0, slot), 0, 0).unwrap());
            None
        }),
        ("the kept shard is of another attempt", [(0, 1), (11, 1), (2, 1)], |training| {
            for path in (0..2).map(|slot| training.slot(2, slot).join(COPY)) {
                let text = fs::read_to_string(&path).unwrap();
                let own = text.split("\"attempt\":").nth(1).unwrap().split(',').next().unwrap();
                fs::write(&path, text.replace(own, "1")).unwrap();
            }
            None
        }),
        ("two neighbours are lost", [(0, 1), (11, 1), (12, 1)], |_| None),
        ("the kept shard is torn", [(0, 1), (11, 1), (2, 1)], |training| {
            (0..2).for_each(|slot| mark(&training.slot(2, slot), 1, 0).unwrap());
            None
        }),
        ("the kept shard is of another step", [(0, 1), (11, 1), (2, 1)], |training| {
            for slot in (0..2).map(|slot| training.slot(2, slot)) {
                let step = marks(&slot).unwrap()[2];
                (1..3).for_each(|rank| mark(&slot, rank, step + 2).unwrap());
            }
            None
        }),
    ];
    // All cases begin with what one killed attempt has left.
    let training = Training::new(true).killed_after(KILLED, &[(0, 1), (1, 1), (2, 1)]);
    let left = tempfile::tempdir().unwrap();
    copy_all(&training.sandbox.path(""), left.path());
    let whole = training.whole(&[1, 1, 1]).weights();
    for &(case, after, disturb) in thorough::cases(&cases, 3) {
        fs::remove_dir_all(training.sandbox.path("run")).unwrap();
        (0..20).for_each(|node| drop(fs::remove_dir_all(training.sandbox.path(&format!("copies-{node}")))));
        copy_all(left.path(), &training.sandbox.path(""));
        let older = disturb(&training);
        let text = training.finished_by(&after);
        let (line, step) = resumed(&text);
        assert_eq!(step, older, "{case}: {line}");
        assert!(step.is_some() || line.contains("step-000000"), "{case}: {line}");
        assert!(training.sandbox.run("run").weights() == whole, "{case}: the weights differ");
    }
}

/// A node that was away comes back with copies of a step that others have passed.
#[test]
fn copies_of_a_node_that_was_away_are_not_used() {
    let training = Training::new(true).killed_after(KILLED, &[(0, 1), (1, 1), (2, 1)]);
    // Node 1 is away in the second attempt.
    let training = training.killed_after(2 * KILLED, &[(0, 1), (11, 1), (2, 1)]);
    let text = training.finished_by(&[(0, 1), (1, 1), (2, 1)]);
    let (line, step) = resumed(&text);
    assert!(step.is_some_and(|step| step >= 2 * KILLED - 1), "{line}");
    assert!(training.sandbox.run("run").weights() == training.whole(&[1, 1, 1]).weights());
}
