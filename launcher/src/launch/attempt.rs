//! What one start of the whole group needs.

use super::environment::Shared;
use super::files::Files;
use super::meeting::Meeting;
use super::port::MasterPort;
use super::reactor::Job;
use super::run::Run;
use crate::cli::LaunchArgs;
use crate::plan::{Plan, cores};
use anyhow::Context;
use dtrain_agent::clock::Begun;
use dtrain_agent::io::heartbeats::Heartbeats;
use dtrain_agent::io::memory_copies::MemoryCopies;
use dtrain_agent::io::output::{Stream, draws_frames};
use dtrain_agent::io::process::memory_kill::MemoryKills;
use dtrain_agent::io::store::Place;
use dtrain_agent::io::temporary::Temporary;
use dtrain_agent::local::Cause;
use dtrain_common::env::omp_threads;
use dtrain_common::files::write_atomic;
use dtrain_common::run_dir::RunDir;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

/// One start of the whole group.
pub(super) struct Attempt {
    pub(super) port: MasterPort,
    /// Where the store is served, until it is taken.
    pub(super) store: Option<Place>,
    pub(super) files: Files,
    heartbeats: Heartbeats,
    /// The kernel's kills for memory before this attempt.
    pub(super) memory_kills: MemoryKills,
    /// Counts from 0.
    restart: u32,
}

/// Who has the port at which a worker could not listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    ByAnother,
    ByTheStore,
}

impl Attempt {
    pub(super) fn prepare(
        plan: &Plan,
        meeting: &Meeting,
        temporary: &Temporary,
        restart: u32,
    ) -> anyhow::Result<Self> {
        let (port, store) = meeting.place(plan.serves_store())?;
        Ok(Self {
            port,
            store,
            files: Files::create(plan.run_dir.as_ref(), &plan.routing, temporary)?,
            heartbeats: Heartbeats::new(temporary)?,
            memory_kills: MemoryKills::note(),
            restart,
        })
    }

    /// What is to be supervised. `notices` are signals for the workers that came before.
    pub(super) fn job<'a>(
        &'a self,
        store: Option<Place>,
        (plan, meeting): (&'a Plan, &Meeting),
        args: &LaunchArgs,
        begun: Begun,
        copies: Option<&MemoryCopies>,
        notices: Vec<i32>,
    ) -> Job<'a> {
        let threads = omp_threads(cores(), plan.nproc);
        let shared = Shared {
            world_size: plan.nproc,
            master_port: self.port.number,
            master_addr: meeting.host.clone(),
            use_agent_store: plan.serves_store(),
            role: args.contract.role.clone(),
            own_devices: plan.own_devices.clone(),
            run_id: args.contract.rdzv_id.clone().unwrap_or_else(|| run_id(begun)),
            omp_threads: plan.bound.at_most(threads),
            start: begun.wall,
            devices: plan.devices.clone(),
            // A bar that nobody sees is drawn as lines, which the log keeps.
            frames: draws_frames(Stream::Stderr) && plan.routing.route(0, Stream::Stderr).shown,
            restart: self.restart,
            max_restarts: args.max_restarts,
            signals: args.contract.signal_names(),
            memory_copies: copies.map(|copies| copies.path().to_owned()),
            collective_timeout: args.limits.collective_timeout,
        };
        let spec = |rank| {
            let files = [self.files.error_file(rank), self.heartbeats.file(rank)];
            plan.worker(rank, shared.vars(rank, &files, |name| std::env::var_os(name)))
        };
        Job {
            plan,
            specs: (0..plan.nproc).map(spec).collect(),
            store,
            files: &self.files,
            heartbeats: &self.heartbeats,
            shutdown_timeout: args.shutdown_timeout(),
            hang: args.hang_policy(),
            notices,
        }
    }

    /// Whether a worker could not listen at its port, where that has a remedy. Where the store is served,
    /// another rank may have failed first, and all may have reported that only to each other.
    pub(super) fn port_was_taken(&self, run: &Run) -> Option<Taken> {
        let Cause::Failed { rank } = run.verdict.cause else {
            return None;
        };
        let says = |rank: usize| {
            let said = run.tails[rank].lines();
            let reported = self.files.reported_error(rank).unwrap_or_default();
            self.port.was_taken(said.iter().map(String::as_str).chain(reported.lines()))
        };
        match run.met {
            Some(met) if met.is_in_the_way() || says(rank) || says(0) => Some(Taken::ByTheStore),
            None if self.port.chosen && says(rank) => Some(Taken::ByAnother),
            _ => None,
        }
    }
}

/// No other launch on this machine has it at the same time.
fn run_id(begun: Begun) -> String {
    format!("{:x}-{}", begun.unix_ms(Duration::ZERO), std::process::id())
}

/// The result of an earlier start in the same run directory, or of an attempt, and its path.
pub(super) struct EarlierResult(Option<(PathBuf, Vec<u8>)>);

impl EarlierResult {
    /// Removes it, since it is not the result of the attempt which begins.
    pub(super) fn set_aside(run_dir: Option<&RunDir>) -> anyhow::Result<Self> {
        let Some(path) = run_dir.map(RunDir::result) else {
            return Ok(Self(None));
        };
        let content = match std::fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self(None)),
            other => other.with_context(|| format!("cannot read the earlier {}", path.display()))?,
        };
        std::fs::remove_file(&path)
            .with_context(|| format!("cannot remove the earlier {}", path.display()))?;
        Ok(Self(Some((path, content))))
    }

    /// For an attempt that has not begun; answers an error message.
    pub(super) fn put_back(&self) -> Option<String> {
        let (path, content) = self.0.as_ref()?;
        let error = write_atomic(path, content).err()?;
        Some(format!("dtrain: cannot put back {}: {error}", path.display()))
    }
}
