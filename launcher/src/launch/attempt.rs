//! A launch, and the resources of one start of its whole group.

use super::cluster::order::Order;
use super::environment::Shared;
use super::files::Files;
use super::inbox::Inbox;
use super::master_address::MasterAddress;
use super::on_end;
use super::port::MasterPort;
use crate::cli::LaunchArgs;
use crate::job;
use crate::plan::{LaunchPlan, cores};
use anyhow::Context;
use crossbeam_channel::Receiver;
use dtrain_agent::cluster::message::{Endpoint, RunInfo};
use dtrain_agent::io::heartbeats::Heartbeats;
use dtrain_agent::io::memory_copies::MemoryCopies;
use dtrain_agent::io::output::{Message, Stream, Tail};
use dtrain_agent::io::process::WorkerSpec;
use dtrain_agent::io::process::memory_kill::MemoryKills;
use dtrain_agent::io::store::{BoundPort, ClientsSeen};
use dtrain_agent::io::temporary::Temporary;
use dtrain_agent::local::{Cause, Event, Verdict};
use dtrain_common::env::{WorkerEnv, omp_threads};
use dtrain_common::files::{none_if_missing, write_atomic};
use dtrain_common::result::RunResult;
use dtrain_common::run_dir::{AttemptRecord, RunDir};
use rustix::process::Rlimit;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

/// A launch that has passed its checks.
pub(super) struct Launch<'a> {
    pub(super) args: &'a LaunchArgs,
    pub(super) plan: LaunchPlan,
    pub(super) master_address: MasterAddress,
    pub(super) temporary: Temporary,
    pub(super) inbox: Inbox,
    pub(super) copies: Option<MemoryCopies>,
    pub(super) run: RunInfo,
    /// The network interface towards other nodes.
    pub(super) interface: Option<String>,
    /// The file of this node's lease, on other nodes than the leader's.
    pub(super) lease: Option<PathBuf>,
    /// The workers' limit of open files, if this process has raised its own.
    pub(super) open_files: Option<Rlimit>,
}

impl Launch<'_> {
    /// Runs the command for the end of this launch, if there is one: that of the flag before that of the recipe. Returns a
    /// warning if it fails.
    pub(super) fn follow_end(&self, result: &RunResult) -> Option<Message> {
        let Self { args, plan, inbox, .. } = self;
        // The run belongs to another launch.
        if plan.is_evicted() {
            return None;
        }
        let of_recipe = || plan.training()?.on_end();
        let command = args.on_end.as_deref().or_else(of_recipe)?;
        let wait = |done: &Receiver<()>, limit| inbox.wait(done, Some(limit), false).abandoned;
        let result = result.to_json().unwrap_or_default();
        on_end::follow(command, &result, plan.run_dir.as_ref(), &inbox.family, &wait)
    }
}

/// One start of the whole group.
pub(super) struct Attempt {
    /// On the node of rank 0.
    pub(super) port: Option<MasterPort>,
    /// The port of the store, until the server takes it.
    pub(super) store: Option<BoundPort>,
    /// Where rank 0 listens.
    pub(super) rank0: Endpoint,
    pub(super) files: Files,
    pub(super) heartbeats: Heartbeats,
    /// The kernel's count of memory kills before this attempt.
    pub(super) memory_kills: MemoryKills,
    /// The number of this start, from 0.
    restart: u32,
}

/// An attempt that is over; some of its output may still wait for the screen.
pub(super) struct Run {
    pub(super) verdict: Verdict,
    /// By rank; `None` for a worker that was never started.
    pub(super) pids: Vec<Option<u32>>,
    /// The last lines of standard error by rank.
    pub(super) tails: Vec<Tail>,
    pub(super) not_started: Option<(usize, io::Error)>,
    /// The killed workers that do not end, for the user.
    pub(super) stuck: Option<String>,
    /// The message about incomplete logs.
    pub(super) failed_logs: Option<String>,
    /// The kinds of clients of the store, if the launcher served it.
    pub(super) clients_seen: Option<ClientsSeen>,
    /// Whether any worker has sent a heartbeat.
    pub(super) has_heartbeats: bool,
    /// Whether the user does not want to wait for the screen.
    pub(super) abandoned: bool,
    /// A request to stop, or the guardian's death, after the end of the workers.
    pub(super) stopped: Option<Event>,
    /// The leader's orders for the time after this attempt.
    pub(super) held: Vec<Order>,
    pub(super) passed_on: PassedOn,
}

/// The signals that the launcher passed on to the workers, with their senders in words, if known.
pub(super) type PassedOn = BTreeMap<i32, Option<String>>;

impl Attempt {
    /// `logs`: the number of the log folder; without, the next one.
    pub(super) fn prepare(launch: &Launch<'_>, restart: u32, logs: Option<u32>) -> anyhow::Result<Self> {
        let Launch { plan, master_address, temporary, inbox, .. } = launch;
        let has_rank0 = plan.placement.first_rank == 0;
        let bound = has_rank0.then(|| master_address.bind_port(plan.serves_store())).transpose()?;
        let (port, store) = bound.map_or((None, None), |(port, store)| (Some(port), store));
        let files = Files::create(plan, temporary, logs)?;
        if plan.run_dir.is_some() {
            let record = AttemptRecord {
                began_ms: inbox.start_time.unix_ms(inbox.start_time.elapsed()),
                nproc: plan.placement.world_size,
                nodes: plan.placement.group_world_size,
                job: job::around_launch(),
                ..AttemptRecord::of_this_process()
            };
            files.record(&record).inspect_err(|_| files.remove())?;
        }
        Ok(Self {
            rank0: Endpoint {
                host: master_address.host.clone(),
                port: port.as_ref().map_or(0, |port| port.number),
                is_served: store.is_some(),
            },
            port,
            store,
            files,
            heartbeats: Heartbeats::new(temporary, plan.nproc, inbox.start_time)?,
            memory_kills: MemoryKills::note(),
            restart,
        })
    }

    /// Returns the processes to start, by rank.
    pub(super) fn specs(&self, launch: &Launch<'_>) -> Vec<WorkerSpec> {
        let Launch { args, plan, inbox, copies, run, .. } = launch;
        let placement = plan.placement;
        let shared = Shared {
            worker: WorkerEnv {
                rank: placement.first_rank,
                local_rank: 0,
                gpu: 0,
                group_rank: placement.group_rank,
                role_name: args.contract.role.clone(),
                world_size: placement.world_size,
                local_world_size: plan.nproc,
                group_world_size: placement.group_world_size,
                master_addr: self.rank0.host.clone(),
                master_port: self.rank0.port,
                restart_count: self.restart,
                max_restarts: run.max_restarts,
                run_id: run.id.clone(),
                use_agent_store: self.rank0.is_served,
                // Set separately, which also works for a path that is not UTF-8.
                error_file: None,
            },
            own_devices: plan.own_devices.clone(),
            omp_threads: plan.core_binding.at_most(omp_threads(cores(), plan.nproc)),
            start: inbox.start_time.wall,
            devices: plan.devices.clone(),
            // If standard error is not shown, the worker prints progress as lines, which the log keeps.
            frames: plan.routing.can_draw_frames(Stream::Stderr)
                && plan.routing.route(0, Stream::Stderr).shown,
            format: plan.routing.format,
            signals: args.contract.signal_names(),
            memory_copies: copies.as_ref().map(|copies| copies.path().to_owned()),
            collective_timeout: args.limits.collective_timeout,
            interface: launch.interface.clone(),
            lease: launch.lease.clone(),
        };
        let spec = |rank| {
            let files = [self.files.error_file(rank), self.heartbeats.file(rank)];
            let spec = plan.worker(rank, shared.vars(rank, &files, |name| std::env::var_os(name)));
            WorkerSpec { open_files: launch.open_files, ..spec }
        };
        (0..plan.nproc).map(spec).collect()
    }

    /// Returns whether a worker could not listen at its port and a retry helps. Another rank may fail first.
    pub(super) fn port_was_taken(&self, run: &Run) -> bool {
        let (Cause::Failed { rank }, Some(port)) = (run.verdict.cause, &self.port) else {
            return false;
        };
        let says = |rank: usize| {
            let messages = run.tails[rank].lines();
            let reported = self.files.reported_error(rank).unwrap_or_default();
            port.was_taken(messages.iter().map(String::as_str).chain(reported.lines()))
        };
        match run.clients_seen {
            Some(clients_seen) => clients_seen.only_strangers() || says(rank) || says(0),
            None => port.chosen && says(rank),
        }
    }
}

/// The result file of an earlier start or attempt in this run directory: path and content.
pub(super) struct EarlierResult(PathBuf, Vec<u8>);

impl EarlierResult {
    /// Reads and removes the file: it is not the result of the new attempt.
    pub(super) fn take(run_dir: Option<&RunDir>) -> anyhow::Result<Option<Self>> {
        let Some(path) = run_dir.map(RunDir::result) else { return Ok(None) };
        let content = none_if_missing(fs::read(&path));
        let content = content.with_context(|| format!("cannot read the earlier {}", path.display()))?;
        let Some(content) = content else { return Ok(None) };
        fs::remove_file(&path).with_context(|| format!("cannot remove the earlier {}", path.display()))?;
        Ok(Some(Self(path, content)))
    }

    /// Restores the file after an attempt that did not begin; returns an error message.
    pub(super) fn restore(&self) -> Option<String> {
        let Self(path, content) = self;
        let error = write_atomic(path, content).err()?;
        Some(format!("dtrain: cannot restore {}: {error}", path.display()))
    }
}
