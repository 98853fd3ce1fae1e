//! The flags of the rendezvous: where the workers of one node or several meet. Names and meaning are torchrun's.

mod conf;
mod endpoint;
mod job;

use anyhow::bail;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use conf::{RdzvConf, rdzv_conf};
use dtrain_agent::cluster::lease::Times;
use dtrain_agent::io::wire::Endpoint;
use endpoint::{backend, endpoint, host, nodes};
use job::FromJob;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// torchrun's default port of the backend `c10d`.
pub(crate) const C10D_PORT: u16 = 29400;
/// torchrun's default port of the backend `static`.
const STATIC_PORT: u16 = 29500;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Nodes and addresses (torchrun's flags)")]
pub(crate) struct RendezvousArgs {
    /// Number of nodes; start this command on each [default: 1].
    ///
    /// MIN:MAX: nodes may leave and come; the run restarts without them.
    #[arg(long, value_name = "N|MIN:MAX", allow_negative_numbers = true, value_parser = nodes)]
    nnodes: Option<RangeInclusive<usize>>,

    /// Number of this node from 0; node 0 leads [default: by host name].
    #[arg(long, value_name = "RANK", allow_negative_numbers = true)]
    node_rank: Option<usize>,

    /// Address of the node that leads; all nodes meet there.
    ///
    /// On one node: `--master-addr` and `--master-port` in one.
    #[arg(long, value_name = "HOST[:PORT]", value_parser = endpoint)]
    rdzv_endpoint: Option<(String, u16)>,

    /// Name of the run, the same on all nodes; TORCHELASTIC_RUN_ID.
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) rdzv_id: Option<String>,

    /// File with a secret, the same on all nodes, mode 0600.
    ///
    /// Without it: the variable DTRAIN_RDZV_SECRET. `none`: anyone may join.
    #[arg(long, value_name = "FILE|none")]
    pub(crate) rdzv_secret: Option<PathBuf>,

    /// Network interface of this node [default: the one towards the leader].
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    rdzv_interface: Option<String>,

    /// `static`: node 0 leads; `c10d`: the node at the endpoint leads.
    #[arg(long, value_name = "NAME", value_parser = backend)]
    rdzv_backend: Option<String>,

    /// Time-outs and other settings of the rendezvous.
    #[arg(long, value_name = "KEY=VALUE,...", value_parser = rdzv_conf)]
    rdzv_conf: Option<RdzvConf>,

    /// MASTER_ADDR [default: 127.0.0.1; on several nodes that of node 0].
    #[arg(long, value_name = "HOST", value_parser = host)]
    master_addr: Option<String>,

    /// MASTER_PORT: a free port; 0 chooses one [default: 0].
    #[arg(long, value_name = "PORT", allow_negative_numbers = true)]
    pub(super) master_port: Option<u16>,

    /// Address by which the other nodes reach this node.
    ///
    /// On one node: the same as `--master-addr`.
    #[arg(long, value_name = "HOST", value_parser = host)]
    local_addr: Option<String>,

    /// One node; overrides `--rdzv-endpoint`.
    #[arg(long)]
    pub(crate) standalone: bool,

    /// What the job sets.
    #[arg(skip)]
    from_job: FromJob,
}

/// A run on several nodes, as the flags describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rendezvous {
    pub(crate) nodes: RangeInclusive<usize>,
    pub(crate) node_rank: Option<usize>,
    /// Where the leader listens.
    pub(crate) endpoint: Endpoint,
    pub(crate) run_id: Option<String>,
    pub(crate) secret: Option<PathBuf>,
    pub(crate) interface: Option<String>,
    /// The address by which others reach this node, if the user names it.
    pub(crate) local_addr: Option<String>,
    /// Whether this node leads; `None`: if the endpoint is an address of this machine.
    pub(crate) leads: Option<bool>,
    pub(crate) join_timeout: Duration,
    pub(crate) last_call: Duration,
    pub(crate) times: Times,
    /// Whether this is torchrun's static form: PyTorch's store is at the same port.
    pub(crate) is_static: bool,
    /// Whether a node that joins a running training is taken in at once, by a checkpoint and a restart.
    pub(crate) admits_at_checkpoint: bool,
    /// Whether a node that gets TERM leaves the run: outside of a batch job.
    pub(crate) nodes_may_leave: bool,
    /// Whether the nodes try each other before the workers start.
    pub(crate) has_trial: bool,
    /// Number of the job's nodes, if the job starts this command once on each.
    pub(crate) nodes_of_job: Option<usize>,
}

impl RendezvousArgs {
    /// Returns `--rdzv-interface`.
    pub(crate) fn interface(&self) -> Option<&str> {
        self.rdzv_interface.as_deref()
    }

    /// Returns the flags that `dtrain doctor` cannot use on one node.
    pub(crate) fn without_use_alone(&self) -> Vec<&'static str> {
        let given = [
            ("--node-rank", self.node_rank.is_some()),
            ("--rdzv-endpoint", self.rdzv_endpoint.is_some()),
            ("--rdzv-id", self.rdzv_id.is_some()),
            ("--rdzv-secret", self.rdzv_secret.is_some()),
            ("--rdzv-backend", self.rdzv_backend.is_some()),
            ("--rdzv-conf", self.rdzv_conf.is_some()),
            ("--master-addr", self.master_addr.is_some()),
            ("--master-port", self.master_port.is_some()),
            ("--local-addr", self.local_addr.is_some()),
        ];
        given.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag).collect()
    }

    /// Checks the flags against each other; returns warnings for the user.
    pub(crate) fn check(&self) -> anyhow::Result<Vec<String>> {
        if let Some(nodes) = self.nnodes.as_ref().filter(|nodes| **nodes != (1..=1) && self.standalone) {
            let nodes = described(nodes);
            bail!("--standalone and --nnodes {nodes} contradict each other: --standalone is one node");
        }
        let conf = self.rdzv_conf.as_ref();
        let mut notes: Vec<String> = self.from_job.note.iter().cloned().chain(self.outranked()).collect();
        if self.is_several() {
            self.rendezvous()?;
            let without_use = conf.map_or_else(|| Ok(Vec::new()), RdzvConf::without_use_on_several)?;
            notes.retain(|note| !note.starts_with("--local-addr"));
            let note = (!without_use.is_empty()).then(|| {
                format!("--rdzv-conf {} is ignored: dtrain has no such setting", without_use.join(", "))
            });
            notes.extend(note);
            return Ok(notes);
        }
        if let Some(rank) = self.node_rank.filter(|rank| *rank > 0) {
            bail!("--node-rank {rank}: the only node is 0; for several nodes, give --nnodes");
        }
        for (given, flag) in [
            (self.rdzv_secret.is_some(), "--rdzv-secret"),
            (self.rdzv_interface.is_some(), "--rdzv-interface"),
        ] {
            if given {
                bail!("{flag} has no effect on one node; leave it out, or give --nnodes");
            }
        }
        let without_use = conf.map_or_else(|| Ok(Vec::new()), RdzvConf::without_use_on_one)?.join(", ");
        if !without_use.is_empty() {
            notes.push(format!(
                "--rdzv-conf {without_use} is ignored: there is only one node, and the store uses TCP"
            ));
        }
        if self.rdzv_backend.as_deref() == Some("c10d") {
            notes.push("--rdzv-backend c10d is the same as static on one node".to_owned());
        }
        Ok(notes)
    }

    /// Returns whether the run is on several nodes.
    pub(crate) fn is_several(&self) -> bool {
        self.nnodes.as_ref().is_some_and(|nodes| *nodes != (1..=1))
    }

    /// Returns the meeting of several nodes; `None` for one node.
    pub(crate) fn rendezvous(&self) -> anyhow::Result<Option<Rendezvous>> {
        let Some(nodes) = self.nnodes.clone().filter(|_| self.is_several()) else {
            return Ok(None);
        };
        if let Some(rank) = self.node_rank.filter(|rank| rank >= nodes.end()) {
            let last = nodes.end() - 1;
            bail!("--node-rank {rank}: there are {} nodes, 0 to {last}", nodes.end());
        }
        let is_c10d = self.rdzv_backend.as_deref() == Some("c10d");
        let (host, port) = match (&self.rdzv_endpoint, &self.master_addr, self.node_rank) {
            (Some((host, port)), ..) => (host.clone(), *port),
            (None, Some(host), _) => (host.clone(), self.master_port.unwrap_or(STATIC_PORT)),
            // As with torchrun: for several agents on one machine.
            (None, None, Some(_)) => ("127.0.0.1".to_owned(), self.master_port.unwrap_or(STATIC_PORT)),
            (None, None, None) => bail!(
                "--nnodes {}: where do the nodes meet? Give --rdzv-endpoint HOST:PORT with the address of one of them",
                described(&nodes)
            ),
        };
        let port = match port {
            0 if self.rdzv_endpoint.is_some() => C10D_PORT,
            0 => bail!("--master-port 0: several nodes need one port that all know; give its number"),
            port => port,
        };
        let conf = self.rdzv_conf.clone().unwrap_or_default();
        let by_rank = self.node_rank.map(|rank| rank == 0).filter(|_| !is_c10d);
        Ok(Some(Rendezvous {
            nodes,
            // As with torchrun, where node ranks belong to the static form.
            node_rank: self.node_rank.filter(|_| !is_c10d).or(self.from_job.node_rank),
            endpoint: Endpoint { host, port },
            run_id: self.rdzv_id.clone(),
            secret: self.rdzv_secret.clone(),
            interface: self.rdzv_interface.clone(),
            local_addr: self.local_addr.clone(),
            leads: conf.boolean("is_host")?.or(by_rank).or(self.from_job.leads),
            join_timeout: conf.join_timeout()?,
            last_call: conf.last_call()?,
            times: conf.times()?,
            is_static: by_rank.is_some(),
            admits_at_checkpoint: conf.admits_at_checkpoint()?,
            nodes_may_leave: !self.from_job.is_job,
            has_trial: conf.boolean("trial")?.unwrap_or(true),
            nodes_of_job: self.from_job.nodes,
        }))
    }

    /// Returns warnings for flags of the meeting point that another flag overrides, as with torchrun.
    fn outranked(&self) -> Vec<String> {
        let (endpoint, given) = (self.endpoint().is_some(), self.rdzv_endpoint.is_some());
        let (addr, local) = (self.master_addr.is_some(), self.local_addr.is_some());
        let port = self.master_port.is_some();
        let pairs = [
            ("--rdzv-endpoint", given, "--standalone", self.standalone),
            ("--master-addr", addr, "--rdzv-endpoint", endpoint),
            ("--master-port", port, "--rdzv-endpoint", endpoint),
            ("--local-addr", local, "--rdzv-endpoint", endpoint),
            ("--local-addr", local, "--master-addr", addr && !endpoint),
        ];
        pairs
            .into_iter()
            .filter(|(_, given, _, stronger)| *given && *stronger)
            .map(|(flag, _, stronger, _)| format!("{flag} is ignored: {stronger} overrides it"))
            .collect()
    }

    /// Returns the endpoint in effect: with --standalone, the launcher chooses it.
    fn endpoint(&self) -> Option<&(String, u16)> {
        self.rdzv_endpoint.as_ref().filter(|_| !self.standalone)
    }

    /// Returns the flag and the host on which rank 0 must listen, on one node.
    pub(crate) fn host(&self) -> Option<(&'static str, &str)> {
        let endpoint = self.endpoint().map(|(host, _)| host);
        [
            ("--rdzv-endpoint", endpoint),
            ("--master-addr", self.master_addr.as_ref()),
            ("--local-addr", self.local_addr.as_ref()),
        ]
        .into_iter()
        .find_map(|(flag, host)| Some((flag, host?.as_str())))
    }

    /// Returns the flag and the port on which rank 0 must listen, on one node; `None` for any free port.
    pub(crate) fn port(&self) -> Option<(&'static str, u16)> {
        let (flag, port) = match self.endpoint() {
            Some((_, port)) => ("--rdzv-endpoint", *port),
            None => ("--master-port", self.master_port?),
        };
        (port != 0).then_some((flag, port))
    }
}

/// Writes a number of nodes as the user did.
fn described(nodes: &RangeInclusive<usize>) -> String {
    match (nodes.start(), nodes.end()) {
        (least, most) if least == most => most.to_string(),
        (least, most) => format!("{least}:{most}"),
    }
}

#[cfg(test)]
mod tests;
