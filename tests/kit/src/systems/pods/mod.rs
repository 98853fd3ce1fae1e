//! A cluster of Kubernetes: runs the Indexed Jobs that the stand-in of kubectl took.
//!
//! Each pod has its own host name and mounts, on a node with its own network. Kubernetes waits 10 s and
//! longer before it replaces a failed pod; this cluster waits one second.

mod container;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{adapt, programs_folder, spool};
use crate::network::Network;
use crate::process::{Signal, kill, wait_until};
use crate::scene::{Finished, Launch, Scene};

const BACKOFF: Duration = Duration::from_secs(1);

/// Nodes, and what `kubectl create` brought.
#[derive(Debug)]
pub struct Cluster<'a> {
    scene: &'a Scene,
    network: &'a Network,
    /// Environment of the image.
    image: Vec<(String, String)>,
}

/// How a Job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Each index has a pod that ended with code 0.
    Complete,
    /// A rule of podFailurePolicy fails the Job.
    PodFailurePolicy,
    /// More pods failed than backoffLimit.
    BackoffLimitExceeded,
    /// By `kubectl delete`.
    Deleted,
}

/// A Job with its pods.
#[derive(Debug)]
pub struct Job<'a> {
    cluster: &'a Cluster<'a>,
    name: String,
    spec: Value,
    pods: Vec<Pod<'a>>,
    /// Pods that ended, in this order.
    pub ended: Vec<(usize, Finished)>,
    /// Whether an index has a pod that ended with code 0, and when it may have another pod.
    indexes: Vec<(bool, Instant)>,
    failures: u64,
    end: Option<End>,
}

#[derive(Debug)]
struct Pod<'a> {
    index: usize,
    launch: Launch<'a>,
    begun: Instant,
    /// The pod was asked to end: when it is killed.
    killed_at: Option<Instant>,
    /// It has the condition DisruptionTarget.
    is_disrupted: bool,
}

impl<'a> Cluster<'a> {
    /// Returns a cluster. Its images have these variables, and dtrain in `PATH`.
    pub fn new(scene: &'a Scene, network: &'a Network, image: &[(&str, &str)]) -> Self {
        let image = image.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { scene, network, image }
    }

    /// Returns the folder of a claim.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn claim(&self, name: &str) -> PathBuf {
        let folder = self.scene.path(".claims").join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// Begins a Job.
    ///
    /// # Panics
    /// If there is no such Job, or if it is not Indexed with one pod for each index.
    #[track_caller]
    pub fn job(&'a self, name: &str) -> Job<'a> {
        let job = self.object("Job", name).unwrap_or_else(|| panic!("jobs.batch {name:?} not found"));
        let spec = job["spec"].clone();
        assert_eq!(spec["completionMode"], "Indexed");
        assert_eq!(spec["completions"], spec["parallelism"]);
        assert_eq!(spec["template"]["spec"]["restartPolicy"], "Never", "podFailurePolicy needs it");
        let indexes = vec![(false, Instant::now()); number(&spec["completions"]) as usize];
        let (pods, ended) = (Vec::new(), Vec::new());
        Job { cluster: self, name: name.to_owned(), spec, pods, ended, indexes, failures: 0, end: None }
    }

    /// Runs kubectl to its end.
    pub fn kubectl(&self, args: &[&str]) -> Finished {
        let mut command = Command::new(programs_folder().join("kubectl"));
        adapt(self.scene, command.args(args));
        self.scene.start_as(".kubectl", command).wait_leaving_processes()
    }

    /// Returns the objects of all manifests.
    fn objects(&self) -> Vec<Value> {
        let manifests = (0..).map_while(|number| {
            let text = fs::read_to_string(spool(self.scene).join(format!("{number}.json"))).ok()?;
            Some(serde_json::from_str::<Value>(&text).unwrap())
        });
        let items = |manifest: Value| match &manifest["items"] {
            Value::Array(items) => items.clone(),
            _ => vec![manifest],
        };
        manifests.flat_map(items).collect()
    }

    fn object(&self, kind: &str, name: &str) -> Option<Value> {
        // A later one has replaced the earlier ones.
        self.objects().into_iter().rfind(|item| item["kind"] == kind && item["metadata"]["name"] == name)
    }
}

impl<'a> Job<'a> {
    /// Runs the Job to its end.
    ///
    /// # Panics
    /// If it does not end in time.
    #[track_caller]
    pub fn run(&mut self) -> End {
        self.run_until("the end of the Job", |job| job.end.is_some() && job.pods.is_empty());
        self.end.unwrap()
    }

    /// Runs the Job until the condition holds.
    ///
    /// # Panics
    /// If it does not hold in time.
    #[track_caller]
    pub fn run_until(&mut self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        wait_until(what, || {
            let holds = condition(self);
            if !holds {
                self.advance();
            }
            holds
        });
    }

    /// Asks a pod to end, as a drained node does.
    ///
    /// # Panics
    /// If the pod does not run.
    pub fn evict(&mut self, index: usize) {
        let grace = self.grace();
        let pod = self.pods.iter_mut().find(|pod| pod.index == index).unwrap();
        pod.is_disrupted = true;
        pod.terminate(grace);
    }

    /// Returns the exit codes of an index.
    pub fn codes(&self, index: usize) -> Vec<Option<i32>> {
        self.ended.iter().filter(|(of, _)| *of == index).map(|(_, done)| done.code).collect()
    }

    /// Returns the standard error of all pods that ended.
    pub fn stderr(&self) -> String {
        self.ended.iter().map(|(index, done)| format!("{index}: {}\n", done.stderr)).collect()
    }

    fn advance(&mut self) {
        if spool(self.cluster.scene).join(format!("{}.deleted", self.name)).exists() {
            self.end = Some(End::Deleted);
        }
        let deadline = self.spec["template"]["spec"]["activeDeadlineSeconds"].as_u64();
        let (grace, is_over) = (self.grace(), self.end.is_some());
        for mut pod in std::mem::take(&mut self.pods) {
            if pod.launch.child.try_wait().unwrap().is_some() {
                self.bury(pod);
                continue;
            }
            if is_over || deadline.is_some_and(|limit| pod.begun.elapsed().as_secs() >= limit) {
                pod.terminate(grace);
            }
            if pod.killed_at.is_some_and(|at| at <= Instant::now()) {
                kill(pod.launch.child.id(), Signal::KILL);
            }
            self.pods.push(pod);
        }
        if self.end.is_none() && self.indexes.iter().all(|(is_done, _)| *is_done) {
            self.end = Some(End::Complete);
        }
        for index in 0..self.indexes.len() {
            let (is_done, at) = self.indexes[index];
            let has_pod = self.pods.iter().any(|pod| pod.index == index);
            if self.end.is_none() && !is_done && !has_pod && at <= Instant::now() {
                let launch = self.start_pod(index);
                self.pods.push(Pod {
                    index,
                    launch,
                    begun: Instant::now(),
                    killed_at: None,
                    is_disrupted: false,
                });
            }
        }
        if let Some(end) = self.end.filter(|end| *end != End::Deleted) {
            let condition = if end == End::Complete { "Complete" } else { "Failed" };
            fs::write(spool(self.cluster.scene).join(format!("{}.ended", self.name)), condition).unwrap();
        }
    }

    /// Decides about the Job by a pod that ended.
    fn bury(&mut self, pod: Pod<'a>) {
        let done = pod.launch.wait_leaving_processes();
        match done.code {
            Some(0) => self.indexes[pod.index].0 = true,
            code => {
                self.indexes[pod.index].1 = Instant::now() + BACKOFF;
                match self.action(code, pod.is_disrupted).as_str() {
                    "FailJob" => self.end = self.end.or(Some(End::PodFailurePolicy)),
                    "Ignore" => {}
                    "Count" => self.failures += 1,
                    action => panic!("podFailurePolicy has the action {action:?}"),
                }
                if self.failures > number(&self.spec["backoffLimit"]) {
                    self.end = self.end.or(Some(End::BackoffLimitExceeded));
                }
            }
        }
        self.ended.push((pod.index, done));
    }

    /// Returns the action of the first rule that fits. A pod that a signal ends has code 128 and more.
    fn action(&self, code: Option<i32>, is_disrupted: bool) -> String {
        let code = code.unwrap_or(128 + Signal::KILL.as_raw());
        let fits = |rule: &&Value| {
            let conditions = rule["onPodConditions"].as_array().into_iter().flatten();
            let codes = &rule["onExitCodes"];
            let has_code = codes["values"].as_array().is_some_and(|values| values.contains(&code.into()));
            let by_code = match codes["operator"].as_str() {
                Some("In") => has_code,
                Some("NotIn") => !has_code,
                _ => false,
            };
            let disrupted =
                |condition: &Value| condition["type"] == "DisruptionTarget" && condition["status"] == "True";
            by_code || is_disrupted && conditions.clone().any(disrupted)
        };
        let rules = self.spec["podFailurePolicy"]["rules"].as_array();
        let rule = rules.and_then(|rules| rules.iter().find(fits));
        rule.map_or("Count", |rule| container::text(&rule["action"])).to_owned()
    }

    fn grace(&self) -> Duration {
        let seconds = self.spec["template"]["spec"]["terminationGracePeriodSeconds"].as_u64();
        Duration::from_secs(seconds.unwrap_or(30))
    }

    fn start_pod(&self, index: usize) -> Launch<'a> {
        let (cluster, pod) = (self.cluster, &self.spec["template"]["spec"]);
        let name = format!("{}-{index}", self.name);
        let container = &pod["containers"][0];
        assert!(container["image"].is_string(), "a container needs an image");
        let node = &cluster.network[index];
        fs::write(node.hosts(), self.hosts()).unwrap();
        let mut variables: BTreeMap<String, String> = cluster.image.iter().cloned().collect();
        variables.extend(container::variables(&name, index, container, |secret, key| {
            let secret = cluster.object("Secret", secret);
            secret.and_then(|secret| secret["stringData"][key].as_str().map(str::to_owned))
        }));
        let mounts = container::mounts(pod, container, |claim| cluster.claim(claim));
        let command =
            container::command(&name, &mounts, &variables, container, cluster.scene.mark_variable());
        let mut command = node.enter(&command);
        cluster.scene.mark(&mut command);
        let count = self.ended.len();
        cluster.scene.start_as(&format!(".{name}-{count}"), command)
    }

    /// Returns the names that pods look up: those of pods below a Service without an address.
    fn hosts(&self) -> String {
        let mut hosts = "127.0.0.1 localhost\n".to_owned();
        let Some(subdomain) = self.spec["template"]["spec"]["subdomain"].as_str() else { return hosts };
        let service = self.cluster.object("Service", subdomain).unwrap_or_default();
        let spec = &service["spec"];
        // Otherwise pods must be ready first, which needs the names.
        assert_eq!(spec["publishNotReadyAddresses"], true, "{service}");
        if spec["clusterIP"] == "None" && spec["selector"]["batch.kubernetes.io/job-name"] == self.name {
            for (index, node) in self.cluster.network.nodes().enumerate() {
                hosts += &format!("{} {name}-{index}.{subdomain}\n", node.address, name = self.name);
            }
        }
        hosts
    }
}

impl Pod<'_> {
    fn terminate(&mut self, grace: Duration) {
        if self.killed_at.is_none() {
            self.killed_at = Some(Instant::now() + grace);
            self.launch.signal(Signal::TERM);
        }
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}
