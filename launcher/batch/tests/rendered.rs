//! Whole scripts: snapshots, and shellcheck on every kind of script.
//!
//! To renew the files, and review the difference: `DTRAIN_RENEW=1 cargo test -p dtrain-batch --test rendered`.

#![allow(clippy::unwrap_used)]

use dtrain_batch::{
    Account, Extra, JobSpec, Setup, Size, System, Target, TimeLimit, Work, render, secret_manifest,
};
use dtrain_common::units::ByteSize;
use dtrain_test_kit::need::{self, Need};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn recipe() -> Target {
    let set = vec!["train.epochs=3".parse().unwrap(), "data.root=/data/it's here".parse().unwrap()];
    Target::Recipes { recipes: vec!["recipes/flowers.toml".parse().unwrap()], set }
}

fn program() -> Target {
    Target::Program(["python", "train.py", "a b", "$HOME"].map(|word| word.parse().unwrap()).into())
}

/// A job with all that the system can do, except an array and a container.
fn full(system: System) -> JobSpec {
    let value = |text: &str| Some(text.parse().unwrap());
    let (account, constraint) = (value("vision"), value("gpu_model=a100"));
    let account = match system {
        System::Slurm => Account {
            account,
            partition: value("gpu,long"),
            qos: value("high"),
            constraint: value("a100&nvlink"),
            ..Account::default()
        },
        System::K8s => Account { queue: value("gpu"), constraint, ..Account::default() },
        System::Lsf => {
            Account { account, queue: value("gpu"), constraint: value("a100"), ..Account::default() }
        }
        _ => Account { account, queue: value("gpu"), constraint, ..Account::default() },
    };
    let pods = system == System::K8s;
    JobSpec {
        name: "flowers".parse().unwrap(),
        size: Size {
            nodes: 4,
            least_nodes: 4,
            gpu_resource: None,
            gpus_per_node: 8,
            cpus_per_task: Some(64),
            memory: (system != System::Flux).then_some(ByteSize(512 << 30)),
        },
        time: Some(TimeLimit {
            time: Duration::from_secs(36 * 3600),
            signal_before: Some(Duration::from_secs(120)),
        }),
        account,
        work: Work {
            dtrain: "/opt/dtrain/bin/dtrain".parse().unwrap(),
            target: recipe(),
            run_dir: "/scratch/my runs/flowers".parse().unwrap(),
        },
        setup: Setup {
            commands: Some("module load cuda/12.6\n".to_owned()),
            container: pods.then(|| "registry/team/image:1".parse().unwrap()),
            volume: pods.then(|| "scratch:/scratch".parse().unwrap()),
        },
        max_requeues: 10,
        array: None,
        runs_at_once: None,
        extra: Extra::default(),
    }
}

/// A job with options and flags that dtrain passes on, and nodes that may leave.
fn extra(system: System) -> JobSpec {
    let directives: &[&str] = match system {
        System::Slurm => &["--exclude=node7", "--mail-type=END,FAIL"],
        System::Pbs => &["-W depend=afterok:71", "-m ea"],
        System::Lsf => &["-w done(71)", "-N"],
        System::Flux => &["--dependency=afterok:f1"],
        System::K8s => &[
            r#"tolerations=[{"key":"nvidia.com/gpu","operator":"Exists"}]"#,
            r#"imagePullSecrets=[{"name":"registry"}]"#,
            "serviceAccountName=trainer",
            r#"container.env=[{"name":"HF_HOME","value":"/scratch/hf"}]"#,
            "job.ttlSecondsAfterFinished=86400",
        ],
    };
    let mut job = full(system);
    job.size.least_nodes = 2;
    job.size.gpu_resource = (system == System::K8s).then(|| "nvidia.com/mig-1g.10gb".parse().unwrap());
    if has_arrays(system) && system != System::K8s {
        job.array = Some("8".parse().unwrap());
        job.runs_at_once = Some(2);
    }
    job.extra = Extra {
        directives: directives.iter().map(|text| text.parse().unwrap()).collect(),
        launch: ["--max-restarts", "3", "--rdzv-conf", "admit=checkpoint"]
            .map(|word| word.parse().unwrap())
            .into(),
    };
    job
}

/// One of the CPU, without options.
fn small(system: System) -> JobSpec {
    JobSpec {
        size: Size {
            nodes: 1,
            least_nodes: 1,
            gpus_per_node: 0,
            gpu_resource: None,
            cpus_per_task: None,
            memory: None,
        },
        time: None,
        account: Account::default(),
        setup: Setup { commands: None, ..full(system).setup },
        max_requeues: 0,
        ..full(system)
    }
}

fn has_arrays(system: System) -> bool {
    system != System::Flux
}

/// Every kind of script, with a name.
fn all(system: System) -> Vec<(&'static str, JobSpec)> {
    let mut jobs = vec![("full", full(system)), ("small", small(system))];
    let mut container = full(system);
    container.setup.container = Some("registry/team/image:1 2".parse().unwrap());
    container.work.dtrain = "dtrain".parse().unwrap();
    jobs.push(("container", container));
    let mut of_program = full(system);
    of_program.work.target = program();
    jobs.push(("program", of_program));
    jobs.push(("extra", extra(system)));
    if has_arrays(system) {
        let array = |text: &str| Some(text.parse().unwrap());
        jobs.push(("sweep", JobSpec { array: array("optim.lr=0.1,'a b',[1,2]"), ..full(system) }));
        jobs.push(("runs", JobSpec { array: array("3"), ..small(system) }));
        // Kubernetes has a manifest for each run: a small one.
        let of_recipes = if system == System::K8s { small(system) } else { full(system) };
        let recipes = ["recipes/flowers.toml", "it's b.toml", "demo"].map(|recipe| recipe.parse().unwrap());
        let target =
            Target::Recipes { recipes: recipes.into(), set: vec!["train.epochs=3".parse().unwrap()] };
        jobs.push(("recipes", JobSpec { work: Work { target, ..of_recipes.work.clone() }, ..of_recipes }));
    }
    jobs
}

fn compare(file: &str, rendered: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(file);
    if std::env::var_os("DTRAIN_RENEW").is_some() {
        std::fs::write(&path, rendered).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        rendered, expected,
        "{file} has changed; if that is meant, renew it as this file's comment says"
    );
}

/// All systems share the code that tells runs of an array apart; `extra` has each system's array.
fn is_shown(system: System, kind: &str) -> bool {
    match kind {
        "extra" => true,
        "sweep" => system == System::Pbs,
        "recipes" => [System::Slurm, System::K8s].contains(&system),
        _ => false,
    }
}

#[test]
fn scripts_are_those_of_the_snapshots() {
    for (system, name) in System::ALL {
        for (kind, job) in all(system) {
            assert_eq!(job.check(system), Ok(()), "{name} {kind}");
        }
        compare(&format!("{name}.txt"), &render(system, &full(system)));
        for (kind, job) in all(system).into_iter().filter(|(kind, _)| is_shown(system, kind)) {
            compare(&format!("{name}-{kind}.txt"), &render(system, &job));
        }
    }
}

#[test]
fn only_gpus_of_nvidia_are_counted() {
    for (resource, words) in
        [(None, "\"gpu\""), (Some("nvidia.com/mig-1g.10gb"), "\"gpu\""), (Some("vendor.com/gpu"), "\"8\"")]
    {
        let mut job = full(System::K8s);
        job.size.gpu_resource = resource.map(|name| name.parse().unwrap());
        let manifest: String = render(System::K8s, &job).split_whitespace().collect();
        assert!(manifest.contains(&format!("\"--nproc\",{words},")), "{resource:?}");
    }
}

#[test]
fn shellcheck_finds_nothing_in_any_script() {
    let version = need::output(Need::Shellcheck, Command::new("shellcheck").arg("--version"));
    let Ok(_) = version else { return };
    for (system, name) in System::ALL.into_iter().filter(|(system, _)| *system != System::K8s) {
        for (kind, job) in all(system) {
            let script = render(system, &job);
            // SC2016: a dollar sign of a program's argument is meant as text.
            let mut shellcheck = Command::new("shellcheck")
                .args(["--shell=bash", "--severity=style", "--exclude=SC2016", "-"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            shellcheck.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
            let done = shellcheck.wait_with_output().unwrap();
            assert!(done.status.success(), "{name} {kind}:\n{}", String::from_utf8_lossy(&done.stdout));
        }
    }
}

/// Compares a value with the API's types: `schema.json` has for each object its fields, `!` marks required ones.
fn conform(value: &Value, kind: &Value, schema: &Value, place: &str) {
    if let Some(element) = kind.as_array() {
        let elements = value.as_array().unwrap_or_else(|| panic!("{place} is no list: {value}"));
        elements.iter().for_each(|value| conform(value, &element[0], schema, place));
        return;
    }
    let fits = match kind.as_str().unwrap() {
        "text" => value.is_string(),
        "number" => value.is_u64(),
        "flag" => value.is_boolean(),
        "texts" => value.as_object().is_some_and(|map| map.values().all(Value::is_string)),
        "item" => {
            let kind = Value::from(value["kind"].as_str().unwrap().to_lowercase());
            return conform(value, &kind, schema, place);
        }
        object => {
            let fields = schema[object].as_object().unwrap_or_else(|| panic!("no schema of {object}"));
            let known = |name: &str| fields.get(name).or_else(|| fields.get(&format!("{name}!")));
            for (name, value) in value.as_object().unwrap_or_else(|| panic!("{place} is no object: {value}"))
            {
                let place = format!("{place}.{name}");
                conform(
                    value,
                    known(name).unwrap_or_else(|| panic!("unknown field {place}")),
                    schema,
                    &place,
                );
            }
            let missing = |field: &&String| field.strip_suffix('!').is_some_and(|name| value[name].is_null());
            assert_eq!(fields.keys().find(missing), None, "{place}");
            true
        }
    };
    assert!(fits, "{place} is no {kind}: {value}");
}

#[test]
fn manifests_have_the_types_of_the_api() {
    let schema: Value = serde_json::from_str(include_str!("schema.json")).unwrap();
    for (kind, job) in all(System::K8s) {
        let manifest = render(System::K8s, &job);
        let list: Value = serde_json::from_str(&manifest).unwrap();
        conform(&list, &"list".into(), &schema, kind);
        if kind == "sweep" {
            assert!(manifest.contains("\"optim.lr='a b'\""), "{manifest}");
            assert!(manifest.contains("\"flowers-1-0.flowers-1:29400\""), "{manifest}");
        }
    }
    let secret = secret_manifest(System::K8s, &full(System::K8s), "s3").unwrap();
    conform(&serde_json::from_str(&secret).unwrap(), &"secret".into(), &schema, "secret");
}

#[test]
fn kubernetes_replaces_nothing_in_the_words_of_the_user() {
    let mut job = full(System::K8s);
    job.work.target = Target::Program(["sh", "-c", "$(HOME) $$ $a"].map(|word| word.parse().unwrap()).into());
    assert!(render(System::K8s, &job).contains("\"$$(HOME) $$$$ $$a\""));
}
