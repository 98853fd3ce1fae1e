//! Kubernetes: for each run an Indexed Job, whose pods are the nodes, and a headless Service for their names.

pub(crate) mod fields;

use crate::array::Array;
use crate::launch::{REQUEUE, seconds};
use crate::spec::{JobSpec, Target, TimeLimit};
use dtrain_common::env::DTRAIN_RDZV_SECRET;
use serde_json::{Map, Value, json};

const PORT: u16 = 29400;
/// After the last margin: the system's own signal, and the end of the workers.
const GRACE_S: u64 = 30;

/// The annotation of dtrain's objects. Others are never deleted.
pub const MARK: &str = "dtrain/about";
const WRITTEN: &str = "Written by `dtrain batch k8s`.";

pub(crate) fn render(spec: &JobSpec) -> String {
    let several = has_peers(spec);
    let items: Vec<_> = runs(spec)
        .iter()
        .flat_map(|run| several.then(|| run.service()).into_iter().chain([run.job()]))
        .collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    format!("{list:#}\n")
}

fn runs(spec: &JobSpec) -> Vec<Run<'_>> {
    match spec.runs() {
        None => vec![Run { spec, index: None }],
        Some(runs) => (0..runs).map(|index| Run { spec, index: Some(index) }).collect(),
    }
}

/// Returns all objects, as `kubectl get` and `kubectl delete` take them.
pub(crate) fn objects(spec: &JobSpec) -> Vec<String> {
    let mut objects = Vec::new();
    for run in runs(spec) {
        objects.push(format!("jobs.batch/{}", run.name()));
        objects.extend(has_peers(spec).then(|| format!("services/{}", run.name())));
    }
    objects.extend(has_peers(spec).then(|| format!("secrets/{}", secret(spec))));
    objects
}

/// Returns whether pods look each other up.
fn has_peers(spec: &JobSpec) -> bool {
    spec.size.nodes > 1
}

/// Returns the first Job, for checks.
pub(crate) fn first_job(spec: &JobSpec) -> Value {
    runs(spec).first().map_or(Value::Null, Run::job)
}

/// Returns the manifest of the secret that the pods need to meet; `None`: one node.
pub(crate) fn secret_manifest(spec: &JobSpec, value: &str) -> Option<String> {
    has_peers(spec).then(|| {
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": secret(spec), "annotations": { MARK: WRITTEN } },
            "stringData": { "secret": value },
        });
        format!("{secret:#}\n")
    })
}

/// One of the runs of an array, or the only one.
struct Run<'a> {
    spec: &'a JobSpec,
    index: Option<u32>,
}

impl Run<'_> {
    fn name(&self) -> String {
        let name = self.spec.name.as_str();
        self.index.map_or_else(|| name.to_owned(), |index| format!("{name}-{index}"))
    }

    /// Gives each pod a name that the others can look up.
    fn service(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": self.name(), "annotations": { MARK: WRITTEN } },
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": true,
                "selector": { "batch.kubernetes.io/job-name": self.name() },
                "ports": [{ "name": "rendezvous", "port": PORT }],
            },
        })
    }

    fn job(&self) -> Value {
        let (spec, name, nodes) = (self.spec, self.name(), self.spec.size.nodes);
        let mut metadata = json!({
            "name": name,
            "annotations": { MARK: about(spec) },
        });
        if let Some(queue) = &spec.account.queue {
            metadata["labels"] = json!({ "kueue.x-k8s.io/queue-name": queue.as_str() });
        }
        let mut job = json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {
                "completionMode": "Indexed",
                "completions": nodes,
                "parallelism": nodes,
                // All pods of a start end with one code.
                "backoffLimit": u64::from(spec.max_requeues) * u64::from(nodes),
                "podFailurePolicy": { "rules": [
                    { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] },
                    { "action": "FailJob", "onExitCodes": { "operator": "NotIn", "values": [REQUEUE.code()] } },
                ] },
                "template": { "spec": self.pod() },
            },
        });
        for directive in &spec.extra.directives {
            // The check has refused fields that dtrain sets.
            let _ = fields::set(&mut job, directive);
        }
        job
    }

    fn pod(&self) -> Value {
        let spec = self.spec;
        let margin = spec.time.as_ref().and_then(|limit| limit.signal_before).map_or(0, seconds);
        let mut pod = json!({
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": margin + GRACE_S,
            "containers": [self.container()],
            "volumes": volumes(spec),
        });
        if spec.size.nodes > 1 {
            pod["subdomain"] = json!(self.name());
            // One launcher per node.
            pod["affinity"] = json!({ "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{
                    "labelSelector": { "matchLabels": { "batch.kubernetes.io/job-name": self.name() } },
                    "topologyKey": "kubernetes.io/hostname",
                }],
            } });
        }
        if let Some(limit) = &spec.time {
            pod["activeDeadlineSeconds"] = json!(seconds(limit.time));
        }
        if let Some(constraint) = &spec.account.constraint {
            let labels: Map<_, _> = constraint
                .as_str()
                .split(',')
                .filter_map(|label| label.split_once('='))
                .map(|(key, value)| (key.to_owned(), json!(value)))
                .collect();
            pod["nodeSelector"] = json!(labels);
        }
        pod
    }

    fn container(&self) -> Value {
        let spec = self.spec;
        let image = spec.setup.container.as_ref().map(|image| image.text());
        let mut mounts = vec![json!({ "name": "shm", "mountPath": "/dev/shm" })];
        if let Some(volume) = &spec.setup.volume {
            mounts.push(json!({ "name": "run", "mountPath": volume.path }));
        }
        let mut container = json!({
            "name": "dtrain",
            "image": image,
            "command": self.command(),
            "resources": resources(spec),
            "volumeMounts": mounts,
        });
        if spec.size.nodes > 1 {
            let secret = json!({ "name": secret(spec), "key": "secret" });
            container["env"] =
                json!([{ "name": DTRAIN_RDZV_SECRET, "valueFrom": { "secretKeyRef": secret } }]);
        }
        container
    }

    /// Returns the words of the command. Kubernetes replaces `$(NAME)` in them, and `$$` by `$`.
    fn command(&self) -> Vec<String> {
        let words = self.launch();
        let words = match &self.spec.setup.commands {
            None => words,
            Some(commands) => {
                let script = format!("{}\nexec \"$@\"\n", commands.trim_end());
                ["/bin/bash".into(), "-c".into(), script, "dtrain".into()].into_iter().chain(words).collect()
            }
        };
        words.into_iter().map(|word| word.replace('$', "$$")).collect()
    }

    fn launch(&self) -> Vec<String> {
        let (spec, name) = (self.spec, self.name());
        let mut words = vec![spec.work.dtrain.text().to_owned(), "launch".to_owned()];
        let mut add = |more: &[&str]| words.extend(more.iter().map(|&word| word.to_owned()));
        if let Some(nproc) = spec.size.nproc() {
            add(&["--nproc", &nproc]);
        }
        if spec.size.nodes > 1 {
            let endpoint = format!("{name}-0.{name}:{PORT}");
            add(&[
                "--nnodes",
                &format!("{}{}", spec.size.least(), spec.size.nodes),
                "--rdzv-endpoint",
                &endpoint,
                "--rdzv-id",
                &name,
            ]);
        }
        if let Some(TimeLimit { time, signal_before: Some(before) }) = &spec.time {
            let (time, before) = (format!("{}s", seconds(*time)), format!("{}s", seconds(*before)));
            add(&["--time-limit", &time, "--time-margin", &before]);
        }
        spec.extra.launch.iter().for_each(|word| add(&[word.text()]));
        let run_dir = spec.work.run_dir.text();
        let run_dir = self.index.map_or_else(|| run_dir.to_owned(), |index| format!("{run_dir}/{index}"));
        match &spec.work.target {
            Target::Recipes { recipes, set } => {
                // Of several recipes each run has its own.
                let index = if recipes.len() > 1 { self.index.unwrap_or(0) as usize } else { 0 };
                let recipe = recipes.get(index).map_or("", |recipe| recipe.text());
                add(&["--run-dir", &run_dir, recipe]);
                set.iter().for_each(|set| add(&["--set", set.text()]));
                if let (Some(Array::Sweep { key, values }), Some(index)) = (&spec.array, self.index) {
                    let value = values.get(index as usize).map_or("", |value| value.text());
                    add(&["--set", &format!("{key}={value}")]);
                }
            }
            Target::Program(program) => {
                add(&["--log-dir", &run_dir, "--"]);
                program.iter().for_each(|word| add(&[word.text()]));
            }
        }
        words
    }
}

fn secret(spec: &JobSpec) -> String {
    format!("{}-rendezvous", spec.name.as_str())
}

fn about(spec: &JobSpec) -> String {
    let mut about = format!("{WRITTEN} Submit it with `kubectl create -f FILE`.");
    if spec.size.nodes > 1 {
        about.push_str(&format!(
            " First make the secret of the rendezvous: `head -c 32 /dev/urandom | base64 | \
             kubectl create secret generic {} --from-file=secret=/dev/stdin`.",
            secret(spec)
        ));
    }
    about
}

fn resources(spec: &JobSpec) -> Value {
    let size = &spec.size;
    let mut requests = Map::new();
    if let Some(cpus) = size.cpus_per_task {
        requests.insert("cpu".to_owned(), json!(cpus.to_string()));
    }
    if let Some(memory) = size.memory {
        requests.insert("memory".to_owned(), json!(format!("{}Mi", memory.0.div_ceil(1 << 20))));
    }
    let mut limits = requests.clone();
    limits.remove("cpu");
    if size.gpus_per_node > 0 {
        let resource = size.gpu_resource.as_ref().map_or("nvidia.com/gpu", |name| name.as_str());
        limits.insert(resource.to_owned(), json!(size.gpus_per_node.to_string()));
    }
    json!({ "requests": requests, "limits": limits })
}

fn volumes(spec: &JobSpec) -> Vec<Value> {
    // The default is 64 MiB, less than ranks of one node share.
    let mut volumes = vec![json!({ "name": "shm", "emptyDir": { "medium": "Memory" } })];
    if let Some(volume) = &spec.setup.volume {
        volumes.push(json!({ "name": "run", "persistentVolumeClaim": { "claimName": volume.claim } }));
    }
    volumes
}
