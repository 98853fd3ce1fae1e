//! What the flags of the rendezvous take from the job.

use super::{C10D_PORT, RendezvousArgs, described};
use anyhow::bail;
use dtrain_common::host;
use dtrain_common::text::counted;
use dtrain_job::{Job, Number, Starter, Tasks};
use std::net::IpAddr;

/// What a job sets beyond the flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FromJob {
    /// Whether a batch system has started this process.
    pub(super) is_job: bool,
    pub(super) node_rank: Option<usize>,
    /// Whether this node leads, if the endpoint is that of a node of the job.
    pub(super) leads: Option<bool>,
    /// Number of the job's nodes, if it starts one task on each.
    pub(super) nodes: Option<usize>,
    /// The facts that were taken, or the reason why none were.
    pub(super) note: Option<String>,
}

impl RendezvousArgs {
    /// Refuses several launches on one node, unless a flag describes the nodes: each would start all workers.
    pub(crate) fn expect_one_task(&self, job: &Job) -> anyhow::Result<()> {
        let Some(tasks) = &job.tasks else { return Ok(()) };
        if self.nnodes.is_none() && !tasks.is_alone() {
            let size = tasks.local_size.map_or_else(String::new, |size| size.to_string());
            bail!(
                "{} starts this command more than once on this node ({size}), and each would start all workers; \
                 start one per node, or give --standalone for a run of each",
                job.described()
            );
        }
        Ok(())
    }

    /// Returns whether no flag says where the nodes meet.
    pub(crate) fn lacks_endpoint(&self) -> bool {
        self.rdzv_endpoint.is_none() && self.master_addr.is_none()
    }

    /// Takes from the job what no flag gives: number of nodes, endpoint, name of the run, and node rank.
    ///
    /// # Errors
    ///
    /// A flag contradicts the job.
    pub(crate) fn complete(&mut self, job: &Job) -> anyhow::Result<()> {
        self.from_job.is_job = job.allocation.is_some() || job.tasks.is_some();
        let Some(tasks) = &job.tasks else {
            self.from_job.note = self.nnodes.is_none().then(|| alone(job)).flatten();
            return Ok(());
        };
        match tasks.one_per_node() {
            Some((_, nodes)) if self.nnodes == Some(1..=1) && nodes.value > 1 => {
                self.from_job.note = Some(format!(
                    "--nnodes 1: each of the {} of {} is a separate run",
                    counted(nodes.value, "node"),
                    job.described()
                ));
            }
            Some((node, nodes)) => {
                self.expect_agreement(node, nodes)?;
                self.nnodes.get_or_insert(nodes.value..=nodes.value);
                self.from_job.nodes = Some(nodes.value);
                self.join(job, tasks, node);
            }
            // Kubernetes does not tell how many nodes there are.
            None if self.is_several() && tasks.nodes.is_none() && tasks.is_alone() => {
                if let Some(node) = tasks.node {
                    self.join(job, tasks, node);
                }
            }
            None => {}
        }
        Ok(())
    }

    fn expect_agreement(&self, node: Number, nodes: Number) -> anyhow::Result<()> {
        if let Some(given) = self.nnodes.as_ref().filter(|given| !given.contains(&nodes.value)) {
            bail!(
                "--nnodes {} contradicts {nodes}; leave it out, or give --standalone for a run of each node",
                described(given)
            );
        }
        if let Some(given) = self.node_rank.filter(|given| *given != node.value) {
            bail!("--node-rank {given} contradicts {node}; leave it out");
        }
        Ok(())
    }

    /// Returns the host where the nodes meet, as the user gave it or the job.
    fn meeting_host(&self) -> Option<&str> {
        let endpoint = self.rdzv_endpoint.as_ref().map(|(host, _)| host);
        endpoint.or(self.master_addr.as_ref()).map(String::as_str)
    }

    /// Replaces the host where the nodes meet by the address that the job knows for it. The leader needs none.
    pub(crate) fn find_host(&mut self, address_of: impl FnOnce(&str) -> Option<String>) {
        if !self.is_several() || self.from_job.leads == Some(true) {
            return;
        }
        let Some(host) = self.meeting_host().map(str::to_owned) else { return };
        let Some(address) = address_of(&host) else { return };
        if let Some(note) = &mut self.from_job.note {
            note.push_str(&format!("; the address of {host} is {address}"));
        }
        match &mut self.rdzv_endpoint {
            Some((host, _)) => *host = address,
            None => self.master_addr = Some(address),
        }
    }

    fn join(&mut self, job: &Job, tasks: &Tasks, node: Number) {
        self.rdzv_id = self.rdzv_id.take().or_else(|| job.id());
        let mut place = String::new();
        if self.lacks_endpoint()
            && let Some(host) = &tasks.first_host
        {
            let port = self.master_port.filter(|port| *port != 0);
            let port = port.or_else(|| job.port()).unwrap_or(C10D_PORT);
            place = format!(", which meet at {host}:{port}");
            self.rdzv_endpoint = Some((host.clone(), port));
            self.master_port = None;
            self.from_job.leads = Some(node.value == 0);
        } else if let Some(host) = self.meeting_host() {
            self.from_job.leads = is_leading(tasks, host, node.value, &host::name());
        }
        self.from_job.node_rank = Some(node.value);
        let nodes = self.nnodes.as_ref().map_or_else(String::new, described);
        self.from_job.note =
            Some(format!("node rank {} of {nodes} nodes{place}, from {}", node.value, job.described()));
    }
}

/// Returns whether this node, `own` with this index, is the one that a host means; `None` for an address, and a name that the
/// job does not know. A pod of Kubernetes knows no other pods, and a service may have any name: the first one leads.
fn is_leading(tasks: &Tasks, host: &str, index: usize, own: &str) -> Option<bool> {
    if tasks.starter == Starter::Kubernetes {
        return Some(index == 0);
    }
    if host.parse::<IpAddr>().is_ok() {
        return None;
    }
    // The job's names, or the user's, may have no domain.
    let label = |name: &str| name.split('.').next().map(str::to_ascii_lowercase);
    let known: Vec<_> =
        tasks.hosts.iter().flatten().chain(&tasks.first_host).map(|known| label(known)).collect();
    let named = known.iter().position(|known| *known == label(host))?;
    // The starter may count the nodes in another order than the list. A machine may have other names than in the list.
    Some(if known.contains(&label(own)) { label(own) == label(host) } else { named == index })
}

/// Returns a note for a batch script of a job with several nodes.
fn alone(job: &Job) -> Option<String> {
    let allocation = job.allocation.as_ref()?;
    let nodes = allocation.nodes.filter(|nodes| *nodes > 1)?;
    Some(format!(
        "{} has {}, but only this one runs dtrain; for all nodes, start it with {}",
        job.described(),
        counted(nodes, "node"),
        allocation.system.starter()
    ))
}

#[cfg(test)]
mod tests;
