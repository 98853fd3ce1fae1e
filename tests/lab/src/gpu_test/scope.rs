//! Selects the checks to run.

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::Args;
use super::calls::{self, Call};
use super::checks::{Check, Part};
use super::hour::{Hour, Section};

/// The selected checks.
pub(super) struct Scope<'a> {
    pub(super) args: &'a Args,
    pub(super) call: Option<Call>,
}

impl<'a> Scope<'a> {
    pub(super) fn new(args: &'a Args) -> Result<Self> {
        let call = args
            .call
            .as_ref()
            .map(|name| {
                let mut calls = calls::calls(args.rounds.into());
                let found = calls.iter().position(|call| call.name == *name);
                let at = found.with_context(|| format!("unknown call {name}: `--calls` lists the names"))?;
                anyhow::Ok(calls.swap_remove(at))
            })
            .transpose()?;
        Ok(Self { args, call })
    }

    pub(super) fn wants_part(&self, part: Part) -> bool {
        if let Some(hour) = Hour::of(self.args) {
            return part == Part::Benchmarks && hour == Hour::First;
        }
        match &self.call {
            Some(call) => call.part == part,
            None => self.args.parts.is_empty() || self.args.parts.contains(&part),
        }
    }

    fn wants(&self, part: Part, number: usize, name: &str) -> bool {
        let selected = self.args.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
        let called = self.call.as_ref().is_none_or(|call| call.checks.contains(&number));
        self.wants_part(part) && selected && called
    }

    /// Returns the sections with the selected checks.
    pub(super) fn sections(&self) -> Vec<Section> {
        if let Some(hour) = Hour::of(self.args) {
            return hour.sections();
        }
        let selected = |part: Part| {
            let all = part.checks(self.args.rounds.into()).into_iter().enumerate();
            let checks = all.filter(|(number, check)| self.wants(part, *number, &check.name));
            let checks: Vec<Check> = checks.map(|(_, check)| check).collect();
            Section { title: part.name(), time: None, before: None, checks }
        };
        Part::value_variants().iter().copied().map(selected).collect()
    }

    /// Returns the name of the JSON file.
    pub(super) fn results(&self) -> String {
        if let Some(hour) = Hour::of(self.args) {
            return format!("results-{}.json", hour.name());
        }
        match &self.call {
            Some(call) => format!("results-{}.json", call.name),
            None => "results.json".to_owned(),
        }
    }
}
