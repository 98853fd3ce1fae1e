//! `dtrain launch`: check everything, start the workers, supervise them, report.

mod devices;
mod environment;
mod files;
mod gpu_check;
mod group;
mod inspect;
mod limit;
mod meeting;
mod numa;
mod placement;
mod plan;
mod port;
mod report;
mod size;
mod slurm;
mod store;
mod streams;
mod supervise;

use crate::cli::LaunchArgs;
use anyhow::{Context, bail};
use dtrain_agent::clock::Begun;
use dtrain_agent::io::guardian::Behind;
use dtrain_agent::io::heartbeats::Heartbeats;
use dtrain_agent::io::memory_copies::MemoryCopies;
use dtrain_agent::io::output::{Screen, Stream, draws_frames};
use dtrain_agent::io::process::memory_kill::MemoryKills;
use dtrain_agent::io::store::Place;
use dtrain_agent::io::temporary::Temporary;
use dtrain_agent::local::{Cause, Next, RestartPolicy, Restarts, Resumption};
use dtrain_common::env::{TORCHELASTIC_USE_AGENT_STORE, omp_threads};
use dtrain_common::exit::ExitStatus;
use dtrain_common::files::write_atomic;
use dtrain_common::run_dir::RunDir;
use environment::Shared;
use files::Files;
use meeting::Meeting;
use plan::Plan;
pub(crate) use plan::find_worker;
use port::MasterPort;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use supervise::{Early, Run};

/// Runs the command to its end. Call it from the main thread: the workers die with the thread that starts them.
///
/// # Errors
/// Whatever is wrong before all workers run. None is left running then, and nothing of an earlier run is overwritten.
pub(crate) fn run(args: &Arc<LaunchArgs>, behind: Behind, begun: Begun) -> anyhow::Result<ExitStatus> {
    let temporary = Temporary::of_guardian(behind.temporary.clone());
    let supervisor = supervise::Supervisor::new(begun, &behind, &args.contract.signals())?;
    let asked = Arc::clone(args);
    let check = move || -> anyhow::Result<_> {
        let notes = asked.contract.check()?;
        let meeting = Meeting::check(&asked.contract)?;
        Ok((notes, meeting, Plan::new(&asked, begun)?))
    };
    let (notes, meeting, mut plan) = match supervisor.while_nothing_runs(check)? {
        Early::Done(checked) => checked?,
        Early::Stopped { signal } => return Ok(report::not_begun(None, Cause::Stopped { signal })),
    };
    let mut restarts = Restarts::new(RestartPolicy {
        max_restarts: args.max_restarts,
        permanent: plan.permanent_failures(),
        limit: plan.limit,
        training: plan.requeue_code().is_some(),
    });
    // What has come already is heard as between two attempts.
    supervisor.pause(Duration::ZERO, &mut restarts);
    let mut notices = match restarts.resume(begun.elapsed(), plan.has_checkpoint()) {
        Resumption::Start { notices } => notices,
        Resumption::Stopped { signal } => {
            return Ok(report::not_begun(Some(&plan), Cause::Stopped { signal }));
        }
        Resumption::Requeue => return Ok(report::not_begun(Some(&plan), Cause::Requeue)),
        // The attempt says so.
        Resumption::TooLate { .. } => Vec::new(),
    };
    if plan.is_evicted() {
        return Ok(report::not_begun(Some(&plan), Cause::Evicted));
    }
    plan.tell(notes);
    let copies = plan
        .keeps_copies()
        .then(|| MemoryCopies::new(&temporary))
        .transpose()?;
    let mut attempt = Attempt::prepare(&plan, &meeting, &temporary, 0, args.max_restarts)?;
    let screen = Screen::start(plan.headline()).context("cannot start the thread that writes the output")?;
    // The screen's thread ends only after the last sender is gone, so this cannot fail while the launcher runs.
    let say = |text: String| drop(screen.notices.send(text));
    for note in attempt
        .files
        .note()
        .into_iter()
        .chain(plan.routing.note().map(str::to_owned))
    {
        say(format!("dtrain: {note}"));
    }
    // Why another attempt that the user had allowed was not made.
    let mut not_restarted = None;
    // The latest attempt in which workers ran, or the first: what the run comes to if no other can be started.
    let mut failed: Option<(Run, Attempt)> = None;

    let (mut run, attempt) = loop {
        let started = begun.elapsed();
        let mut earlier = EarlierResult(None);
        let begin = || {
            if plan.is_evicted() {
                bail!("another run has taken the run directory");
            }
            if let Some(run_dir) = &plan.run_dir {
                earlier = EarlierResult::set_aside(run_dir)?;
            }
            let store = attempt.store.take();
            let job = supervise::Job {
                store,
                ..attempt.job(&plan, &meeting, args, begun, copies.as_ref(), notices)
            };
            supervisor.attempt(job, &screen)
        };
        let mut run = match begin() {
            Ok(run) => run,
            Err(error) => {
                earlier.put_back(&plan, say);
                let Some(before) = failed else {
                    return match plan.is_evicted() {
                        true => Ok(report::not_begun(Some(&plan), Cause::Evicted)),
                        false => Err(error),
                    };
                };
                say(format!("dtrain: cannot restart: {error:#}"));
                break before;
            }
        };
        if let Some((rank, error)) = &run.not_started {
            let text = report::cannot_start(&plan, *rank, error);
            if !matches!(run.verdict.cause, Cause::NotStarted { passing: true, .. }) {
                attempt.files.remove();
                earlier.put_back(&plan, say);
                if let Some(before) = failed {
                    say(format!("dtrain: cannot restart: {text}"));
                    break before;
                }
                run.finish(screen);
                return Err(anyhow::anyhow!(text));
            }
            say(format!("dtrain: {text}"));
        }
        if plan.requeue_code().is_some() && run.is_stopped_before_its_first_step() && plan.has_checkpoint() {
            run.verdict.cause = Cause::Requeue;
        }
        let now = begun.elapsed();
        let taken = attempt.port_was_taken(&run);
        let lasted = now.saturating_sub(started);
        let next = restarts.after(&run.verdict, lasted, taken.is_some(), now);
        let lines = match next {
            Next::Restart { .. } | Next::Stop => report::failure(&plan, &run, &attempt),
            _ => Vec::new(),
        };
        let unkept = run.unkept.clone();
        let port = attempt.port.number;
        let (run, attempt_over) = match failed.take() {
            Some(before) if run.not_started.is_some() => before,
            _ => (run, attempt),
        };
        let pause = match next {
            Next::Finish { reason } => {
                not_restarted = reason;
                break (run, attempt_over);
            }
            Next::Stop => {
                not_restarted = Some("the launcher was asked to stop");
                unkept.into_iter().chain(lines).for_each(&say);
                Duration::ZERO
            }
            Next::OtherPort => {
                say(match taken {
                    Some(Taken::ByTheStore) => format!(
                        "dtrain: the program uses port {port} itself, where dtrain serves PyTorch's store; starting again \
                         without the store, as {TORCHELASTIC_USE_AGENT_STORE}=False does from the beginning"
                    ),
                    _ => format!(
                        "dtrain: another program took port {port} before rank 0 could use it; starting again at another port"
                    ),
                });
                plan.serves_store &= taken != Some(Taken::ByTheStore);
                Duration::ZERO
            }
            Next::Restart { restart, pause } => {
                unkept.into_iter().chain(lines).for_each(&say);
                say(report::restarting(restart, restarts.allowed(), plan.nproc, pause));
                pause
            }
        };
        let mut over = (run, attempt_over);
        supervisor.pause(pause, &mut restarts);
        match restarts.resume(begun.elapsed(), plan.has_checkpoint()) {
            Resumption::Start { notices: kept } => notices = kept,
            Resumption::Stopped { signal } => {
                over.0.verdict.cause = Cause::Stopped { signal };
                break over;
            }
            Resumption::Requeue => {
                over.0.verdict.cause = Cause::Requeue;
                break over;
            }
            Resumption::TooLate { reason } => {
                not_restarted = Some(reason);
                break over;
            }
        }
        if plan.is_evicted() {
            break over;
        }
        let prepared = plan.go_on().and_then(|()| {
            Attempt::prepare(&plan, &meeting, &temporary, restarts.used(), restarts.allowed())
        });
        attempt = match prepared {
            Ok(next) => next,
            Err(error) => {
                say(format!("dtrain: cannot restart: {error:#}"));
                break over;
            }
        };
        failed = Some(over);
    };
    if plan.is_evicted() {
        run.verdict.cause = Cause::Evicted;
    }
    let report = report::Report::new(&plan, &run, &attempt, &restarts, begun);
    if let Some(reason) = not_restarted.filter(|_| !report.is_refusal()) {
        say(format!("dtrain: not restarted: {reason}"));
    }
    if let Some(run_dir) = plan.run_dir.as_ref().filter(|_| !plan.is_evicted())
        && let Err(error) = report.write(run_dir)
    {
        say(format!(
            "dtrain: cannot write {}: {error}",
            run_dir.result().display()
        ));
    }
    for text in run.unkept.clone().into_iter().chain(report.text()) {
        say(text);
    }
    run.finish(screen);
    Ok(report.status())
}

/// Who has the port at which a worker could not listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    ByAnother,
    ByTheStore,
}

/// What one start of the whole group needs.
struct Attempt {
    port: MasterPort,
    /// Where the store is served, until it is.
    store: Option<Place>,
    files: Files,
    heartbeats: Heartbeats,
    /// What the kernel had killed for memory before this attempt.
    memory_kills: MemoryKills,
    restart: u32,
    max_restarts: u32,
}

impl Attempt {
    /// Chooses a port and makes folders. `restart` counts from 0.
    ///
    /// # Errors
    /// No port is free, or a folder cannot be made.
    fn prepare(
        plan: &Plan,
        meeting: &Meeting,
        temporary: &Temporary,
        restart: u32,
        max_restarts: u32,
    ) -> anyhow::Result<Self> {
        let (port, store) = store::place(meeting, plan.serves_store)?;
        Ok(Self {
            port,
            store,
            files: Files::create(plan.run_dir.as_ref(), &plan.routing, temporary)?,
            heartbeats: Heartbeats::new(temporary)?,
            memory_kills: MemoryKills::note(),
            restart,
            max_restarts,
        })
    }

    fn job<'a>(
        &'a self,
        plan: &'a Plan,
        meeting: &Meeting,
        args: &LaunchArgs,
        begun: Begun,
        copies: Option<&MemoryCopies>,
        notices: Vec<i32>,
    ) -> supervise::Job<'a> {
        let shared = Shared {
            world_size: plan.nproc,
            master_port: self.port.number,
            master_addr: meeting.host.clone(),
            use_agent_store: plan.serves_store,
            role: args.contract.role.clone(),
            own_devices: plan.placement.own_devices.clone(),
            run_id: args
                .contract
                .rdzv_id
                .clone()
                .unwrap_or_else(|| plan.run_id(begun)),
            omp_threads: plan
                .placement
                .bound
                .at_most(omp_threads(size::cores(), plan.nproc)),
            start: begun.wall,
            devices: plan.devices.clone(),
            // A bar that nobody sees is drawn as lines, which the log keeps.
            frames: draws_frames(Stream::Stderr) && plan.routing.route(0, Stream::Stderr).shown,
            restart: self.restart,
            max_restarts: self.max_restarts,
            signals: args.contract.signal_names(),
            memory_copies: copies.map(|copies| copies.path().to_owned()),
            collective_timeout: args.limits.collective_timeout,
        };
        let spec = |rank| {
            let files = [self.files.error_file(rank), self.heartbeats.file(rank)];
            let vars = shared.vars(rank, &files, |name| std::env::var_os(name));
            plan.worker(rank, vars)
        };
        supervise::Job {
            kind: plan.kind,
            specs: (0..plan.nproc).map(spec).collect(),
            store: None,
            files: &self.files,
            routing: &plan.routing,
            shutdown_timeout: args.shutdown_timeout(),
            requeue_code: plan.requeue_code(),
            heartbeats: &self.heartbeats,
            hang: args.hang_policy(),
            limit: plan.limit,
            plan,
            notices,
        }
    }

    /// Whether this attempt failed since a worker could not listen at its port, where that can be remedied. Where the store is
    /// served, another rank may have failed first, and all may have said so only to each other.
    fn port_was_taken(&self, run: &Run) -> Option<Taken> {
        let Cause::Failed { rank } = run.verdict.cause else {
            return None;
        };
        let says = |rank: usize| {
            let said = run.tails[rank].lines();
            let reported = self.files.reported_error(rank).unwrap_or_default();
            self.port
                .was_taken(said.iter().map(String::as_str).chain(reported.lines()))
        };
        match run.met {
            Some(met) if met.is_in_the_way() || says(rank) || says(0) => Some(Taken::ByTheStore),
            None if self.port.chosen && says(rank) => Some(Taken::ByAnother),
            _ => None,
        }
    }
}

/// The result of an earlier start in the same run directory, or of an attempt, and where it lay.
struct EarlierResult(Option<(PathBuf, Vec<u8>)>);

impl EarlierResult {
    /// Removes it: it is not that of the attempt which begins.
    fn set_aside(run_dir: &RunDir) -> anyhow::Result<Self> {
        let path = run_dir.result();
        let content = match std::fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self(None)),
            other => other.with_context(|| format!("cannot read the earlier {}", path.display()))?,
        };
        std::fs::remove_file(&path)
            .with_context(|| format!("cannot remove the earlier {}", path.display()))?;
        Ok(Self(Some((path, content))))
    }

    /// For an attempt that has not begun.
    fn put_back(&self, plan: &Plan, say: impl Fn(String)) {
        if let Some((path, content)) = &self.0
            && !plan.is_evicted()
            && let Err(error) = write_atomic(path, content)
        {
            say(format!("dtrain: cannot put back {}: {error}", path.display()));
        }
    }
}
