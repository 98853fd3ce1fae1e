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
mod run;
mod told;

use crate::cli::LaunchArgs;
use crate::plan::{self, Plan};
use anyhow::{Context, bail};
use attempt::{Attempt, EarlierResult, Taken};
use dtrain_agent::clock::Begun;
use dtrain_agent::io::guardian::Behind;
use dtrain_agent::io::memory_copies::MemoryCopies;
use dtrain_agent::io::output::Screen;
use dtrain_agent::io::temporary::Temporary;
use dtrain_agent::local::{Cause, Next, RestartPolicy, Restarts, Resumption};
use dtrain_common::env::TORCHELASTIC_USE_AGENT_STORE;
use dtrain_common::exit::ExitStatus;
use inbox::Inbox;
use meeting::Meeting;
use run::{Run, close};
use std::sync::Arc;
use std::time::Duration;

/// Runs the command to its end. Call it from the main thread: the workers die with the thread that starts
/// them. An error is whatever is wrong before all workers run. None is left running then, and nothing of an
/// earlier run is overwritten.
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
    // What has come already counts as between two attempts.
    inbox.pause(Duration::ZERO, &mut restarts);
    let not_begun = |cause| Ok(report::not_begun(Some(&plan), cause));
    let notices = match restarts.resume(begun.elapsed(), plan.has_checkpoint()) {
        Resumption::Start { notices } => notices,
        Resumption::Stopped { signal } => return not_begun(Cause::Stopped { signal }),
        Resumption::Requeue => return not_begun(Cause::Requeue),
        // The attempt says so.
        Resumption::TooLate { .. } => Vec::new(),
    };
    if plan.is_evicted() {
        return not_begun(Cause::Evicted);
    }
    let copies = match plan.keeps_copies() {
        true => Some(MemoryCopies::new(&temporary)?),
        false => None,
    };
    let first = Attempt::prepare(&plan, &meeting, &temporary, 0)?;
    let screen = Screen::start(plan.headline()).context("cannot start the thread that writes the output")?;
    let launch = Launch { args, plan, meeting, temporary, inbox, restarts, copies, screen, before: None };
    launch.run(first, notices)
}

/// A launch whose checks are done.
struct Launch<'a> {
    args: &'a LaunchArgs,
    plan: Plan,
    meeting: Meeting,
    temporary: Temporary,
    inbox: Inbox,
    restarts: Restarts,
    copies: Option<MemoryCopies>,
    screen: Screen,
    /// The latest attempt in which workers ran, or the first: what the run comes to if no other can be started.
    before: Option<Box<Over>>,
}

struct Over {
    run: Run,
    attempt: Attempt,
    /// Why another that the user had allowed is not made.
    reason: Option<&'static str>,
}

/// What an attempt leads to.
enum Then {
    /// It is the last one.
    End(Box<Over>),
    /// Another one follows after a pause, unless the launcher is asked to stop.
    Again(Box<Over>, Duration),
    /// Nothing was started: the run directory is another run's.
    Nothing,
}

impl Launch<'_> {
    fn run(mut self, mut attempt: Attempt, mut notices: Vec<i32>) -> anyhow::Result<ExitStatus> {
        let note = self.plan.routing.note.map(str::to_owned);
        for note in attempt.files.note().into_iter().chain(note) {
            self.say(format!("dtrain: {note}"));
        }
        loop {
            let then = match self.attempt(attempt, notices) {
                Ok(Then::Again(over, pause)) => self.next(over, pause),
                Ok(Then::End(over)) => Err(over),
                Ok(Then::Nothing) => {
                    close(self.screen, &self.inbox);
                    return Ok(report::not_begun(Some(&self.plan), Cause::Evicted));
                }
                Err(error) => {
                    close(self.screen, &self.inbox);
                    return Err(error);
                }
            };
            (attempt, notices) = match then {
                Ok(next) => next,
                Err(over) => return Ok(self.finish(*over)),
            };
        }
    }

    fn say(&self, text: String) {
        // The screen's thread ends only after the last sender is gone, so this cannot fail while the launcher runs.
        drop(self.screen.notices.send(text));
    }

    /// Makes an attempt, and decides what comes after it.
    fn attempt(&mut self, mut attempt: Attempt, notices: Vec<i32>) -> anyhow::Result<Then> {
        let started = self.inbox.begun.elapsed();
        let mut earlier = None;
        let begun = self.supervise(&mut attempt, notices, &mut earlier);
        let put_back = |launch: &Self| {
            let earlier = earlier.as_ref().filter(|_| !launch.plan.is_evicted());
            if let Some(text) = earlier.and_then(EarlierResult::put_back) {
                launch.say(text);
            }
        };
        let mut run = match begun {
            Ok(run) => run,
            Err(error) => {
                put_back(self);
                return match self.before.take() {
                    Some(before) => {
                        self.say(format!("dtrain: cannot restart: {error:#}"));
                        Ok(Then::End(before))
                    }
                    None if self.plan.is_evicted() => Ok(Then::Nothing),
                    None => Err(error),
                };
            }
        };
        if let Some((rank, error)) = &run.not_started {
            let text = told::cannot_start(&self.plan, *rank, error);
            if !matches!(run.verdict.cause, Cause::NotStarted { passing: true, .. }) {
                attempt.files.remove();
                put_back(self);
                let Some(before) = self.before.take() else {
                    bail!(text);
                };
                self.say(format!("dtrain: cannot restart: {text}"));
                return Ok(Then::End(before));
            }
            self.say(format!("dtrain: {text}"));
        }
        if self.plan.training().is_some()
            && run.is_stopped_before_its_first_step()
            && self.plan.has_checkpoint()
        {
            run.verdict.cause = Cause::Requeue;
        }
        Ok(self.after(run, attempt, started))
    }

    fn supervise(
        &self,
        attempt: &mut Attempt,
        notices: Vec<i32>,
        earlier: &mut Option<EarlierResult>,
    ) -> anyhow::Result<Run> {
        if self.plan.is_evicted() {
            bail!("another run has taken the run directory");
        }
        *earlier = Some(EarlierResult::set_aside(self.plan.run_dir.as_ref())?);
        let store = attempt.store.take();
        let places = (&self.plan, &self.meeting);
        let (begun, copies) = (self.inbox.begun, self.copies.as_ref());
        let job = attempt.job(store, places, self.args, begun, copies, notices);
        reactor::attempt(&self.inbox, job, &self.screen)
    }

    /// Decides about an attempt that is over and had begun at `started`, and tells the user.
    fn after(&mut self, run: Run, attempt: Attempt, started: Duration) -> Then {
        let now = self.inbox.begun.elapsed();
        let taken = attempt.port_was_taken(&run);
        let lasted = now.saturating_sub(started);
        let next = self.restarts.after(&run.verdict, lasted, taken.is_some(), now);
        if matches!(next, Next::Restart { .. } | Next::Stop) {
            let lines = report::failure(&self.plan, &run, &attempt);
            for line in run.unkept.iter().cloned().chain(lines) {
                self.say(line);
            }
        }
        let port = attempt.port.number;
        let mut over = match self.before.take() {
            Some(before) if run.not_started.is_some() => before,
            _ => {
                let reason = None;
                Box::new(Over { run, attempt, reason })
            }
        };
        let pause = match next {
            Next::Finish { reason } => {
                over.reason = reason;
                return Then::End(over);
            }
            Next::Stop => {
                over.reason = Some("the launcher was asked to stop");
                Duration::ZERO
            }
            Next::OtherPort if taken == Some(Taken::ByTheStore) => {
                self.say(format!(
                    "dtrain: the program uses port {port} itself, where dtrain serves PyTorch's store; starting again \
                     without the store, as {TORCHELASTIC_USE_AGENT_STORE}=False does from the beginning"
                ));
                self.plan.serve_no_store();
                Duration::ZERO
            }
            Next::OtherPort => {
                self.say(format!(
                    "dtrain: another program took port {port} before rank 0 could use it; starting again at another port"
                ));
                Duration::ZERO
            }
            Next::Restart { restart, pause } => {
                let (allowed, workers) = (self.args.max_restarts, self.plan.nproc);
                self.say(told::restarting(restart, allowed, workers, pause));
                pause
            }
        };
        Then::Again(over, pause)
    }

    /// Lets the pause pass and prepares the next attempt, unless something came that ends the run.
    fn next(&mut self, mut over: Box<Over>, pause: Duration) -> Result<(Attempt, Vec<i32>), Box<Over>> {
        self.inbox.pause(pause, &mut self.restarts);
        let now = self.inbox.begun.elapsed();
        let notices = match self.restarts.resume(now, self.plan.has_checkpoint()) {
            Resumption::Start { notices } => notices,
            Resumption::Stopped { signal } => {
                over.run.verdict.cause = Cause::Stopped { signal };
                return Err(over);
            }
            Resumption::Requeue => {
                over.run.verdict.cause = Cause::Requeue;
                return Err(over);
            }
            Resumption::TooLate { reason } => {
                over.reason = Some(reason);
                return Err(over);
            }
        };
        if self.plan.is_evicted() {
            return Err(over);
        }
        let used = self.restarts.used;
        let prepared = self.plan.go_on();
        match prepared.and_then(|()| Attempt::prepare(&self.plan, &self.meeting, &self.temporary, used)) {
            Ok(attempt) => {
                self.before = Some(over);
                Ok((attempt, notices))
            }
            Err(error) => {
                self.say(format!("dtrain: cannot restart: {error:#}"));
                Err(over)
            }
        }
    }

    /// Reports how the run ended.
    fn finish(self, over: Over) -> ExitStatus {
        let (mut run, attempt) = (over.run, over.attempt);
        if self.plan.is_evicted() {
            run.verdict.cause = Cause::Evicted;
        }
        let report = report::Report::new(&self.plan, &run, &attempt, self.restarts.used, self.inbox.begun);
        if let Some(reason) = over.reason.filter(|_| !report.is_refusal) {
            self.say(format!("dtrain: not restarted: {reason}"));
        }
        if let Some(run_dir) = self.plan.run_dir.as_ref().filter(|_| !self.plan.is_evicted())
            && let Err(error) = report.write(run_dir)
        {
            let path = run_dir.result();
            self.say(format!("dtrain: cannot write {}: {error}", path.display()));
        }
        for text in run.unkept.into_iter().chain(report.text) {
            self.say(text);
        }
        if !run.given_up {
            close(self.screen, &self.inbox);
        }
        report.status
    }
}
