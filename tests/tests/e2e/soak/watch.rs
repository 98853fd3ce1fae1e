//! Looks for workers of an attempt that run while those of a later attempt run.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use dtrain_common::env::TORCHELASTIC_ERROR_FILE;
use dtrain_test_kit::scene::Scene;

/// Two looks this far apart find the same old worker: it was not about to end.
const APART: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct Watch {
    /// The newest attempt in each folder of logs; nodes without a shared run directory count for themselves.
    newest: BTreeMap<String, u32>,
    /// Old workers, and when they were first seen beside newer ones.
    late: BTreeMap<u32, Instant>,
    /// What was wrong, once each.
    pub(super) violations: Vec<String>,
}

impl Watch {
    pub(super) fn look(&mut self, scene: &Scene) {
        let now = Instant::now();
        let running = scene.workers().into_iter().filter(|pid| is_running(*pid));
        let found: Vec<_> = running.filter_map(|pid| Some((pid, attempt(pid)?))).collect();
        for (_, (logs, attempt)) in &found {
            let newest = self.newest.entry(logs.clone()).or_default();
            *newest = (*newest).max(*attempt);
        }
        let mut late = BTreeMap::new();
        for (pid, (logs, attempt)) in &found {
            let newest = self.newest[logs];
            if *attempt == newest {
                continue;
            }
            let since = *self.late.get(pid).unwrap_or(&now);
            late.insert(*pid, since);
            if now - since >= APART {
                let text = format!("process {pid} of attempt {attempt} runs beside attempt {newest}");
                if !self.violations.contains(&text) {
                    self.violations.push(text);
                }
            }
        }
        self.late = late;
    }
}

/// Returns whether the process can write: it is neither stopped nor ended.
fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| !"TtZX".contains(state))
}

/// Returns the folder of logs and the attempt of a worker, from the path of its error file.
fn attempt(pid: u32) -> Option<(String, u32)> {
    let environment = String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/environ")).ok()?).into_owned();
    let prefix = format!("{TORCHELASTIC_ERROR_FILE}=");
    let path = environment.split('\0').find_map(|variable| variable.strip_prefix(&prefix))?;
    let (logs, rest) = path.rsplit_once("/attempt_")?;
    Some((logs.to_owned(), rest.split('/').next()?.parse().ok()?))
}
