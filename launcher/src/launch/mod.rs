//! `dtrain launch`: check everything, start the workers, supervise them, report.

mod attempt;
mod cluster;
mod environment;
mod files;
mod group;
mod inbox;
mod master_address;
mod messages;
mod on_end;
pub(crate) mod port;
mod reactor;
mod report;

use crate::cli::LaunchArgs;
use crate::job;
use crate::plan::{self, LaunchPlan, Seat};
use crate::stdout::join_causes;
use anyhow::{Context, anyhow, bail};
use attempt::{Attempt, EarlierResult, Launch, Run};
pub(crate) use cluster::{Meeting, RendezvousFailed, cannot_connect, report_gone, usual_address};
use dtrain_agent::clock::StartTime;
use dtrain_agent::cluster::message::RunInfo;
use dtrain_agent::io::guardian::GuardianInfo;
use dtrain_agent::io::memory_copies::MemoryCopies;
use dtrain_agent::io::output::{Message, Screen};
use dtrain_agent::io::temporary::Temporary;
use dtrain_agent::local::{Cause, Next, RestartPolicy, Restarts, Resumption};
use dtrain_common::env::TORCHELASTIC_USE_AGENT_STORE;
use dtrain_common::exit::ExitStatus;
use inbox::Inbox;
use master_address::MasterAddress;
use report::NotBegun;
use std::sync::Arc;
use std::time::Duration;

/// Runs the command to its end. Call it from the main thread: the workers die with the thread that starts
/// them. On an error before all workers run, no worker is left and no earlier file is overwritten.
pub(crate) fn run(
    args: &Arc<LaunchArgs>,
    guardian_info: GuardianInfo,
    start_time: StartTime,
) -> anyhow::Result<ExitStatus> {
    let temporary = Temporary::of_guardian(guardian_info.temporary.clone());
    let inbox = Inbox::open(start_time, &guardian_info, &args.contract.signals())?;
    let (asked, format) = (Arc::clone(args), args.output.format());
    // The meeting is known also if the checks are abandoned.
    let (opened, meeting) = crossbeam_channel::bounded(1);
    let check = move || -> anyhow::Result<_> {
        let mut contract = asked.contract.clone();
        job::find_host(&mut contract.rendezvous)?;
        let notes = contract.check()?;
        let meeting = contract
            .rendezvous
            .rendezvous()?
            .map(|rendezvous| Meeting::open_patiently(rendezvous, format))
            .transpose()?;
        let (seat, master_address) = match &meeting {
            None => (Seat::Alone, MasterAddress::check(&contract.rendezvous)?),
            Some(meeting) if meeting.leads() => (Seat::Leader, MasterAddress::default()),
            Some(_) => (Seat::Member, MasterAddress::default()),
        };
        let rendezvous = meeting.as_ref().map(|meeting| meeting.rendezvous.clone());
        // Cannot fail: there is room for it.
        let _ = opened.send(meeting);
        let mut plan = plan::check(&asked, seat, start_time)?;
        plan.headline.extend(notes);
        let node = rendezvous.map(|rendezvous| cluster::describe(&rendezvous, &plan)).transpose()?;
        Ok((plan, master_address, node))
    };
    let ready = match inbox.while_nothing_runs(check)? {
        Ok(checked) => checked.and_then(|(plan, master_address, node)| {
            let (restarts, notices) = begin(args, &plan, &inbox)?;
            let copies = plan.keeps_copies().then(|| MemoryCopies::new(&temporary)).transpose()?;
            Ok((plan, master_address, node, restarts, notices, copies))
        }),
        Err(signal) => Err(report::not_begun(None, Cause::Stopped { signal }, format).into()),
    };
    let meeting = meeting.try_recv().ok().flatten();
    let (plan, master_address, node, restarts, notices, copies) = match ready {
        Ok(ready) => ready,
        Err(error) => {
            let not_begun = error.downcast_ref::<NotBegun>().cloned();
            let status = not_begun.as_ref().map_or(ExitStatus::Usage, |not_begun| not_begun.status);
            let why = join_causes(&error);
            if let Some(meeting) = meeting {
                // A request to stop ends the wait for the other nodes.
                let _ = inbox.while_nothing_runs(move || cluster::withdraw(meeting, status, &why));
            }
            return not_begun.map_or(Err(error), |_| Ok(status));
        }
    };
    // Unique among the launches of this machine at one time.
    let new_id = || format!("{:x}-{}", start_time.unix_ms(Duration::ZERO), std::process::id());
    let run = RunInfo {
        id: args.contract.rendezvous.rdzv_id.clone().unwrap_or_else(new_id),
        run_dir: None,
        recipe: None,
        max_restarts: args.max_restarts,
        leader: 0,
    };
    let launch = Launch {
        args,
        plan,
        master_address,
        temporary,
        inbox,
        copies,
        run,
        interface: None,
        lease: None,
        open_files: None,
    };
    if let (Some(meeting), Some(node)) = (meeting, node) {
        return cluster::run(launch, &guardian_info.lease, meeting, node, restarts, notices);
    }
    let first = Attempt::prepare(&launch, 0, None)?;
    let screen = Screen::start(launch.plan.headline(), format)
        .context("cannot start the thread that writes the output")?;
    RunningLaunch { launch, restarts, screen, before: None }.run(first, notices)
}

/// Handles the events of the checks as between two attempts. Returns the restarts, and signals for the workers.
fn begin(args: &LaunchArgs, plan: &LaunchPlan, inbox: &Inbox) -> Result<(Restarts, Vec<i32>), NotBegun> {
    let mut restarts = Restarts::new(RestartPolicy {
        max_restarts: args.max_restarts,
        permanent: plan.permanent_failures(),
        limit: plan.limit,
        training: plan.training().is_some(),
    });
    inbox.pause(Duration::ZERO, &mut restarts);
    let not_begun = |cause| Err(report::not_begun(Some(plan), cause, args.output.format()));
    let notices = match restarts.resume(inbox.start_time.elapsed(), plan.has_checkpoint()) {
        Resumption::Start { notices } => notices,
        Resumption::Stopped { signal } => return not_begun(Cause::Stopped { signal }),
        Resumption::Requeue => return not_begun(Cause::Requeue),
        // The attempt handles a time limit that is too near.
        Resumption::TooLate { .. } => Vec::new(),
    };
    if plan.is_evicted() {
        return not_begun(Cause::Evicted);
    }
    Ok((restarts, notices))
}

/// A launch in progress.
struct RunningLaunch<'a> {
    launch: Launch<'a>,
    restarts: Restarts,
    screen: Screen,
    /// The latest attempt with running workers, or the first: the run's result if no other attempt can start.
    before: Option<Box<FinishedAttempt>>,
}

struct FinishedAttempt {
    run: Run,
    attempt: Attempt,
    /// Why an allowed restart is not made.
    reason: Option<&'static str>,
}

/// The step after an attempt: another one after a pause, or the end.
type NextStep = (Box<FinishedAttempt>, Option<Duration>);

impl RunningLaunch<'_> {
    fn run(mut self, mut attempt: Attempt, mut notices: Vec<i32>) -> anyhow::Result<ExitStatus> {
        let note = self.launch.plan.routing.note.map(str::to_owned);
        for note in attempt.files.note().into_iter().chain(note) {
            self.say(format!("dtrain: {note}"));
        }
        loop {
            let next = match self.attempt(attempt, notices) {
                Ok((finished, Some(pause))) => self.next(finished, pause),
                Ok((finished, None)) => Err(finished),
                Err(error) => {
                    close(self.screen, &self.launch.inbox);
                    return match &self.launch.plan {
                        plan if plan.is_evicted() => {
                            Ok(report::not_begun(Some(plan), Cause::Evicted, plan.routing.format).status)
                        }
                        _ => Err(error),
                    };
                }
            };
            match next {
                Ok(next) => (attempt, notices) = next,
                Err(finished) => return Ok(self.finish(*finished)),
            }
        }
    }

    fn say(&self, notice: impl Into<Message>) {
        // Cannot fail while the launcher runs: the screen's thread ends only after its last sender.
        drop(self.screen.notices.send(notice.into()));
    }

    /// Makes an attempt, and decides about the next.
    fn attempt(&mut self, mut attempt: Attempt, notices: Vec<i32>) -> anyhow::Result<NextStep> {
        let started = self.launch.inbox.start_time.elapsed();
        let taken = match self.launch.plan.is_evicted() {
            true => Err(anyhow!("another run has taken the run directory")),
            false => EarlierResult::take(self.launch.plan.run_dir.as_ref()),
        };
        let (earlier, result) = match taken {
            Ok(earlier) => {
                (earlier, reactor::attempt(&self.launch, &mut attempt, notices, &self.screen, None))
            }
            Err(error) => (None, Err(error)),
        };
        let restore = |course: &Self| {
            let earlier = earlier.as_ref().filter(|_| !course.launch.plan.is_evicted());
            if let Some(text) = earlier.and_then(EarlierResult::restore) {
                course.say(Message::warning(text));
            }
        };
        let mut run = match result {
            Ok(run) => run,
            Err(error) => {
                restore(self);
                return match self.before.take() {
                    Some(before) => {
                        self.say(Message::error(format!("dtrain: cannot restart: {error:#}")));
                        Ok((before, None))
                    }
                    None => Err(error),
                };
            }
        };
        if let Some((rank, error)) = &run.not_started {
            let text = messages::cannot_start(&self.launch.plan, *rank, error);
            if !matches!(run.verdict.cause, Cause::NotStarted { temporary: true, .. }) {
                attempt.files.remove();
                restore(self);
                let Some(before) = self.before.take() else {
                    bail!(text);
                };
                self.say(Message::error(format!("dtrain: cannot restart: {text}")));
                return Ok((before, None));
            }
            self.say(Message::error(format!("dtrain: {text}")));
        }
        let is_early = run.verdict.cause.is_stopped() && !run.has_heartbeats;
        // The workers were stopped before any step could be lost.
        if is_early && self.launch.plan.has_checkpoint() {
            run.verdict.cause = Cause::Requeue;
        }
        Ok(self.after(run, attempt, started))
    }

    /// Decides about an attempt that began at `started` and is over, and reports it to the user.
    fn after(&mut self, run: Run, attempt: Attempt, started: Duration) -> NextStep {
        let now = self.launch.inbox.start_time.elapsed();
        let (taken, is_served) = (attempt.port_was_taken(&run), run.clients_seen.is_some());
        let lasted = now.saturating_sub(started);
        let next = match run.stuck {
            Some(_) => Next::Finish { reason: Some("killed workers have not ended") },
            None => self.restarts.after(&run.verdict, lasted, taken, now),
        };
        if matches!(next, Next::Restart { .. } | Next::Stop) {
            let start_time = self.launch.inbox.start_time;
            let blame = report::blame(&self.launch.plan, &run, &attempt, start_time);
            let lines = blame.map_or_else(Vec::new, |blame| blame.banner);
            run.failed_logs.iter().for_each(|line| self.say(Message::warning(line)));
            if !lines.is_empty() {
                self.say(Message::error(lines.join("\n")));
            }
        }
        let port = attempt.rank0.port;
        let mut finished = match self.before.take() {
            Some(before) if run.not_started.is_some() => before,
            _ => Box::new(FinishedAttempt { run, attempt, reason: None }),
        };
        let pause = match next {
            Next::Finish { reason } => {
                finished.reason = reason;
                return (finished, None);
            }
            Next::Stop => {
                finished.reason = Some("the launcher was asked to stop");
                Duration::ZERO
            }
            Next::OtherPort if is_served => {
                self.say(format!(
                    "dtrain: the program itself listens at port {port}, where dtrain serves PyTorch's store; starting \
                     again without the store; to avoid this, set {TORCHELASTIC_USE_AGENT_STORE}=False"
                ));
                self.launch.plan.serve_no_store();
                Duration::ZERO
            }
            Next::OtherPort => {
                self.say(format!(
                    "dtrain: another program took port {port} before rank 0 could use it; starting again at another port"
                ));
                Duration::ZERO
            }
            Next::Restart { restart, pause } => {
                let (allowed, workers) = (self.launch.args.max_restarts, self.launch.plan.nproc);
                self.say(messages::restarting(restart, allowed, workers, pause));
                pause
            }
        };
        (finished, Some(pause))
    }

    /// Waits for the pause and prepares the next attempt, unless an event ends the run.
    fn next(
        &mut self,
        mut finished: Box<FinishedAttempt>,
        pause: Duration,
    ) -> Result<(Attempt, Vec<i32>), Box<FinishedAttempt>> {
        self.launch.inbox.pause(pause, &mut self.restarts);
        let now = self.launch.inbox.start_time.elapsed();
        match self.restarts.resume(now, self.launch.plan.has_checkpoint()) {
            Resumption::Start { notices } if !self.launch.plan.is_evicted() => {
                let used = self.restarts.used;
                let prepared = self
                    .launch
                    .plan
                    .prepare_restart()
                    .and_then(|()| Attempt::prepare(&self.launch, used, None));
                match prepared {
                    Ok(attempt) => {
                        self.before = Some(finished);
                        return Ok((attempt, notices));
                    }
                    Err(error) => self.say(Message::error(format!("dtrain: cannot restart: {error:#}"))),
                }
            }
            Resumption::Start { .. } => {}
            Resumption::Stopped { signal } => finished.run.verdict.cause = Cause::Stopped { signal },
            Resumption::Requeue => finished.run.verdict.cause = Cause::Requeue,
            Resumption::TooLate { reason } => finished.reason = Some(reason),
        }
        Err(finished)
    }

    /// Reports the end of the run.
    fn finish(self, finished: FinishedAttempt) -> ExitStatus {
        let (mut run, attempt) = (finished.run, finished.attempt);
        let plan = &self.launch.plan;
        if plan.is_evicted() {
            run.verdict.cause = Cause::Evicted;
        }
        let start_time = self.launch.inbox.start_time;
        let conclusion = report::Conclusion::of(plan, &run, &attempt, self.restarts.used, start_time);
        let report = report::Report::new(plan, conclusion, start_time);
        if let Some(text) = run.failed_logs.take() {
            self.say(Message::warning(text));
        }
        let run_dir = plan.run_dir.as_ref().filter(|_| !plan.is_evicted());
        let result = report.publish(run_dir, finished.reason, |notice| self.say(notice));
        if let Some(warning) = self.launch.follow_end(&result) {
            self.say(warning);
        }
        if !run.abandoned {
            close(self.screen, &self.launch.inbox);
        }
        report.status
    }
}

/// Waits until the screen has written everything, unless the user asks again to stop.
fn close(screen: Screen, inbox: &Inbox) {
    drop((screen.chunks, screen.notices));
    inbox.wait(&screen.done, None, false);
}
