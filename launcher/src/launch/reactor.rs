//! One attempt: what happens goes to the agent as one kind of event, and what it decides is carried out in one place.
//!
//! One thread per worker waits for its end, two read its output, one receives signals, one watches the guardian; all of them feed one
//! channel. This, the main thread, blocks on that channel and never on the screen, so that a reader of the output who has stopped
//! reading delays no decision. It wakes at least twice a second, to look at the workers' heartbeats and so that the agent notices when
//! the launcher itself did not run.

use super::files::Files;
use super::group::{Capture, Group};
use super::inbox::Inbox;
use super::run::Run;
use super::told;
use crate::plan::Plan;
use anyhow::Context;
use dtrain_agent::io::heartbeats::{Heartbeats, Watch};
use dtrain_agent::io::output::{Screen, Unkept};
use dtrain_agent::io::process::WorkerSpec;
use dtrain_agent::io::store::{Place, Serving};
use dtrain_agent::local::{Action, Agent, Event, HangPolicy, Policy, TICK, Verdict};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One attempt.
pub(super) struct Job<'a> {
    pub(super) plan: &'a Plan,
    pub(super) specs: Vec<WorkerSpec>,
    /// Where a store is served to them.
    pub(super) store: Option<Place>,
    pub(super) files: &'a Files,
    pub(super) heartbeats: &'a Heartbeats,
    pub(super) shutdown_timeout: Duration,
    pub(super) hang: Option<HangPolicy>,
    /// Signals for the workers that came before they were started.
    pub(super) notices: Vec<i32>,
}

/// Starts the workers of `job` and returns when the last has ended, what they left behind too, and their
/// output has been read. On an error nothing has been started.
pub(super) fn attempt(inbox: &Inbox, job: Job<'_>, screen: &Screen) -> anyhow::Result<Run> {
    let workers = job.specs.len();
    let unkept = Unkept::new(screen.notices.clone());
    let (stop, stop_out) = io::pipe().context("cannot make a pipe")?;
    let (alive, readers_done) = crossbeam_channel::bounded(0);
    let capture = Capture {
        routing: &job.plan.routing,
        sieves: job.files.open_sieves()?,
        chunks: screen.chunks.clone(),
        unkept: unkept.clone(),
        stop: Arc::new(stop),
        alive,
    };
    let group = Group::new(inbox, job.specs, job.files, capture)?;
    let notices = screen.notices.clone();
    let tell = move |text| drop(notices.send(format!("dtrain: {text}")));
    let store = job.store.map(|store| store.serve(tell)).transpose();
    let store = store.context("cannot serve the workers' store")?;
    let reactor = Reactor {
        agent: Agent::new(Policy {
            workers,
            shutdown_timeout: job.shutdown_timeout,
            requeue_code: job.plan.requeue_code(),
            hang: job.hang,
            limit: job.plan.limit,
            notices: job.notices,
        }),
        actions: VecDeque::new(),
        group,
        watch: job.heartbeats.watch(workers, inbox.begun),
        look_every: job.hang.map_or(TICK, |hang| hang.look_every()),
        plan: job.plan,
        shutdown_timeout: job.shutdown_timeout,
        inbox,
        screen,
        evicted: false,
    };
    let (verdict, group, beaten) = reactor.run();
    let met = store.map(Serving::end);
    // What a daemon that left its process group may still write is not waited for.
    drop(stop_out);
    let run = Run {
        verdict,
        pids: group.pids(),
        tails: group.tails,
        not_started: group.not_started,
        unkept: None,
        met,
        beaten,
        given_up: false,
    };
    drop(group.capture);
    Ok(run.after(inbox.wait(&readers_done), &unkept))
}

struct Reactor<'a> {
    agent: Agent,
    /// Not carried out yet.
    actions: VecDeque<Action>,
    group: Group<'a>,
    watch: Watch,
    look_every: Duration,
    plan: &'a Plan,
    shutdown_timeout: Duration,
    inbox: &'a Inbox,
    screen: &'a Screen,
    evicted: bool,
}

impl<'a> Reactor<'a> {
    fn run(mut self) -> (Verdict, Group<'a>, bool) {
        self.actions.extend(self.agent.begin(self.now()));
        loop {
            match self.actions.pop_front() {
                Some(Action::Finish(verdict)) => return (verdict, self.group, self.watch.has_seen_any()),
                Some(action) => self.carry_out(action),
                None => self.wait(),
            }
        }
    }

    fn now(&self) -> Duration {
        self.inbox.begun.elapsed()
    }

    fn hear(&mut self, event: &Event) {
        let actions = self.agent.on(event, self.now());
        self.actions.extend(actions);
    }

    fn say(&self, text: String) {
        // Fails only when the screen has been given up.
        let _ = self.screen.notices.send(text);
    }

    /// Only here decisions have effects.
    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Start { rank } => {
                let event = self.group.start(rank);
                self.hear(&event);
            }
            Action::Signal { rank, signal } => self.group.signal(rank, signal),
            Action::Notify { rank, signal } => self.group.owed.push((rank, signal)),
            Action::Inspect { ranks, number } => self.group.inspect(&ranks, number, &self.screen.notices),
            Action::Sweep => self.group.sweep(),
            Action::Tell(notice) => {
                let text = told::notice(&notice, self.plan, self.shutdown_timeout);
                text.into_iter().for_each(|text| self.say(text));
            }
            Action::Finish(_) => {}
        }
    }

    /// Waits for what happens next.
    fn wait(&mut self) {
        let look = Instant::now() + self.look_every;
        let deadline = self.agent.deadline();
        let deadline = deadline.and_then(|deadline| self.inbox.begun.at.checked_add(deadline));
        let event = self.inbox.next(deadline.map_or(look, |deadline| deadline.min(look)));
        if !self.evicted && self.plan.is_evicted() {
            self.evicted = true;
            self.say(told::evicted(self.plan));
            self.hear(&Event::Evicted);
        }
        if let Some(trouble) = self.plan.trouble() {
            self.say(format!("dtrain: {trouble}"));
        }
        self.group.pay();
        // Nobody is taken for hanging, or killed, who has beaten before this event.
        for beat in self.watch.look(self.inbox.begun) {
            self.hear(&beat);
        }
        self.hear(&event);
    }
}
