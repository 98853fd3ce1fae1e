//! torchrun's flags, with torchrun's meaning on one node. What has a meaning only between nodes is refused by name.

mod values;

use anyhow::bail;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use dtrain_agent::signals;

use values::{Endpoint, Host, Interval, Nodes, Port, RdzvConf, SignalList};

/// What a request for several nodes is told.
const ONE_NODE: &str = "several nodes are not built in this version";

/// torchrun's flags other than the number of workers, output and restarts.
#[derive(Debug, Args)]
#[command(next_help_heading = "torchrun's flags")]
pub(crate) struct ContractArgs {
    /// Start a Python module, whose name and arguments follow, as `python3 -m` does.
    #[arg(short, long)]
    pub(crate) module: bool,

    /// Execute the named program itself, also if its name ends in `.py`.
    #[arg(long)]
    pub(crate) no_python: bool,

    /// ROLE_NAME of the workers.
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) role: String,

    /// Each worker has LOCAL_RANK=0, and in CUDA_VISIBLE_DEVICES only its own GPU, where there is one.
    #[arg(long)]
    pub(crate) virtual_local_rank: bool,

    /// Bind each worker to CPU cores near its GPU; without GPUs the workers are spread over the NUMA nodes.
    #[arg(long, value_name = "MODE")]
    pub(crate) numa_binding: Option<Binding>,

    /// Signals that the launcher handles; those left out end it, and the kernel then ends the workers [default:
    /// TERM,INT,HUP,QUIT,USR1,USR2].
    #[arg(long, value_name = "NAME,...")]
    signals_to_handle: Option<SignalList>,

    /// Name of the run, for TORCHELASTIC_RUN_ID [default: one of its own for each launch].
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) rdzv_id: Option<String>,

    /// MASTER_ADDR: an address of this machine, where rank 0 listens [default: 127.0.0.1].
    #[arg(long, value_name = "HOST")]
    master_addr: Option<Host>,

    /// MASTER_PORT: a port that is free on this machine; 0 chooses one [default: 0].
    #[arg(long, value_name = "PORT", allow_negative_numbers = true)]
    master_port: Option<Port>,

    /// The same as `--master-addr`.
    #[arg(long, value_name = "HOST")]
    local_addr: Option<Host>,

    /// `--master-addr` and `--master-port` in one, before which those have no use.
    #[arg(long, value_name = "HOST[:PORT]")]
    rdzv_endpoint: Option<Endpoint>,

    /// Known are `static` and `c10d`, which do the same on one node.
    #[arg(long, value_name = "NAME")]
    rdzv_backend: Option<Backend>,

    /// Settings of the rendezvous, which have no use on one node.
    #[arg(long, value_name = "KEY=VALUE,...")]
    rdzv_conf: Option<RdzvConf>,

    /// One node, which is all that this version starts; `--rdzv-endpoint` then has no use.
    #[arg(long)]
    pub(crate) standalone: bool,

    /// Number of nodes: 1 or 1:1.
    #[arg(long, value_name = "N|MIN:MAX", allow_negative_numbers = true)]
    nnodes: Option<Nodes>,

    /// This node's number: 0.
    #[arg(long, value_name = "RANK", allow_negative_numbers = true)]
    node_rank: Option<u32>,

    /// Has no use: the end of a worker is seen at once, without polling.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    monitor_interval: Option<Interval>,

    #[arg(long, hide = true, value_parser = ["spawn", "fork", "forkserver"])]
    start_method: Option<String>,

    #[arg(long, hide = true)]
    event_log_handler: Option<String>,

    #[arg(long, hide = true)]
    logs_specs: Option<String>,

    #[arg(long, hide = true)]
    run_path: bool,
}

/// To which cores a worker is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Binding {
    /// All cores of the GPU's NUMA node.
    Node,
    /// All cores of the GPU's socket.
    Socket,
    /// An equal share of the node's cores for each worker.
    Exclusive,
    /// Cores of the node that share one last-level cache.
    CoreComplex,
}

impl Binding {
    /// Its word on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Socket => "socket",
            Self::Exclusive => "exclusive",
            Self::CoreComplex => "core-complex",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    Static,
    C10d,
}

impl ContractArgs {
    /// Checks the flags against each other, and answers what the user is to be told of them.
    ///
    /// # Errors
    /// Flags that contradict each other, or that ask for what one node cannot have.
    pub(crate) fn check(&self) -> anyhow::Result<Vec<String>> {
        if self.module && self.no_python {
            bail!("-m and --no-python contradict each other; give one of them");
        }
        if let Some(nodes) = self.nnodes.filter(|nodes| nodes.most > 1) {
            if self.standalone {
                bail!("--standalone and --nnodes {nodes} contradict each other: --standalone is one node");
            }
            bail!("--nnodes {nodes}: {ONE_NODE}; use --nnodes 1, or leave it out");
        }
        if let Some(rank) = self.node_rank.filter(|rank| *rank > 0) {
            bail!("--node-rank {rank}: {ONE_NODE}, and the only node is 0");
        }
        let mut notes = self.outranked();
        if let Some(conf) = &self.rdzv_conf {
            let without_use = conf.check()?;
            if !without_use.is_empty() {
                notes.push(format!(
                    "--rdzv-conf {} has no use: the only node waits for no other, and the store is served over TCP",
                    without_use.join(", ")
                ));
            }
        }
        if self.rdzv_backend == Some(Backend::C10d) {
            notes.push("--rdzv-backend c10d: on one node it does the same as static".to_owned());
        }
        let without_use = [
            (
                self.monitor_interval.is_some(),
                "--monitor-interval",
                "the end of a worker is seen at once",
            ),
            (
                self.start_method.is_some(),
                "--start-method",
                "workers are programs, which have one way to start",
            ),
            (
                self.event_log_handler
                    .as_deref()
                    .is_some_and(|name| name != "null"),
                "--event-log-handler",
                "it names a Python object, and events of the launcher are printed",
            ),
            (
                self.logs_specs.is_some(),
                "--logs-specs",
                "it names a Python object; --log-dir, --redirects and --tee say where output goes",
            ),
            (
                self.run_path,
                "--run-path",
                "every worker runs the script in a Python of its own",
            ),
        ];
        for (given, flag, why) in without_use {
            if given {
                notes.push(format!("{flag} has no use: {why}"));
            }
        }
        Ok(notes)
    }

    /// Flags that say where the workers meet and yield to another one, as with torchrun.
    fn outranked(&self) -> Vec<String> {
        let endpoint = self.rdzv_endpoint.is_some();
        let pairs = [
            ("--rdzv-endpoint", endpoint, "--standalone", self.standalone),
            (
                "--master-addr",
                self.master_addr.is_some(),
                "--rdzv-endpoint",
                self.endpoint().is_some(),
            ),
            (
                "--master-port",
                self.master_port.is_some(),
                "--rdzv-endpoint",
                self.endpoint().is_some(),
            ),
            (
                "--local-addr",
                self.local_addr.is_some(),
                "--rdzv-endpoint",
                self.endpoint().is_some(),
            ),
            (
                "--local-addr",
                self.local_addr.is_some(),
                "--master-addr",
                self.endpoint().is_none() && self.master_addr.is_some(),
            ),
        ];
        pairs
            .into_iter()
            .filter(|(_, given, _, stronger)| *given && *stronger)
            .map(|(flag, _, stronger, _)| format!("{flag} has no use beside {stronger}"))
            .collect()
    }

    /// The endpoint that counts: --standalone chooses one of its own.
    fn endpoint(&self) -> Option<&Endpoint> {
        self.rdzv_endpoint.as_ref().filter(|_| !self.standalone)
    }

    /// Where rank 0 is to listen, as asked for, with the flag that asked.
    pub(crate) fn host(&self) -> Option<(&'static str, &str)> {
        let endpoint = self.endpoint().map(|endpoint| &endpoint.host);
        [
            ("--rdzv-endpoint", endpoint),
            ("--master-addr", self.master_addr.as_ref()),
            ("--local-addr", self.local_addr.as_ref()),
        ]
        .into_iter()
        .find_map(|(flag, host)| Some((flag, host?.as_str())))
    }

    /// The port on which rank 0 is to listen, as asked for, with the flag that asked; none for any free one.
    pub(crate) fn port(&self) -> Option<(&'static str, u16)> {
        let (flag, port) = match self.endpoint() {
            Some(endpoint) => ("--rdzv-endpoint", endpoint.port),
            None => ("--master-port", self.master_port?),
        };
        Some((flag, port.number()?))
    }

    /// The signals that the launcher handles.
    pub(crate) fn signals(&self) -> Vec<i32> {
        match &self.signals_to_handle {
            Some(list) => list.numbers().to_vec(),
            None => signals::STOP.into_iter().chain(signals::FORWARD).collect(),
        }
    }

    /// Their names, as torchrun tells its workers.
    pub(crate) fn signal_names(&self) -> String {
        let names: Vec<_> = self.signals().into_iter().map(signals::name).collect();
        names.join(",")
    }
}

#[cfg(test)]
mod tests;
