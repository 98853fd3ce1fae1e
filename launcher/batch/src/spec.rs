//! The description of a job.

use crate::array::Array;
use crate::directive::Directive;
use crate::text::{Name, Value, Word};
use crate::volume::Volume;
use dtrain_common::units::ByteSize;
use std::time::Duration;

/// The batch systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    Slurm,
    /// OpenPBS and PBS Pro.
    Pbs,
    Lsf,
    Flux,
    /// Kubernetes.
    K8s,
}

impl System {
    /// All systems with their names on the command line.
    pub const ALL: [(Self, &str); 5] = [
        (Self::Slurm, "slurm"),
        (Self::Pbs, "pbs"),
        (Self::Lsf, "lsf"),
        (Self::Flux, "flux"),
        (Self::K8s, "k8s"),
    ];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slurm => "slurm",
            Self::Pbs => "pbs",
            Self::Lsf => "lsf",
            Self::Flux => "flux",
            Self::K8s => "k8s",
        }
    }

    /// Returns the beginnings of lines that the system reads as options; empty without such lines.
    pub(crate) fn directives(self) -> &'static [&'static str] {
        match self {
            Self::Slurm => &["#SBATCH"],
            Self::Pbs => &["#PBS"],
            Self::Lsf => &["#BSUB"],
            Self::Flux => &["#flux:", "#FLUX:"],
            Self::K8s => &[],
        }
    }
}

/// A job of a batch system.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    pub name: Name,
    pub size: Size,
    /// `None`: the system's default.
    pub time: Option<TimeLimit>,
    /// Who pays, and where it runs.
    pub account: Account,
    /// What each node starts.
    pub work: Work,
    /// The environment of the command.
    pub setup: Setup,
    /// How often a job that ends with code 75 starts again.
    pub max_requeues: u32,
    /// Several runs of one target; `None`: one for each recipe.
    pub array: Option<Array>,
    /// The most runs of an array at once; `None`: the system's.
    pub runs_at_once: Option<u32>,
    /// What dtrain passes on.
    pub extra: Extra,
}

impl JobSpec {
    /// Returns the number of runs of an array, at least 2. `None`: the job has one run and is no array.
    pub fn runs(&self) -> Option<u32> {
        match &self.work.target {
            Target::Recipes { recipes, .. } if recipes.len() > 1 => Some(recipes.len() as u32),
            _ => self.array.as_ref().map(Array::runs),
        }
    }

    /// Returns the most runs at once, as systems write it behind the runs: `%2`.
    pub(crate) fn at_once(&self) -> String {
        self.runs_at_once.map_or_else(String::new, |number| format!("%{number}"))
    }

    /// Returns the folder of each run, from run 0.
    pub fn run_dirs(&self) -> Vec<String> {
        let run_dir = self.work.run_dir.text();
        match self.runs() {
            None => vec![run_dir.to_owned()],
            Some(runs) => (0..runs).map(|index| format!("{run_dir}/{index}")).collect(),
        }
    }
}

/// The resources of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Size {
    /// At least 1.
    pub nodes: u32,
    /// The run continues with this number of nodes, at most `nodes`.
    pub least_nodes: u32,
    /// 0: none, the workers are on the CPU.
    pub gpus_per_node: u32,
    /// What Kubernetes calls such a GPU; `None`: `nvidia.com/gpu`.
    pub gpu_resource: Option<Value>,
    /// CPU cores of each node, for the launcher and all its workers.
    pub cpus_per_task: Option<u32>,
    /// Memory of each node.
    pub memory: Option<ByteSize>,
}

impl Size {
    /// Returns the value of `--nproc`; `None`: the workers are on the CPU. dtrain counts GPUs of NVIDIA, and a resource of
    /// another name may be anything.
    pub fn nproc(&self) -> Option<String> {
        let is_counted =
            self.gpu_resource.as_ref().is_none_or(|name| name.as_str().starts_with("nvidia.com/"));
        match self.gpus_per_node {
            0 => None,
            _ if is_counted => Some("gpu".to_owned()),
            number => Some(number.to_string()),
        }
    }

    /// Returns whether the run continues without some of its nodes.
    pub(crate) fn is_elastic(&self) -> bool {
        self.least_nodes < self.nodes
    }

    /// Returns the beginning of the value of `--nnodes` of an elastic run, such as `2:`.
    pub(crate) fn least(&self) -> String {
        if self.is_elastic() { format!("{}:", self.least_nodes) } else { String::new() }
    }
}

/// The time limit of one start.
#[derive(Debug, Clone, PartialEq)]
pub struct TimeLimit {
    pub time: Duration,
    /// How long before the limit the workers are asked to stop.
    pub signal_before: Option<Duration>,
}

/// Who pays, and where the job runs. The names are those of the flags.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Account {
    pub account: Option<Value>,
    pub partition: Option<Value>,
    pub queue: Option<Value>,
    pub qos: Option<Value>,
    pub constraint: Option<Value>,
}

/// The command that each node starts.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// The program `dtrain`.
    pub dtrain: Word,
    pub target: Target,
    /// Run directory of a recipe, log folder of a program; the parent of those of an array.
    pub run_dir: Word,
}

/// What `dtrain launch` starts.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    Recipes {
        /// One, or one for each run of an array.
        recipes: Vec<Word>,
        /// Such as `train.epochs=3`.
        set: Vec<Word>,
    },
    /// A program and its arguments.
    Program(Vec<Word>),
}

/// Options and flags that dtrain does not know, or has no flag for.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Extra {
    /// Options of the batch system.
    pub directives: Vec<Directive>,
    /// Flags of `dtrain launch` with their values.
    pub launch: Vec<Word>,
}

/// The environment of the command.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Setup {
    /// Shell commands of the user, such as `module load`.
    pub commands: Option<String>,
    /// Image that has dtrain.
    pub container: Option<Word>,
    /// Storage of Kubernetes that all nodes share.
    pub volume: Option<Volume>,
}
