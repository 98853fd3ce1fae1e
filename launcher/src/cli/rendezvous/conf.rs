//! The settings of `--rdzv-conf`.

use crate::cli::numbers::whole;
use anyhow::bail;
use dtrain_agent::cluster::lease::Times;
use std::time::Duration;

/// torchrun's defaults.
const JOIN_TIMEOUT: Duration = Duration::from_secs(600);
const LAST_CALL: Duration = Duration::from_secs(30);

/// Settings of the rendezvous, in the order given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RdzvConf(Vec<(String, String)>);

pub(super) fn rdzv_conf(text: &str) -> Result<RdzvConf, String> {
    let mut settings: Vec<(String, String)> = Vec::new();
    for part in text.split(',').filter(|_| !text.trim().is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() || value.is_empty() {
            return Err(format!("{part:?} is not of the form KEY=VALUE"));
        }
        if settings.iter().any(|(known, _)| known == key) {
            return Err(format!("`{key}` is given twice"));
        }
        settings.push((key.to_owned(), value.to_owned()));
    }
    Ok(RdzvConf(settings))
}

impl RdzvConf {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// Returns a number of at least 1.
    fn number(&self, key: &str) -> anyhow::Result<Option<u32>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match whole::<u32>(value).filter(|number| *number > 0) {
            Some(number) => Ok(Some(number)),
            None => bail!("--rdzv-conf {key}={value}: give a whole number of at least 1"),
        }
    }

    fn seconds(&self, key: &str) -> anyhow::Result<Option<Duration>> {
        Ok(self.number(key)?.map(|seconds| Duration::from_secs(seconds.into())))
    }

    pub(super) fn boolean(&self, key: &str) -> anyhow::Result<Option<bool>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.to_lowercase().as_str() {
            "1" | "true" | "t" | "yes" | "y" => Ok(Some(true)),
            "0" | "false" | "f" | "no" | "n" => Ok(Some(false)),
            _ => bail!("--rdzv-conf {key}={value}: give true or false"),
        }
    }

    /// Returns whether a node that joins is taken in at a checkpoint, and not only at the next restart.
    pub(super) fn admits_at_checkpoint(&self) -> anyhow::Result<bool> {
        match self.get("admit") {
            None | Some("restart") => Ok(false),
            Some("checkpoint") => Ok(true),
            Some(value) => bail!("--rdzv-conf admit={value}: give restart or checkpoint"),
        }
    }

    /// Returns the longest wait for enough nodes.
    pub(super) fn join_timeout(&self) -> anyhow::Result<Duration> {
        let given = self.seconds("join_timeout")?;
        Ok(given.or(self.seconds("timeout")?).unwrap_or(JOIN_TIMEOUT))
    }

    /// Returns the wait for more nodes when there are enough.
    pub(super) fn last_call(&self) -> anyhow::Result<Duration> {
        Ok(self.seconds("last_call_timeout")?.unwrap_or(LAST_CALL))
    }

    /// Returns the times of the heartbeats: torchrun's interval in seconds, and the number of missed ones.
    pub(super) fn times(&self) -> anyhow::Result<Times> {
        let usual = Times::default();
        let interval = self.seconds("keep_alive_interval")?;
        let missed = self.number("keep_alive_max_attempt")?;
        let beat = interval.unwrap_or(usual.beat);
        let length = match (interval, missed) {
            (None, None) => usual.length,
            (_, missed) => beat * missed.unwrap_or(3).max(2),
        };
        Ok(Times { beat, length, ..usual })
    }

    /// Returns the settings that have no effect on one node, as the user wrote them.
    pub(super) fn without_use_on_one(&self) -> anyhow::Result<Vec<String>> {
        // A setting with a meaning must be sound also where it has no effect.
        self.join_timeout()?;
        self.last_call()?;
        self.times()?;
        self.rest(|key, value| match key {
            // Both settings are true for a single node.
            "is_host" => ["1", "true", "t", "yes", "y"].contains(&value.to_lowercase().as_str()),
            "store_type" => value == "tcp",
            _ => false,
        })
    }

    /// Returns the settings that have no effect on several nodes.
    pub(super) fn without_use_on_several(&self) -> anyhow::Result<Vec<String>> {
        const USED: [&str; 8] = [
            "admit",
            "timeout",
            "join_timeout",
            "last_call_timeout",
            "keep_alive_interval",
            "keep_alive_max_attempt",
            "is_host",
            "trial",
        ];
        self.rest(|key, value| USED.contains(&key) || (key == "store_type" && value == "tcp"))
    }

    fn rest(&self, is_used: impl Fn(&str, &str) -> bool) -> anyhow::Result<Vec<String>> {
        for key in ["close_timeout", "read_timeout"] {
            self.number(key)?;
        }
        let rest = self.0.iter().filter(|(key, value)| !is_used(key, value));
        Ok(rest.map(|(key, value)| format!("{key}={value}")).collect())
    }
}
