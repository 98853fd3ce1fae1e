//! `dtrain launch`: check everything, start the workers, supervise them, report.

mod attempt;
mod environment;
mod files;
mod group;
mod inbox;
mod meeting;
mod port;
mod reactor;
mod report;
mod told;

use crate::cli::LaunchArgs;
use crate::plan;
use anyhow::{Context, anyhow, bail};
use attempt::{Attempt, EarlierResult, Launch, Run};
use dtrain_agent::clock::Begun;
use dtrain_agent::io::guardian::Behind;
use dtrain_agent::io::memory_copies::MemoryCopies;
use dtrain_agent::io::output::Screen;
use dtrain_agent::io::temporary::Temporary;
use dtrain_agent::local::{Cause, Next, RestartPolicy, Restarts, Resumption};
use dtrain_agent::signals;
use dtrain_common::env::TORCHELASTIC_USE_AGENT_STORE;
use dtrain_common::exit::ExitStatus;
use inbox::Inbox;
use meeting::Meeting;
use std::sync::Arc;
use std::time::Duration;

/// Runs the command to its end. Call it from the main thread: the workers die with the thread that starts
/// them. On an error before all workers run, no worker is left and no earlier file is overwritten.
pub(crate) fn run(args: &Arc<LaunchArgs>, behind: Behind, begun: Begun) -> anyhow::Result<ExitStatus> {
    let temporary = Temporary::of_guardian(behind.temporary.clone());
    let inbox = Inbox::open(begun, &behind, &args.contract.signals())?;
    let asked = Arc::clone(args);
    let check = move || -> anyhow::Result<_> {
        let notes = asked.contract.check()?;
        let meeting = Meeting::check(&asked.contract)?;
        Ok((notes, meeting, plan::check(&asked, begun)?))
    };
    let (notes, meeting, mut plan) = match inbox.while_nothing_runs(check)? {
        Ok(checked) => checked?,
        Err(signal) => return Ok(report::not_begun(None, Cause::Stopped { signal })),
    };
    plan.headline.extend(notes);
    let mut restarts = Restarts::new(RestartPolicy {
        max_restarts: args.max_restarts,
        permanent: plan.permanent_failures(),
        limit: plan.limit,
        training: plan.training().is_some(),
    });
    // Events so far are handled as between two attempts.
    inbox.pause(Duration::ZERO, &mut restarts);
    let not_begun = |cause| Ok(report::not_begun(Some(&plan), cause));
    let notices = match restarts.resume(begun.elapsed(), plan.has_checkpoint()) {
        Resumption::Start { notices } => notices,
        Resumption::Stopped { signal } => return not_begun(Cause::Stopped { signal }),
        Resumption::Requeue => return not_begun(Cause::Requeue),
        // The attempt handles a time limit that is too near.
        Resumption::TooLate { .. } => Vec::new(),
    };
    if plan.is_evicted() {
        return not_begun(Cause::Evicted);
    }
    let copies = plan.keeps_copies().then(|| MemoryCopies::new(&temporary)).transpose()?;
    let launch = Launch { args, plan, meeting, temporary, inbox, copies };
    let first = Attempt::prepare(&launch, 0)?;
    let screen =
        Screen::start(launch.plan.headline()).context("cannot start the thread that writes the output")?;
    Course { launch, restarts, screen, before: None }.run(first, notices)
}

/// A launch in progress.
struct Course<'a> {
    launch: Launch<'a>,
    restarts: Restarts,
    screen: Screen,
    /// The latest attempt with running workers, or the first: the run's result if no other attempt can start.
    before: Option<Box<Over>>,
}

struct Over {
    run: Run,
    attempt: Attempt,
    /// Why an allowed restart is not made.
    reason: Option<&'static str>,
}

/// The step after an attempt: another one after a pause, or the end.
type Then = (Box<Over>, Option<Duration>);

impl Course<'_> {
    fn run(mut self, mut attempt: Attempt, mut notices: Vec<i32>) -> anyhow::Result<ExitStatus> {
        let note = self.launch.plan.routing.note.map(str::to_owned);
        for note in attempt.files.note().into_iter().chain(note) {
            self.say(format!("dtrain: {note}"));
        }
        loop {
            let next = match self.attempt(attempt, notices) {
                Ok((over, Some(pause))) => self.next(over, pause),
                Ok((over, None)) => Err(over),
                Err(error) => {
                    close(self.screen, &self.launch.inbox);
                    return match &self.launch.plan {
                        plan if plan.is_evicted() => Ok(report::not_begun(Some(plan), Cause::Evicted)),
                        _ => Err(error),
                    };
                }
            };
            match next {
                Ok(next) => (attempt, notices) = next,
                Err(over) => return Ok(self.finish(*over)),
            }
        }
    }

    fn say(&self, text: String) {
        // Cannot fail while the launcher runs: the screen's thread ends only after its last sender.
        drop(self.screen.notices.send(text));
    }

    /// Makes an attempt, and decides about the next.
    fn attempt(&mut self, mut attempt: Attempt, notices: Vec<i32>) -> anyhow::Result<Then> {
        let started = self.launch.inbox.begun.elapsed();
        let set_aside = match self.launch.plan.is_evicted() {
            true => Err(anyhow!("another run has taken the run directory")),
            false => EarlierResult::set_aside(self.launch.plan.run_dir.as_ref()),
        };
        let (earlier, begun) = match set_aside {
            Ok(earlier) => (earlier, reactor::attempt(&self.launch, &mut attempt, notices, &self.screen)),
            Err(error) => (None, Err(error)),
        };
        let put_back = |course: &Self| {
            let earlier = earlier.as_ref().filter(|_| !course.launch.plan.is_evicted());
            if let Some(text) = earlier.and_then(EarlierResult::put_back) {
                course.say(text);
            }
        };
        let mut run = match begun {
            Ok(run) => run,
            Err(error) => {
                put_back(self);
                return match self.before.take() {
                    Some(before) => {
                        self.say(format!("dtrain: cannot restart: {error:#}"));
                        Ok((before, None))
                    }
                    None => Err(error),
                };
            }
        };
        if let Some((rank, error)) = &run.not_started {
            let text = told::cannot_start(&self.launch.plan, *rank, error);
            if !matches!(run.verdict.cause, Cause::NotStarted { passing: true, .. }) {
                attempt.files.remove();
                put_back(self);
                let Some(before) = self.before.take() else {
                    bail!(text);
                };
                self.say(format!("dtrain: cannot restart: {text}"));
                return Ok((before, None));
            }
            self.say(format!("dtrain: {text}"));
        }
        let is_early = run.verdict.cause == (Cause::Stopped { signal: signals::TERM }) && !run.beaten;
        // SIGTERM, as of batch systems, stopped the workers before any step could be lost.
        if self.launch.plan.training().is_some() && is_early && self.launch.plan.has_checkpoint() {
            run.verdict.cause = Cause::Requeue;
        }
        Ok(self.after(run, attempt, started))
    }

    /// Decides about an attempt that began at `started` and is over, and reports it to the user.
    fn after(&mut self, run: Run, attempt: Attempt, started: Duration) -> Then {
        let now = self.launch.inbox.begun.elapsed();
        let (taken, is_served) = (attempt.port_was_taken(&run), run.met.is_some());
        let lasted = now.saturating_sub(started);
        let next = self.restarts.after(&run.verdict, lasted, taken, now);
        if matches!(next, Next::Restart { .. } | Next::Stop) {
            let lines = report::failure(&self.launch.plan, &run, &attempt);
            for line in run.unkept.iter().cloned().chain(lines) {
                self.say(line);
            }
        }
        let port = attempt.port.number;
        let mut over = match self.before.take() {
            Some(before) if run.not_started.is_some() => before,
            _ => Box::new(Over { run, attempt, reason: None }),
        };
        let pause = match next {
            Next::Finish { reason } => {
                over.reason = reason;
                return (over, None);
            }
            Next::Stop => {
                over.reason = Some("the launcher was asked to stop");
                Duration::ZERO
            }
            Next::OtherPort if is_served => {
                self.say(format!(
                    "dtrain: the program uses port {port} itself, where dtrain serves PyTorch's store; starting again \
                     without the store, as {TORCHELASTIC_USE_AGENT_STORE}=False does from the beginning"
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
                self.say(told::restarting(restart, allowed, workers, pause));
                pause
            }
        };
        (over, Some(pause))
    }

    /// Waits for the pause and prepares the next attempt, unless an event ends the run.
    fn next(&mut self, mut over: Box<Over>, pause: Duration) -> Result<(Attempt, Vec<i32>), Box<Over>> {
        self.launch.inbox.pause(pause, &mut self.restarts);
        let now = self.launch.inbox.begun.elapsed();
        match self.restarts.resume(now, self.launch.plan.has_checkpoint()) {
            Resumption::Start { notices } if !self.launch.plan.is_evicted() => {
                let used = self.restarts.used;
                let prepared = self.launch.plan.go_on().and_then(|()| Attempt::prepare(&self.launch, used));
                match prepared {
                    Ok(attempt) => {
                        self.before = Some(over);
                        return Ok((attempt, notices));
                    }
                    Err(error) => self.say(format!("dtrain: cannot restart: {error:#}")),
                }
            }
            Resumption::Start { .. } => {}
            Resumption::Stopped { signal } => over.run.verdict.cause = Cause::Stopped { signal },
            Resumption::Requeue => over.run.verdict.cause = Cause::Requeue,
            Resumption::TooLate { reason } => over.reason = Some(reason),
        }
        Err(over)
    }

    /// Reports the end of the run.
    fn finish(self, over: Over) -> ExitStatus {
        let (mut run, attempt) = (over.run, over.attempt);
        let plan = &self.launch.plan;
        if plan.is_evicted() {
            run.verdict.cause = Cause::Evicted;
        }
        let begun = self.launch.inbox.begun;
        let report = report::Report::new(plan, &run, &attempt, self.restarts.used, begun);
        if let Some(reason) = over.reason.filter(|_| !report.is_refusal) {
            self.say(format!("dtrain: not restarted: {reason}"));
        }
        if let Some(run_dir) = plan.run_dir.as_ref().filter(|_| !plan.is_evicted())
            && let Err(error) = report.write(run_dir)
        {
            let path = run_dir.result();
            self.say(format!("dtrain: cannot write {}: {error}", path.display()));
        }
        for text in run.unkept.into_iter().chain(report.text) {
            self.say(text);
        }
        if !run.given_up {
            close(self.screen, &self.launch.inbox);
        }
        report.status
    }
}

/// Waits until the screen has written everything, unless the user asks again to stop.
fn close(screen: Screen, inbox: &Inbox) {
    drop((screen.chunks, screen.notices));
    inbox.wait(&screen.done);
}
