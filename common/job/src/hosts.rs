//! The hosts of a job, in the order of the batch system.

use crate::error::JobError;
use crate::hostlist::{self, HostlistError};
use crate::surroundings::Surroundings;
use crate::system::System;
use dtrain_common::env::job::{
    HOSTNAME, LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS, PBS_NODEFILE, SLURM_JOB_NODELIST, SLURM_NODE_ALIASES,
};
use std::path::Path;

/// The file with a pod's own names.
const HOSTS_FILE: &str = "/etc/hosts";

/// A host and how many slots the job has there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    pub(crate) host: String,
    pub(crate) slots: usize,
}

/// Returns the hosts of the whole job; `None` if they are not told on this node.
pub(crate) fn of_job(from: Surroundings<'_>, system: System) -> Result<Option<Vec<String>>, JobError> {
    let names = |slots: Vec<Slots>| slots.into_iter().map(|slots| slots.host).collect();
    Ok(match system {
        System::Slurm => slurm(from, SLURM_JOB_NODELIST)?,
        System::Pbs => pbs(from).map(names),
        System::Lsf => lsf(from).map(names),
        System::Flux => {
            let text = (from.command)(&["flux", "hostlist", "--expand", "local"]);
            text.map(|text| text.split_whitespace().map(str::to_owned).collect())
        }
        System::Kubernetes => None,
    })
}

/// Returns the hosts of one of Slurm's lists.
pub(crate) fn slurm(from: Surroundings<'_>, name: &'static str) -> Result<Option<Vec<String>>, JobError> {
    list(from, name, hostlist::expand)
}

/// Returns a variable that is one of Slurm's lists.
pub(crate) fn list<T>(
    from: Surroundings<'_>,
    name: &'static str,
    read: impl FnOnce(&str) -> Result<T, HostlistError>,
) -> Result<Option<T>, JobError> {
    let Some(value) = from.text(name) else { return Ok(None) };
    match read(&value) {
        Ok(list) => Ok(Some(list)),
        Err(error) => Err(JobError::List { name, value, error }),
    }
}

/// Returns the address that Slurm knows for a node, for a name that the machine cannot resolve: of nodes in a cloud from
/// a variable, of others from the controller.
pub fn slurm_address(from: Surroundings<'_>, node: &str) -> Option<String> {
    let aliases = from.text(SLURM_NODE_ALIASES).unwrap_or_default();
    let told = aliases.split(',').find_map(|alias| {
        // `name:address:hostname`; an IPv6 address has brackets.
        let rest = alias.strip_prefix(node)?.strip_prefix(':')?;
        match rest.strip_prefix('[') {
            Some(rest) => rest.split_once(']').map(|(address, _)| address.to_owned()),
            None => rest.split_once(':').map(|(address, _)| address.to_owned()),
        }
    });
    let ask = || {
        let text = (from.command)(&["scontrol", "show", "node", "--oneliner", node])?;
        text.split_whitespace().find_map(|word| word.strip_prefix("NodeAddr=")).map(str::to_owned)
    };
    told.or_else(ask).filter(|address| address != node && !address.is_empty())
}

/// Returns PBS's hosts: a line for each slot, only on the first host.
pub(crate) fn pbs(from: Surroundings<'_>) -> Option<Vec<Slots>> {
    distinct(&(from.file)(Path::new(&from.text(PBS_NODEFILE)?))?)
}

/// Returns LSF's hosts. A host from which jsrun starts the tasks has no task: it is first, with one slot
/// although others have more.
pub(crate) fn lsf(from: Surroundings<'_>) -> Option<Vec<Slots>> {
    let file = || distinct(&(from.file)(Path::new(&from.text(LSB_DJOB_HOSTFILE)?))?);
    let mut hosts = pairs(&from.text(LSB_MCPU_HOSTS).unwrap_or_default()).or_else(file)?;
    let starts_only = |hosts: &[Slots]| match hosts {
        [first, others @ ..] if !others.is_empty() => {
            first.slots == 1 && others.iter().all(|other| other.slots > 1)
        }
        _ => false,
    };
    if starts_only(&hosts) {
        hosts.remove(0);
    }
    Some(hosts)
}

/// Reads a host in each line; equal ones count once.
fn distinct(text: &str) -> Option<Vec<Slots>> {
    let mut hosts: Vec<Slots> = Vec::new();
    for host in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        // Lines of one host are mostly together.
        match hosts.iter_mut().rev().find(|known| known.host == host) {
            Some(known) => known.slots += 1,
            None => hosts.push(Slots { host: host.to_owned(), slots: 1 }),
        }
    }
    (!hosts.is_empty()).then_some(hosts)
}

/// Reads `a 4 b 4`.
fn pairs(text: &str) -> Option<Vec<Slots>> {
    let words: Vec<_> = text.split_whitespace().collect();
    let pairs = words.chunks(2).map(|pair| match pair {
        [host, slots] => Some(Slots { host: (*host).to_owned(), slots: slots.parse().ok()? }),
        _ => None,
    });
    pairs.collect::<Option<Vec<_>>>().filter(|hosts| !hosts.is_empty())
}

/// Returns the name of the first pod of an Indexed Job: this pod's name with index 0, in the domain under which
/// the pod's own `/etc/hosts` has it.
pub(crate) fn first_pod(from: Surroundings<'_>, index: usize) -> Option<String> {
    let pod = from.text(HOSTNAME)?;
    let first = format!("{}-0", pod.strip_suffix(&format!("-{index}"))?);
    let hosts = (from.file)(Path::new(HOSTS_FILE)).unwrap_or_default();
    let mut names = hosts.lines().flat_map(|line| line.split_whitespace().skip(1));
    let domain = names.find_map(|name| name.strip_prefix(&format!("{pod}.")));
    Some(domain.map_or_else(|| first.clone(), |domain| format!("{first}.{domain}")))
}
