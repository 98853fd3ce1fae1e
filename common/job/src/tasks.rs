//! The tasks of a starter, and this task among them.

use crate::allocation::Allocation;
use crate::error::JobError;
use crate::starter::{Names, Starter};
use crate::surroundings::{Number, Surroundings};
use crate::{hostlist, hosts};
use dtrain_common::env::job::{
    PMIX_NAMESPACE, SLURM_STEP_ID, SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE,
};
use dtrain_common::text::counted;
use std::fmt::Display;

/// This task among those of its starter. `None` for what is neither told nor follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tasks {
    pub starter: Starter,
    /// The step of the job, in Slurm.
    pub step: Option<String>,
    /// PMIx's name of the tasks.
    pub namespace: Option<String>,
    pub rank: Number,
    /// Number of tasks on all nodes.
    pub size: Option<Number>,
    /// Rank of this task on its node.
    pub local_rank: Option<Number>,
    /// Number of tasks on this node.
    pub local_size: Option<Number>,
    /// Index of this node.
    pub node: Option<Number>,
    /// Number of nodes.
    pub nodes: Option<Number>,
    /// The hosts in the order of the nodes' indices.
    pub hosts: Option<Vec<String>>,
    /// The host of rank 0.
    pub first_host: Option<String>,
}

impl Tasks {
    pub(crate) fn detect(
        from: Surroundings<'_>,
        allocation: Option<&Allocation>,
    ) -> Result<Option<Self>, JobError> {
        let Some(names) = Starter::detect(from) else { return Ok(None) };
        let mut tasks = Self::told(from, names)?;
        tasks.check()?;
        match tasks.starter {
            Starter::Srun => tasks.add_step(from)?,
            _ => tasks.add_rest(from, allocation)?,
        }
        tasks.check()?;
        Ok(Some(tasks))
    }

    /// Returns this node and the number of nodes if each node has one task, and there are several nodes.
    pub fn one_per_node(&self) -> Option<(Number, Number)> {
        let (node, nodes) = (self.node?, self.nodes?);
        let all = self.size.is_some_and(|size| size.value == nodes.value);
        (all && nodes.value > 1 && self.is_alone()).then_some((node, nodes))
    }

    /// Returns whether this is the only task of its node, as far as known.
    pub fn is_alone(&self) -> bool {
        self.local_size.is_none_or(|size| size.value == 1)
    }

    /// Reads the variables of a starter.
    fn told(from: Surroundings<'_>, names: &Names) -> Result<Self, JobError> {
        let number = |name: Option<&'static str>| name.map_or(Ok(None), |name| from.number(name));
        let Some(rank) = from.number(names.rank)? else {
            let present = names.local_rank.unwrap_or(names.rank);
            return Err(JobError::Missing { missing: names.rank, present });
        };
        Ok(Self {
            starter: names.starter,
            step: None,
            namespace: from.text(PMIX_NAMESPACE),
            rank,
            size: number(names.size)?,
            local_rank: number(names.local_rank)?,
            local_size: number(names.local_size)?,
            node: number(names.node)?,
            nodes: number(names.nodes)?,
            hosts: None,
            first_host: None,
        })
    }

    /// Adds what Slurm tells about a step: hosts, and tasks of each node.
    fn add_step(&mut self, from: Surroundings<'_>) -> Result<(), JobError> {
        self.step = from.text(SLURM_STEP_ID);
        if let Some(hosts) = hosts::slurm(from, SLURM_STEP_NODELIST)? {
            let length = Number { value: hosts.len(), source: SLURM_STEP_NODELIST };
            let list = || shown(from, SLURM_STEP_NODELIST);
            expect_equal(self.nodes, &length, &list, "host")?;
            self.nodes = self.nodes.or(Some(length));
            self.first_host = hosts.first().cloned();
            self.hosts = Some(hosts);
        }
        let Some(counts) = hosts::list(from, SLURM_STEP_TASKS_PER_NODE, hostlist::counts)? else {
            return Ok(());
        };
        let of = |value| Number { value, source: SLURM_STEP_TASKS_PER_NODE };
        let list = || shown(from, SLURM_STEP_TASKS_PER_NODE);
        let sum = of(counts.iter().fold(0, |sum: usize, count| sum.saturating_add(*count)));
        expect_equal(self.nodes, &of(counts.len()), &list, "node")?;
        expect_equal(self.size, &sum, &list, "task")?;
        self.size = self.size.or(Some(sum));
        self.local_size = self.node.and_then(|node| counts.get(node.value)).map(|count| of(*count));
        Ok(())
    }

    /// Adds what follows for other starters, and the hosts of the batch system.
    fn add_rest(&mut self, from: Surroundings<'_>, allocation: Option<&Allocation>) -> Result<(), JobError> {
        if matches!(self.starter, Starter::Kubernetes | Starter::Pbsdsh) {
            // These start one task on a node, and do not number tasks otherwise.
            let source = self.rank.source;
            self.local_rank = Some(Number { value: 0, source });
            self.local_size = Some(Number { value: 1, source });
        }
        if self.starter == Starter::Kubernetes {
            self.first_host = hosts::first_pod(from, self.rank.value);
        }
        let told = allocation.map_or(Ok(None), |allocation| hosts::of_job(from, allocation.system))?;
        if self.starter == Starter::Pbsdsh {
            let length = told.as_ref().map(|hosts| Number { value: hosts.len(), source: self.rank.source });
            self.nodes = self.nodes.or(length);
            self.size = self.nodes;
        }
        self.divide();
        // A starter may use a part of the job's hosts, and the list does not tell which.
        let nodes = self.nodes.map(|nodes| nodes.value);
        self.hosts = told.filter(|hosts| nodes == Some(hosts.len()));
        let listed = self.hosts.as_ref().and_then(|hosts| hosts.first().cloned());
        self.first_host = self.first_host.take().or(listed);
        Ok(())
    }

    /// Derives number of nodes, local size and index of the node from each other, if the tasks divide evenly.
    fn divide(&mut self) {
        let even = |all: Option<Number>, part: Option<Number>| {
            let (all, part) = (all?, part?);
            let is_even = part.value > 0 && all.value.is_multiple_of(part.value);
            is_even.then(|| Number { value: all.value / part.value, ..all })
        };
        self.local_size = self.local_size.or_else(|| even(self.size, self.nodes));
        self.nodes = self.nodes.or_else(|| even(self.size, self.local_size));
        let (Some(local_rank), Some(local_size)) = (self.local_rank, self.local_size) else { return };
        // Ranks are in the order of the nodes, unless the local rank shows another order.
        let is_block = local_size.value > 0 && self.rank.value % local_size.value == local_rank.value;
        if is_block && self.nodes.is_some() {
            let node = Number { value: self.rank.value / local_size.value, ..self.rank };
            self.node = self.node.or(Some(node));
        }
    }

    /// Checks that each number is below its limit.
    fn check(&self) -> Result<(), JobError> {
        type Compare = fn(&usize, &usize) -> bool;
        let refuse = |one: Option<Number>, is: Compare, limit: Option<Number>| match (one, limit) {
            (Some(one), Some(limit)) if is(&one.value, &limit.value) => Err(contradiction(&one, &limit, "")),
            _ => Ok(()),
        };
        refuse(Some(self.rank), usize::ge, self.size)?;
        refuse(self.local_rank, usize::ge, self.local_size)?;
        refuse(self.node, usize::ge, self.nodes)?;
        refuse(self.local_size, usize::gt, self.size)?;
        refuse(self.nodes, usize::gt, self.size)
    }
}

/// Compares a number with the one that a list has.
fn expect_equal(
    told: Option<Number>,
    of_list: &Number,
    list: &dyn Fn() -> String,
    what: &str,
) -> Result<(), JobError> {
    match told {
        Some(told) if told.value != of_list.value => {
            Err(contradiction(&told, &list(), &format!(" ({})", counted(of_list.value, what))))
        }
        _ => Ok(()),
    }
}

fn contradiction(one: &dyn Display, other: &dyn Display, detail: &str) -> JobError {
    JobError::Contradiction { one: one.to_string(), other: other.to_string(), detail: detail.to_owned() }
}

/// Returns a variable as it is set.
fn shown(from: Surroundings<'_>, name: &str) -> String {
    format!("{name}={}", from.text(name).unwrap_or_default())
}
