//! Stops at random moments: `cargo xtask soak --case stops` tries many.

use crate::harness::{Cluster, ENDPOINT, expect_codes};
use dtrain_test_kit::process::{Signal, kill, repeat};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// Writes a checkpoint for some time when asked to stop, and ends with code 0.
const PROGRAM: &str = r#"
    trap 'sleep $SAVE; echo "$RANK" >> "$TEST_DIR/saved"; exit 0' TERM
    : > "$TEST_DIR/ready.$RANK.0"
    while :; do sleep 0.05 || :; done"#;

/// As the trainer: when one rank is asked to stop, all write the checkpoint.
const TRAINING: &str = r#"
    trap ': > "$TEST_DIR/stop"' TERM
    : > "$TEST_DIR/ready.$RANK.0"
    until [ -e "$TEST_DIR/stop" ]; do sleep 0.05 || :; done
    trap '' TERM
    sleep $SAVE
    echo "$RANK" >> "$TEST_DIR/saved"
    exit 75"#;

/// A stop: which processes get a signal and when, and how long a checkpoint takes.
#[derive(Debug)]
struct Plan {
    nodes: usize,
    is_training: bool,
    /// Node, and whether its launcher gets the signal and not its guardian.
    first: (usize, bool),
    /// The gap to the signal of another node.
    other: Option<((usize, bool), Duration)>,
    /// The gap from the first signal of the first node to its second.
    again: Option<Duration>,
    save: Duration,
}

impl Plan {
    fn new(number: usize) -> Self {
        let mut draws = 0;
        let mut below = |bound: u64| {
            draws += 1;
            let mut hasher = DefaultHasher::new();
            (number, draws).hash(&mut hasher);
            hasher.finish() % bound
        };
        let nodes = 2 + below(2) as usize;
        let first = below(nodes as u64) as usize;
        let other = (first + 1 + below(nodes as u64 - 1) as usize) % nodes;
        let ms = Duration::from_millis;
        Self {
            nodes,
            is_training: below(2) == 0,
            first: (first, below(2) == 0),
            other: (below(3) > 0).then(|| ((other, below(2) == 0), ms(below(5000)))),
            again: (below(4) == 0).then(|| ms(400 + below(4000))),
            save: ms(below(3000)),
        }
    }

    /// Returns the signals in their order, with the time from the first.
    fn signals(&self) -> Vec<(Duration, (usize, bool))> {
        let mut signals = vec![(Duration::ZERO, self.first)];
        signals.extend(self.other.map(|(other, gap)| (gap, other)));
        signals.extend(self.again.map(|gap| (gap, self.first)));
        signals.sort();
        signals
    }
}

#[test]
fn stops_at_random_moments_lose_no_checkpoint() {
    repeat(4, |number| {
        let plan = Plan::new(number);
        let Ok(cluster) = Cluster::new(plan.nodes) else { return };
        let nnodes = plan.nodes.to_string();
        let flags = ["--nnodes", &nnodes, "--rdzv-endpoint", ENDPOINT, "--rdzv-secret", "secret"];
        let (script, rest, code): (_, &[&str], _) = match plan.is_training {
            true => (TRAINING, &["--nproc", "1", "--run-dir", "run", "demo"], 75),
            false => (PROGRAM, &["--nproc", "1", "--", "sh", "-c", PROGRAM], 128 + 15),
        };
        let start = |node: usize| {
            let mut command = cluster.scene.command(&[&flags, rest].concat());
            command.env("FAKE_WORKER", script).env("SAVE", plan.save.as_secs_f64().to_string());
            cluster.scene.start_as(&format!(".n{node}"), cluster.network[node].enter(&command))
        };
        let launches: Vec<_> = (0..plan.nodes).map(start).collect();
        cluster.wait_for_workers(0..plan.nodes, 0);
        let guardians: Vec<u32> = launches.iter().map(|launch| launch.child.id()).collect();
        let launchers: Vec<u32> = (0..plan.nodes).map(|node| cluster.launcher(node)).collect();
        let begun = Instant::now();
        for (at, (node, is_direct)) in plan.signals() {
            std::thread::sleep(at.saturating_sub(begun.elapsed()));
            let pid = if is_direct { launchers[node] } else { guardians[node] };
            // The process may have ended before.
            if cluster.network[node].processes().contains(&pid) {
                kill(pid, Signal::TERM);
            }
        }
        let done = cluster.wait(launches);
        if plan.again.is_some() {
            // The workers may have been killed, and every launcher ends alike.
            let ended = done[0].code.unwrap();
            assert!([75, 128 + 15].contains(&ended), "{plan:?}: {ended}\n{}", done[0].stderr);
            return expect_codes(&done, ended);
        }
        eprintln!("{number}: {plan:?}");
        expect_codes(&done, code);
        let mut saved: Vec<_> = cluster.scene.read("saved").lines().map(str::to_owned).collect();
        saved.sort();
        let ranks: Vec<_> = (0..plan.nodes).map(|rank| rank.to_string()).collect();
        assert_eq!(saved, ranks, "{plan:?}");
    });
}
