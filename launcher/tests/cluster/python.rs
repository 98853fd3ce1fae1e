//! Scripts written for torchrun, on several nodes.

use crate::harness::{Cluster, ENDPOINT, Finished, expect_codes};
use dtrain_test_kit::need;
use std::path::Path;

fn objects(done: &[Finished]) -> Vec<serde_json::Value> {
    let text: String = done.iter().map(Finished::stdout).collect();
    let objects = text.lines().filter_map(|line| line.find('{').map(|start| &line[start..]));
    let mut objects: Vec<serde_json::Value> =
        objects.map(|object| serde_json::from_str(object).unwrap()).collect();
    objects.sort_by_key(|answer| answer["rank"].as_u64());
    for object in &mut objects {
        // It differs between one node and several.
        object.as_object_mut().unwrap().remove("local_rank");
    }
    objects
}

/// Runs the DDP script with these flags on each node, and returns what the ranks printed.
#[track_caller]
fn train(python: &Path, cluster: &Cluster, flags: impl Fn(usize) -> Vec<String>) -> Vec<serde_json::Value> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/bench");
    let start = |node| {
        let mut args = flags(node);
        let script = scripts.join("ddp_script.py");
        args.extend(
            ["--", python.to_str().unwrap(), script.to_str().unwrap(), "--steps", "5"].map(str::to_owned),
        );
        let mut command = cluster.command(&args);
        command.env("OMP_NUM_THREADS", "1").env("PYTHONDONTWRITEBYTECODE", "1");
        cluster.scene.start_as(&format!(".n{node}"), cluster.network[node].enter(&command))
    };
    let launches: Vec<_> = (0..cluster.network.nodes().len()).map(start).collect();
    let done = cluster.wait(launches);
    expect_codes(&done, 0);
    objects(&done)
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn distributed_data_parallel_trains_on_several_nodes() {
    let (Ok(python), Ok(two), Ok(one)) = (need::pytorch(), Cluster::new(2), Cluster::new(1)) else { return };
    let forms: [&dyn Fn(usize) -> Vec<String>; 2] = [
        &|_| {
            words(&format!(
                "--nnodes 2 --nproc-per-node 1 --rdzv-id 7 --rdzv-backend c10d --rdzv-endpoint {ENDPOINT}"
            ))
        },
        &|node| {
            words(&format!(
                "--nnodes 2 --nproc-per-node 1 --node-rank {node} --master-addr n0 --master-port 29600"
            ))
        },
    ];
    let alone = train(&python, &one, |_| words("--nproc-per-node 2"));
    assert_eq!(alone.len(), 2, "{alone:?}");
    for form in forms {
        assert_eq!(train(&python, &two, form), alone);
    }
}
