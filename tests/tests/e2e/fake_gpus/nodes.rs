//! Two nodes with two GPUs each.

use dtrain_test_kit::network::Network;
use dtrain_test_kit::scene::Launch;
use dtrain_tests::runs::gpt;

use super::Machine;

#[test]
fn two_nodes_train_and_resume_on_two_gpus_each() {
    let Ok(network) = Network::new(2) else { return };
    let recipe = gpt(4, "");
    // A machine has its own memory and its own two GPUs; both share the first one's folder.
    let (Ok(first), Ok(second)) = (Machine::new(2, &recipe), Machine::new(2, &recipe)) else { return };
    for (attempt, steps, begin) in [("start", "4", ""), ("resume", "6", "step-00000004 after step 4")] {
        let steps = format!("train.steps={steps}");
        let words = [
            "launch",
            "--nproc-per-node",
            "2",
            "--nnodes",
            "2",
            "--rdzv-endpoint",
            "n0:29500",
            "--rdzv-secret",
            "none",
            "--run-dir",
            "run",
            "--set",
            &steps,
            "recipe.toml",
        ];
        let start = |machine: &Machine, node: usize| {
            let mut command = machine.command(&words);
            first.sandbox.scene().mark(&mut command);
            command.env("FAKE_GPU_COUNTS", machine.counts_path(attempt));
            first.sandbox.scene().start_as(&format!(".{attempt}{node}"), network[node].enter(&command))
        };
        let launches = [start(&first, 0), start(&second, 1)];
        for (node, done) in launches.map(Launch::wait_leaving_processes).iter().enumerate() {
            assert_eq!(done.code, Some(0), "n{node}:\n{}", done.stderr);
            let has_begun = done.stderr.contains("gpt on 4 x GPU in ") && done.stderr.contains(begin);
            assert!(node != 0 || has_begun, "{}", done.stderr);
        }
        network.wait_until_empty();
        for machine in [&first, &second] {
            let workers = machine.expect_own_gpus(attempt, attempt);
            assert!(workers.iter().all(|counts| counts["collectives"].as_u64() > Some(4)), "{workers:?}");
        }
    }
    let result = first.sandbox.run("run").result();
    assert_eq!((result.steps, result.nodes), (Some(6), Some(2)), "{result:?}");
}
