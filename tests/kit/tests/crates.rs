//! Checks that dependencies between the workspace's packages only point downwards.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

/// Packages from bottom to top, each with the packages of the workspace that it may depend on.
const PACKAGES: &[(&str, &[&str])] = &[
    ("common", &[]),
    ("common/job", &["common"]),
    ("common/pmi", &[]),
    ("tests/kit", &["common"]),
    ("tests/fake-gpu", &["tests/kit"]),
    ("worker/shared-memory", &["common"]),
    ("worker/telemetry", &["common"]),
    ("worker/torch-shim", &["worker/shared-memory"]),
    ("worker/recipe", &["common"]),
    ("worker/data/resize", &[]),
    ("worker/data", &["common", "tests/kit", "worker/data/resize", "worker/recipe", "worker/shared-memory"]),
    ("worker/data/report", &["common", "worker/data", "worker/recipe"]),
    ("worker/data/layout", &["common", "worker/data", "worker/recipe"]),
    ("worker/models", &["common", "worker/recipe", "worker/torch-shim"]),
    ("worker/parts", &["worker/recipe", "worker/torch-shim"]),
    ("worker/collectives", &["common", "worker/shared-memory", "worker/torch-shim"]),
    (
        "worker",
        &[
            "common",
            "common/job",
            "common/pmi",
            "worker/collectives",
            "worker/data",
            "worker/data/report",
            "worker/data/layout",
            "worker/models",
            "worker/parts",
            "worker/recipe",
            "worker/shared-memory",
            "worker/telemetry",
            "worker/torch-shim",
        ],
    ),
    ("launcher/agent", &["common", "tests/kit"]),
    ("launcher/batch", &["common", "tests/kit"]),
    ("launcher", &["common", "common/job", "common/pmi", "launcher/agent", "launcher/batch", "tests/kit"]),
    ("worker/mpi", &["common", "worker", "worker/torch-shim"]),
    ("docs/examples/own-trainer", &["worker"]),
    ("tests", &["common", "common/pmi", "tests/kit", "worker", "worker/recipe", "worker/torch-shim"]),
    ("tests/mpi", &["tests", "worker/mpi", "worker/torch-shim"]),
    ("tests/xtask", &[]),
    ("tests/lab", &["common", "launcher/agent", "tests/kit", "tests/xtask"]),
];

#[test]
fn packages_depend_only_on_lower_packages() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |folder: &str| fs::read_to_string(root.join(folder).join("Cargo.toml")).unwrap();
    let workspace = read("");
    let members = workspace.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    let mut members: Vec<&str> = members.split('"').skip(1).step_by(2).collect();
    members.sort_unstable();
    let mut known: Vec<&str> = PACKAGES.iter().map(|(folder, _)| *folder).collect();
    known.sort_unstable();
    assert_eq!(members, known, "add the new package to this table");

    let name = |folder: &str| {
        let manifest = read(folder);
        let line = manifest.lines().find(|line| line.starts_with("name = ")).unwrap();
        line.split('"').nth(1).unwrap().to_owned()
    };
    let mut below: Vec<&str> = Vec::new();
    for (folder, allowed) in PACKAGES {
        assert!(allowed.iter().all(|lower| below.contains(lower)), "{folder}: the table is not in order");
        let manifest = read(folder);
        for other in known.iter().filter(|other| !allowed.contains(other)) {
            let other_name = name(other);
            let depends = manifest.lines().any(|line| {
                let rest = line.strip_prefix(&other_name);
                rest.is_some_and(|rest| rest.starts_with(".workspace") || rest.trim_start().starts_with('='))
            });
            assert!(!depends, "{folder} must not depend on {other}");
        }
        below.push(folder);
    }
}
