//! Environments of tasks, recorded or from documentation, and what they say. The first line of each file in
//! `recorded/` is its source.

#![allow(clippy::unwrap_used)]

use dtrain_job::{Job, JobError, Number, Surroundings, slurm_address};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded")
}

fn read(name: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(folder().join(name).with_extension("env")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_once('=').unwrap()).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

fn detect(variables: &BTreeMap<String, String>) -> Result<Job, JobError> {
    Job::detect(Surroundings {
        variable: &|name| variables.get(name).cloned(),
        file: &|path| fs::read_to_string(folder().join("files").join(path.file_name()?)).ok(),
        command: &|words| {
            assert_eq!(words, ["flux", "hostlist", "--expand", "local"]);
            Some("f1 f2\n".to_owned())
        },
    })
}

/// Writes a job in one line: `rank 1/2, local 0/1, node 1/2`, with `-` for an unknown number.
fn summary(job: &Job) -> String {
    let mut words = vec![job.described()];
    if let Some(id) = job.id() {
        words.push(format!("id {id} port {}", job.port().unwrap()));
    }
    if let Some(allocation) = &job.allocation {
        words.extend(allocation.nodes.map(|nodes| format!("of {nodes} nodes")));
        words.extend(allocation.end.map(|end| format!("end {}", end.as_secs())));
        words.extend(allocation.requeues.map(|requeues| format!("requeues {requeues}")));
        words.extend(allocation.gpus.map(|gpus| format!("gpus {gpus}")));
    }
    if let Some(tasks) = &job.tasks {
        let number =
            |number: Option<Number>| number.map_or("-".to_owned(), |number| number.value.to_string());
        for (name, one, all) in [
            ("rank", Some(tasks.rank), tasks.size),
            ("local", tasks.local_rank, tasks.local_size),
            ("node", tasks.node, tasks.nodes),
        ] {
            words.push(format!("{name} {}/{}", number(one), number(all)));
        }
        if let Some(hosts) = &tasks.hosts {
            words.push(format!("on {}", hosts.join(" ")));
        }
        words.extend(tasks.first_host.as_ref().map(|host| format!("first {host}")));
        words.extend(tasks.one_per_node().map(|_| "one per node".to_owned()));
    }
    words.join(", ")
}

#[test]
fn recorded_environments_are_understood() {
    let cases = [
        ("nothing", "no job"),
        ("slurm-batch-script", "Slurm job 5, id 5 port 20005, of 2 nodes"),
        ("slurm-interactive", "Slurm job 9, id 9 port 20009, of 2 nodes"),
        (
            "slurm-step-per-node",
            "Slurm job 5, id 5.0 port 20005, of 2 nodes, rank 1/2, local 0/1, node 1/2, on n1 n2, first n1, one per node",
        ),
        (
            "slurm-step-one-node",
            "Slurm job 5, id 5.1 port 21005, of 2 nodes, rank 0/1, local 0/1, node 0/1, on n1, first n1",
        ),
        (
            "slurm-step-other-node",
            "Slurm job 5, id 5.2 port 22005, of 2 nodes, rank 0/1, local 0/1, node 0/1, on n2, first n2",
        ),
        (
            "slurm-step-per-gpu",
            "Slurm job 5, id 5.3 port 23005, of 2 nodes, rank 3/4, local 1/2, node 1/2, on n1 n2, first n1",
        ),
        (
            "slurm-step-uneven",
            "Slurm job 4, id 4.0 port 20004, of 2 nodes, rank 2/3, local 0/1, node 1/2, on n1 n2, first n1",
        ),
        (
            "slurm-array",
            "Slurm job 6, id 6.0 port 20006, of 1 nodes, rank 0/1, local 0/1, node 0/1, on n2, first n2",
        ),
        (
            "slurm-23",
            "Slurm job 70, id 70.2 port 22070, of 5 nodes, end 1700000000, requeues 1, gpus 4, rank 17/18, local 1/2, \
             node 4/5, on gpu007 gpu008 gpu009 gpu010 big1, first gpu007",
        ),
        (
            "slurm-pmi2",
            "Slurm job 8, id 8.2 port 22008, of 2 nodes, rank 1/2, local 0/1, node 1/2, on n1 n2, first n1, one per node",
        ),
        ("openmpi", "Open MPI, id 830210049 port 20049, rank 1/2, local 1/2, node 0/1"),
        (
            "openmpi-in-slurm-head",
            "Open MPI in Slurm job 8, id 8 port 20008, of 2 nodes, rank 0/2, local 0/1, node 0/2, on n1 n2, first n1, \
             one per node",
        ),
        (
            "openmpi-in-slurm",
            "Open MPI in Slurm job 8, id 8 port 20008, of 2 nodes, rank 1/2, local 0/1, node 1/2, on n1 n2, first n1, \
             one per node",
        ),
        ("hydra", "MPICH (Hydra), rank 1/2, local 1/2, node 0/1"),
        (
            "hydra-in-slurm",
            "MPICH (Hydra) in Slurm job 8, id 8 port 20008, of 2 nodes, rank 1/2, local 0/1, node 1/2, on n1 n2, \
             first n1, one per node",
        ),
        ("pbs-script", "PBS job 123.server, id 123.server port 20123, of 2 nodes"),
        (
            "pbs-pbsdsh",
            "PBS job 123.server, id 123.server port 20123, of 2 nodes, rank 1/2, local 0/1, node 1/2, one per node",
        ),
        (
            "pbs-pbsdsh-first",
            "PBS job 123.server, id 123.server port 20123, of 2 nodes, rank 0/2, local 0/1, node 0/2, \
             on p1.cluster p2.cluster, first p1.cluster, one per node",
        ),
        (
            "openmpi5-in-pbs",
            "Open MPI in PBS job 123.server, id 123.server port 20123, of 2 nodes, rank 3/4, local 1/2, node 1/2, \
             on p1.cluster p2.cluster, first p1.cluster",
        ),
        (
            "pals",
            "PALS in PBS job 123.server, id 123.server port 20123, of 2 nodes, rank 2/4, local 0/2, node 1/2, \
             on p1.cluster p2.cluster, first p1.cluster",
        ),
        ("lsf-script", "LSF job 88, id 88 port 20088, of 2 nodes"),
        ("lsf-hostfile", "LSF job 88, id 88 port 20088, of 2 nodes"),
        (
            "jsrun",
            "LSF job 89, id 89 port 20089, of 2 nodes, rank 7/12, local 1/6, node 1/2, on c01 c02, first c01",
        ),
        (
            "flux",
            "Flux job f3ETxsR9H, id f3ETxsR9H port 25481, of 2 nodes, rank 2/4, local 0/2, node 1/2, on f1 f2, first f1",
        ),
        (
            "kubernetes",
            "Kubernetes job train, id train port 28121, rank 1/-, local 0/1, node 1/-, \
             first train-0.trainers.default.svc.cluster.local",
        ),
        ("pmix", "PMIx, id prte-a-12@1 port 29553, rank 1/-, local -/-, node -/-"),
        ("pmi", "PMI, rank 1/2, local -/-, node -/-"),
    ];
    let mut wrong = Vec::new();
    for (name, expected) in cases {
        let found = summary(&detect(&read(name)).unwrap());
        if found != expected {
            wrong.push(format!("{name}:\n  {expected}\n  {found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let files = fs::read_dir(folder())
        .unwrap()
        .filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "env"));
    assert_eq!(files.count(), cases.len(), "each file has a case");
}

#[test]
fn contradictions_name_both_sources_with_their_values() {
    for (name, variable, value, text) in [
        (
            "slurm-step-per-node",
            "SLURM_STEP_NODELIST",
            "n[1-3]",
            "SLURM_STEP_NUM_NODES=2 contradicts SLURM_STEP_NODELIST=n[1-3] (3 hosts)",
        ),
        (
            "slurm-step-per-node",
            "SLURM_STEP_TASKS_PER_NODE",
            "2(x2)",
            "SLURM_STEP_NUM_TASKS=2 contradicts SLURM_STEP_TASKS_PER_NODE=2(x2) (4 tasks)",
        ),
        (
            "slurm-step-per-node",
            "SLURM_STEP_TASKS_PER_NODE",
            "2",
            "SLURM_STEP_NUM_NODES=2 contradicts SLURM_STEP_TASKS_PER_NODE=2 (1 node)",
        ),
        ("slurm-step-per-node", "SLURM_PROCID", "2", "SLURM_PROCID=2 contradicts SLURM_STEP_NUM_TASKS=2"),
        ("slurm-step-per-node", "SLURM_NODEID", "2", "SLURM_NODEID=2 contradicts SLURM_STEP_NUM_NODES=2"),
        (
            "slurm-step-per-gpu",
            "SLURM_LOCALID",
            "2",
            "SLURM_LOCALID=2 contradicts SLURM_STEP_TASKS_PER_NODE=2",
        ),
        ("openmpi", "OMPI_COMM_WORLD_RANK", "2", "OMPI_COMM_WORLD_RANK=2 contradicts OMPI_COMM_WORLD_SIZE=2"),
        ("hydra", "MPI_LOCALNRANKS", "3", "MPI_LOCALNRANKS=3 contradicts PMI_SIZE=2"),
        ("flux", "FLUX_JOB_NNODES", "5", "FLUX_JOB_NNODES=5 contradicts FLUX_JOB_SIZE=4"),
        (
            "jsrun",
            "JSM_NAMESPACE_LOCAL_RANK",
            "6",
            "JSM_NAMESPACE_LOCAL_RANK=6 contradicts JSM_NAMESPACE_LOCAL_SIZE=6",
        ),
    ] {
        let mut variables = read(name);
        variables.insert(variable.to_owned(), value.to_owned());
        let error = detect(&variables).unwrap_err();
        assert!(matches!(error, JobError::Contradiction { .. }), "{name}: {error}");
        assert!(error.to_string().starts_with(text), "{name}: {error}");
    }
}

#[test]
fn malformed_values_are_named() {
    for (name, variable, value, text) in [
        ("slurm-step-per-node", "SLURM_PROCID", "one", "SLURM_PROCID is \"one\"; expected a whole number"),
        ("slurm-step-per-node", "SLURM_STEP_NODELIST", "n[1-", "SLURM_STEP_NODELIST is \"n[1-\": expected"),
        ("hydra", "PMI_RANK", "", "PMI_RANK is not set although MPI_LOCALRANKID is"),
    ] {
        let mut variables = read(name);
        variables.insert(variable.to_owned(), value.to_owned());
        let error = detect(&variables).unwrap_err().to_string();
        assert!(error.contains(text), "{name}: {error}");
    }
}

#[test]
fn an_end_that_cannot_be_read_does_not_count() {
    let mut variables = read("slurm-23");
    variables.insert("SLURM_JOB_END_TIME".to_owned(), "soon".to_owned());
    assert_eq!(detect(&variables).unwrap().allocation.unwrap().end, None);
}

#[test]
fn slurms_address_of_a_node_is_from_its_aliases_or_its_controller() {
    let address = |aliases: &str, answer: Option<&str>, node| {
        let from = Surroundings {
            variable: &|name| (name == "SLURM_NODE_ALIASES").then(|| aliases.to_owned()),
            file: &|_| None,
            command: &|words| {
                assert_eq!(words, ["scontrol", "show", "node", "--oneliner", node]);
                answer.map(str::to_owned)
            },
        };
        slurm_address(from, node)
    };
    let cloud = "c1:10.0.0.4:ip-10-0-0-4,c10:10.0.0.5:x,v1:[fd00::7]:y";
    for (node, expected) in [("c1", "10.0.0.4"), ("c10", "10.0.0.5"), ("v1", "fd00::7")] {
        assert_eq!(address(cloud, None, node).as_deref(), Some(expected));
    }
    // As Slurm 22.05 prints it.
    let shown =
        "NodeName=n1 Arch=x86_64 CoresPerSocket=1 CPUAlloc=1 NodeAddr=10.77.0.1 NodeHostName=n1 Port=17001\n";
    assert_eq!(address("(null)", Some(shown), "n1").as_deref(), Some("10.77.0.1"));
    assert_eq!(
        address("", Some("NodeName=n1 NodeAddr=n1 NodeHostName=n1"), "n1"),
        None,
        "the name is no news"
    );
    assert_eq!(address("", Some("Node n1 not found"), "n1"), None);
    assert_eq!(address("", None, "n1"), None, "no scontrol");
}
