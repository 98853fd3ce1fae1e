//! The batch system's job, as the environment of this process tells it.

use crate::cli::{DoctorArgs, LaunchArgs, RendezvousArgs};
use anyhow::Context;
use dtrain_agent::io::process::output;
use dtrain_common::env::{DTRAIN_GUARDIAN, is_of_a_worker, of_process};
use dtrain_common::host;
use dtrain_common::run_dir::JobId;
use dtrain_job::{Allocation, Job, Starter, Surroundings, System, slurm_address};
use dtrain_pmi::Pmi;
use std::fs;
use std::net::ToSocketAddrs;
use std::process::Command;
use std::time::Duration;

/// For programs of the batch system, whose server may not answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Adds what the job sets and the flags leave out.
pub(crate) fn complete_launch(mut args: LaunchArgs) -> anyhow::Result<LaunchArgs> {
    let rendezvous = &mut args.contract.rendezvous;
    if let Some(mut job) = detect(rendezvous.standalone)? {
        rendezvous.expect_one_task(&job)?;
        // The guardian reads the same flags before; only the launcher meets the others.
        if rendezvous.lacks_endpoint() && of_process(DTRAIN_GUARDIAN).is_some() {
            add_first_host(&mut job)?;
        }
        rendezvous.complete(&job)?;
    }
    Ok(args)
}

/// Replaces the host where the nodes meet by the job's address, if its name cannot be resolved. Name servers may be slow.
pub(crate) fn find_host(rendezvous: &mut RendezvousArgs) -> anyhow::Result<()> {
    if let Some(job) = detect(rendezvous.standalone)? {
        rendezvous.find_host(|host| address_in(&job, host));
    }
    Ok(())
}

/// Returns Slurm's address of a node whose name this machine cannot resolve.
fn address_in(job: &Job, host: &str) -> Option<String> {
    let is_slurm = job.allocation.as_ref().is_some_and(|allocation| allocation.system == System::Slurm);
    // One question for each node: the controller is not asked without need.
    if !is_slurm || (host, 0).to_socket_addrs().is_ok() {
        return None;
    }
    slurm_address(surroundings(), host)
}

/// Adds the first node's host by the starter's PMI, if the user does not tell it. Slurm tells it on all nodes. Others may
/// tell it on the first node only, and all nodes must take part in the exchange or none.
fn add_first_host(job: &mut Job) -> anyhow::Result<()> {
    let Some(tasks) = job.tasks.as_mut() else { return Ok(()) };
    if tasks.starter == Starter::Srun || tasks.one_per_node().is_none() {
        return Ok(());
    }
    if let Some(mut pmi) = Pmi::connect_if_there(&of_process)? {
        tasks.first_host = pmi.gather(&host::name())?.into_iter().next();
        pmi.finish()?;
    }
    Ok(())
}

/// As [`complete_launch`]; doctors of one node do not disturb each other.
pub(crate) fn complete_doctor(mut args: DoctorArgs) -> anyhow::Result<DoctorArgs> {
    if args.nodes.is_empty()
        && args.try_lock.is_none()
        && let Some(job) = detect(args.rendezvous.standalone)?
    {
        args.rendezvous.complete(&job)?;
        args.rendezvous.find_host(|host| address_in(&job, host));
    }
    Ok(args)
}

/// Returns the job; `None` if it does not count: for one node, and for a worker's own launches, which inherit
/// the variables of the outer run.
fn detect(standalone: bool) -> anyhow::Result<Option<Job>> {
    if standalone || is_of_a_worker(of_process) {
        return Ok(None);
    }
    let job = Job::detect(surroundings());
    job.map(Some).context("cannot read the environment of this job; --standalone ignores it")
}

/// Returns this process's environment, files and programs.
fn surroundings() -> Surroundings<'static> {
    Surroundings {
        variable: &of_process,
        file: &|path| fs::read_to_string(path).ok(),
        command: &|words| {
            let (program, args) = words.split_first()?;
            output(Command::new(program).args(args), PATIENCE)
        },
    }
}

/// Returns the batch system's job around this launch, for the record of its attempts.
pub(crate) fn around_launch() -> Option<JobId> {
    let from = Surroundings { variable: &of_process, file: &|_| None, command: &|_| None };
    Allocation::detect(from)
        .map(|allocation| JobId { system: allocation.system.to_string(), id: allocation.id })
}
