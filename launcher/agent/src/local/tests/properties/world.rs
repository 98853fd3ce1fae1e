//! A launcher and its workers as the agent sees them, with a simulated clock.

use super::super::super::state::Phase;
use super::*;
use std::collections::{BTreeSet, VecDeque};

/// The stage of the run.
#[derive(Debug)]
enum Stage {
    Attempt(Box<Agent>),
    Pause { until: Duration },
    Over(Ending),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ending {
    Verdict(Verdict),
    InPause(Resumption),
}

/// Processes that obey only SIGKILL, controlled by the agent's actions.
pub(super) struct World {
    setup: Setup,
    restarts: Restarts,
    stage: Stage,
    now: Duration,
    pub(super) attempts: usize,
    attempt_start: Duration,
    pub(super) running: BTreeSet<usize>,
    killed: BTreeSet<usize>,
    started: usize,
    /// Unanswered inspections of this attempt.
    inspecting: VecDeque<u32>,
    /// The time of each worker's last beat, moved by later freezes.
    last_beat: Vec<Duration>,
    /// Notices that no worker has handled, as the world remembers them.
    unhandled_notices: BTreeSet<i32>,
    /// The notices that the attempt's programs started with.
    given: BTreeSet<i32>,
    /// Whether this attempt is being stopped because of other nodes.
    pub(super) was_stopped_for_others: bool,
    /// When its workers must have been killed.
    kill_by: Option<Duration>,
}

impl World {
    pub(super) fn new(setup: &Setup) -> Self {
        let restarts = Restarts::new(RestartPolicy {
            max_restarts: setup.max_restarts,
            permanent: &[2],
            limit: setup.limit(),
            training: setup.training,
        });
        let mut world = Self {
            setup: setup.clone(),
            restarts,
            stage: Stage::Pause { until: Duration::ZERO },
            now: Duration::ZERO,
            attempts: 0,
            attempt_start: Duration::ZERO,
            running: BTreeSet::new(),
            killed: BTreeSet::new(),
            started: 0,
            inspecting: VecDeque::new(),
            last_beat: Vec::new(),
            unhandled_notices: BTreeSet::new(),
            given: BTreeSet::new(),
            was_stopped_for_others: false,
            kill_by: None,
        };
        world.begin(Vec::new());
        world
    }

    fn begin(&mut self, notices: Vec<i32>) {
        for notice in &self.unhandled_notices {
            assert!(notices.contains(notice), "{notice} is lost");
        }
        if self.setup.training && self.setup.has_checkpoint {
            assert!(!notices.contains(&USR1), "an attempt although one was asked to stop");
        }
        if !self.setup.training {
            self.given = std::mem::take(&mut self.unhandled_notices);
        }
        let mut agent = Agent::new(self.setup.policy(notices));
        (self.started, self.attempt_start) = (0, self.now);
        (self.was_stopped_for_others, self.kill_by) = (false, None);
        self.inspecting.clear();
        self.last_beat = vec![self.now; self.setup.workers];
        let actions = agent.begin(self.now);
        self.stage = Stage::Attempt(Box::new(agent));
        self.attempts += 1;
        self.carry_out(actions);
    }

    fn tell(&mut self, event: &Event) -> Vec<Action> {
        let Stage::Attempt(agent) = &mut self.stage else {
            return Vec::new();
        };
        let actions = agent.on(event, self.now);
        let all = actions.clone();
        self.carry_out(actions);
        all
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        let mut queue = VecDeque::from(actions);
        while let Some(action) = queue.pop_front() {
            match action {
                Action::Start { rank } => {
                    assert_eq!(rank, self.started, "in order, each once");
                    assert!(
                        self.setup.limit().is_none_or(|limit| self.now < limit.ask),
                        "nothing starts after the time limit"
                    );
                    self.started += 1;
                    let refused = self.setup.refused.get(self.attempts - 1).copied().flatten();
                    let event = match refused {
                        Some((refused, temporary)) if refused == rank => {
                            Event::NotStarted { rank, temporary }
                        }
                        _ => {
                            self.running.insert(rank);
                            Event::Started { rank }
                        }
                    };
                    let Stage::Attempt(agent) = &mut self.stage else {
                        unreachable!("a start without an attempt")
                    };
                    queue.extend(agent.on(&event, self.now));
                }
                Action::Signal { rank, signal } => {
                    assert!(
                        self.running.contains(&rank),
                        "signal {signal} to rank {rank}, which does not run"
                    );
                    if signal == KILL {
                        self.killed.insert(rank);
                    }
                    if signal == ABRT {
                        let silent = self.running.iter().map(|&rank| self.now - self.last_beat[rank]).max();
                        assert!(silent.unwrap() >= SILENCE, "taken for hanging after {silent:?}");
                    }
                }
                Action::Notify { .. } | Action::Tell(_) => {}
                Action::Inspect { number, .. } => self.inspecting.push_back(number),
                Action::Sweep => assert!(self.running.is_empty(), "swept while {:?} run", self.running),
                Action::Finish(verdict) => return self.attempt_is_over(verdict),
            }
        }
    }

    fn attempt_is_over(&mut self, verdict: Verdict) {
        if verdict.ends.len() < self.setup.workers {
            self.unhandled_notices.append(&mut self.given);
        }
        let lasted = self.now - self.attempt_start;
        let unasked = Verdict { stop_source: None, ..verdict.clone() };
        let due = self.restarts.clone().after(&unasked, lasted, false, self.now);
        let was_requested = matches!(verdict.stop_source, Some(StopSource::Request { .. }));
        self.stage = match self.restarts.after(&verdict, lasted, false, self.now) {
            Next::Finish { .. } => {
                assert!(
                    !(was_requested && matches!(due, Next::Restart { .. })),
                    "a request ends the run as a failure that in the pause would not"
                );
                Stage::Over(Ending::Verdict(verdict))
            }
            Next::Stop => Stage::Pause { until: self.now },
            Next::OtherPort => unreachable!("no port was taken"),
            Next::Restart { pause, .. } => {
                let pause = if self.restarts.pause_ended() { Duration::ZERO } else { pause };
                Stage::Pause { until: self.now + pause }
            }
        };
    }

    fn end(&mut self, rank: usize, outcome: Outcome, lost_peer: bool) {
        self.running.remove(&rank);
        self.killed.remove(&rank);
        self.tell(&Event::Ended { rank, outcome, at: self.now, lost_peer });
    }

    fn beat(&mut self, rank: usize, writing: bool) {
        self.last_beat[rank] = self.now;
        self.tell(&Event::Beat { rank, at: self.now, writing });
    }

    fn signal(&mut self, event: &Event) {
        if let Event::Forward { signal } = *event {
            // A running program has received the signal.
            let is_stopping = match &self.stage {
                Stage::Attempt(agent) => agent.phase != Phase::Running,
                _ => true,
            };
            if (self.setup.training && signal == USR1) || (!self.setup.training && is_stopping) {
                self.unhandled_notices.insert(signal);
            }
        }
        match &mut self.stage {
            Stage::Attempt(_) => drop(self.tell(event)),
            Stage::Pause { until } => {
                if self.restarts.on_event(event) {
                    *until = self.now;
                }
            }
            Stage::Over(_) => {}
        }
    }

    pub(super) fn apply(&mut self, test_event: &TestEvent) {
        let running: Vec<usize> = self.running.iter().copied().collect();
        let picked = |pick: usize| (!running.is_empty()).then(|| running[pick % running.len()]);
        match *test_event {
            TestEvent::Ended { pick, outcome, lost_peer } => {
                if let Some(rank) = picked(pick) {
                    self.end(rank, outcome, lost_peer);
                }
            }
            TestEvent::Beat { pick, writing } => {
                if let Some(rank) = picked(pick) {
                    self.beat(rank, writing);
                }
            }
            TestEvent::Steps { count } => {
                for _ in 0..count {
                    for &rank in &running {
                        if self.running.contains(&rank) {
                            self.beat(rank, false);
                        }
                    }
                    self.pass(Duration::from_millis(200));
                }
            }
            TestEvent::Inspected => {
                if let Some(number) = self.inspecting.pop_front() {
                    self.tell(&Event::Inspected { number });
                }
            }
            TestEvent::OthersFailed => self.others(&Event::OthersFailed, SHUTDOWN),
            TestEvent::OthersRequeue if !self.setup.training => {}
            TestEvent::OthersRequeue => drop(self.tell(&Event::OthersRequeue)),
            TestEvent::LeaseEnded => self.others(&Event::LeaseEnded, Duration::ZERO),
            TestEvent::Freeze { ms } => self.freeze(Duration::from_millis(ms)),
            TestEvent::Stop { signal, again } => self.signal(&Event::Stop { signal, again }),
            TestEvent::Forward { signal } => self.signal(&Event::Forward { signal }),
        }
    }

    /// Tells the agent that its workers cannot continue: they are killed within `time`.
    fn others(&mut self, event: &Event, time: Duration) {
        let is_running = matches!(&self.stage, Stage::Attempt(agent) if agent.phase == Phase::Running);
        if is_running || *event == Event::LeaseEnded {
            let by = self.now + time;
            self.kill_by = Some(self.kill_by.map_or(by, |earlier| earlier.min(by)));
        }
        self.was_stopped_for_others |= is_running;
        self.tell(event);
        self.check_kills();
    }

    fn check_kills(&self) {
        if self.kill_by.is_some_and(|by| by <= self.now) && matches!(self.stage, Stage::Attempt(_)) {
            assert!(self.running.is_subset(&self.killed), "{:?} should be killed by now", self.running);
        }
    }

    fn freeze(&mut self, time: Duration) {
        self.now += time;
        // After a freeze, a stop gets its time anew, once.
        self.kill_by = self.kill_by.map(|by| by + time + SHUTDOWN);
        for last_beat in &mut self.last_beat {
            *last_beat += time;
        }
        let actions = self.tell(&Event::Timer);
        let harm = |action: &Action| matches!(action, Action::Signal { signal, .. } if [KILL, ABRT].contains(signal));
        assert!(!actions.iter().any(harm), "killed on thawing: {actions:?}");
    }

    /// Lets time pass while the launcher is awake.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            for rank in self.killed.clone() {
                self.end(rank, Outcome::Signaled(KILL), false);
            }
            let next = match &self.stage {
                Stage::Attempt(agent) => agent.deadline(),
                Stage::Pause { until } => Some(*until),
                Stage::Over(_) => return,
            };
            let next = next.unwrap_or(end).max(self.now);
            self.now = next.min(self.now + TICK).min(end);
            match &self.stage {
                Stage::Attempt(_) => {
                    self.tell(&Event::Timer);
                    self.check_kills();
                }
                Stage::Pause { until } if *until <= self.now => self.go_on(),
                _ => {}
            }
            if self.now == end && self.killed.is_empty() {
                return;
            }
        }
    }

    fn go_on(&mut self) {
        match self.restarts.resume(self.now, self.setup.has_checkpoint) {
            Resumption::Start { notices } => self.begin(notices),
            end => self.stage = Stage::Over(Ending::InPause(end)),
        }
    }

    /// Ends every worker that is not being stopped with code 0, until the run is over.
    pub(super) fn settle(&mut self) -> Ending {
        for _ in 0..100 {
            match &self.stage {
                Stage::Over(ending) => return ending.clone(),
                Stage::Attempt(agent) if agent.phase == Phase::Running => {
                    for rank in self.running.clone() {
                        self.end(rank, Outcome::Exited(0), false);
                    }
                    self.pass(SAME_MOMENT);
                }
                _ => self.pass(LONGEST_STOP),
            }
        }
        panic!("the run does not end: {:?}", self.stage);
    }
}
