//! One of the two runs: reads its directory.

use super::reading::{Evaluation, Step};
use anyhow::{Context, bail};
use dtrain_common::files::none_if_missing;
use dtrain_common::run_dir::RunDir;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use toml::Table;

/// A run's files. Only the recipe must exist.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) dir: RunDir,
    pub(super) recipe: Table,
    /// Null if it is absent.
    pub(super) plan: Value,
    pub(super) steps: BTreeMap<u64, Step>,
    pub(super) evaluations: Vec<Evaluation>,
    /// The steps with checkpoints.
    pub(super) checkpoints: Vec<u64>,
}

impl Run {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let (dir, shown) = (RunDir::new(path), path.display());
        let text = none_if_missing(fs::read_to_string(dir.recipe()));
        let Some(text) = text.with_context(|| format!("cannot read {}", dir.recipe().display()))? else {
            match path.is_dir() {
                true => bail!("{shown} is not the run directory of a recipe: it has no recipe.toml"),
                false => bail!("{shown} is not a run directory: there is no such folder"),
            }
        };
        let recipe = text.parse().with_context(|| format!("cannot read {}", dir.recipe().display()))?;
        let plan = none_if_missing(fs::read(dir.plan())).map_err(anyhow::Error::from);
        let plan = plan.and_then(|plan| Ok(plan.map(|plan| serde_json::from_slice(&plan)).transpose()?));
        let plan = plan.with_context(|| format!("cannot read {}", dir.plan().display()))?.unwrap_or_default();
        let mut run = Self {
            recipe,
            plan,
            steps: BTreeMap::new(),
            evaluations: Vec::new(),
            checkpoints: Vec::new(),
            dir,
        };
        run.read_metrics().with_context(|| format!("cannot read {}", run.dir.metrics().display()))?;
        let folder = run.dir.checkpoints();
        run.checkpoints = match folder.is_dir() {
            true => run.dir.steps().with_context(|| format!("cannot list {}", folder.display()))?,
            false => Vec::new(),
        };
        run.checkpoints.sort_unstable();
        Ok(run)
    }

    fn read_metrics(&mut self) -> anyhow::Result<()> {
        let Some(file) = none_if_missing(File::open(self.dir.metrics()))? else { return Ok(()) };
        let (mut lines, mut line, mut number) = (BufReader::new(file), Vec::new(), 0);
        loop {
            line.clear();
            number += 1;
            // A last line without its end is still being written.
            if lines.read_until(b'\n', &mut line)? == 0 || line.last() != Some(&b'\n') {
                return Ok(());
            }
            let value: Value = serde_json::from_slice(&line).with_context(|| format!("line {number}"))?;
            if let Some(evaluation) = Evaluation::of(&value) {
                self.evaluations.push(evaluation);
            } else if let Some(step) = value["step"].as_u64() {
                // A process that was killed while it rewrote the file leaves lines twice.
                if self.steps.last_key_value().is_some_and(|(last, _)| *last >= step) {
                    self.steps.split_off(&step);
                    self.evaluations.retain(|evaluation| evaluation.step < step);
                }
                self.steps.insert(step, Step::of(&value));
            }
        }
    }

    pub(super) fn task(&self) -> &str {
        self.recipe.get("task").and_then(toml::Value::as_str).unwrap_or_default()
    }

    /// Returns the environment of a step's attempt; null if it is unknown.
    pub(super) fn environment(&self, step: u64) -> &Value {
        let mut all = self.environments();
        all.rfind(|environment| environment["first_step"].as_u64().unwrap_or(1) <= step)
            .unwrap_or(&Value::Null)
    }

    /// Returns the environments in the order of their steps.
    pub(super) fn environments(&self) -> impl DoubleEndedIterator<Item = &Value> {
        let earlier = self.plan["earlier_environments"].as_array().into_iter().flatten();
        earlier.chain(Some(&self.plan["environment"]).filter(|now| now.is_object()))
    }
}
