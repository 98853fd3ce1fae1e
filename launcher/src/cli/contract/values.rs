//! The values of torchrun's flags.

use super::{Backend, ONE_NODE};
use dtrain_agent::signals;
use std::fmt;
use std::str::FromStr;

/// A number of nodes, or a range of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nodes {
    least: u32,
    pub(super) most: u32,
}

impl FromStr for Nodes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (least, most) = text.split_once(':').unwrap_or((text, text));
        let wrong = || "give a number of nodes from 1 on, or a range MIN:MAX".to_owned();
        let nodes = Self {
            least: whole(least).ok_or_else(wrong)?,
            most: whole(most).ok_or_else(wrong)?,
        };
        if nodes.least == 0 || nodes.least > nodes.most {
            return Err(wrong());
        }
        Ok(nodes)
    }
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.least == self.most {
            write!(f, "{}", self.most)
        } else {
            write!(f, "{}:{}", self.least, self.most)
        }
    }
}

/// A number in digits alone; the standard's own reading takes a plus sign too.
fn whole<T: FromStr>(text: &str) -> Option<T> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

/// A host name or an address, the brackets of an IPv6 address taken off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host(String);

impl Host {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "give a host name or an IP address".to_owned();
        let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let host = bracketed.unwrap_or(text);
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || "[]/=,".contains(c)) {
            return Err(wrong());
        }
        if host.contains(':') && host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(format!("{}; a port is given apart, by --master-port", wrong()));
        }
        Ok(Self(host.to_owned()))
    }
}

/// A TCP port, or any free one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Port(u16);

impl Port {
    /// None when any free one will do.
    pub(super) fn number(self) -> Option<u16> {
        (self.0 != 0).then_some(self.0)
    }
}

impl FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "give a port from 1 to 65535, or 0 for any free one".to_owned();
        whole(text).map(Self).ok_or_else(wrong)
    }
}

/// A host with a port, or with any free one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) host: Host,
    pub(super) port: Port,
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The last colon parts host and port, unless it belongs to an IPv6 address.
        let parts = text
            .rsplit_once(':')
            .filter(|(host, _)| (host.starts_with('[') && host.ends_with(']')) || !host.contains(':'));
        match parts {
            Some((host, port)) => Ok(Self {
                host: host.parse()?,
                port: port.parse()?,
            }),
            None => Ok(Self {
                host: text.parse()?,
                port: Port(0),
            }),
        }
    }
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "static" => Ok(Self::Static),
            "c10d" => Ok(Self::C10d),
            "etcd" | "etcd-v2" => Err(format!(
                "it serves several nodes, and {ONE_NODE}; use static or c10d"
            )),
            _ => Err("known are static and c10d".to_owned()),
        }
    }
}

/// Seconds between two looks at the workers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval;

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            Ok(seconds) if seconds.is_finite() && seconds > 0.0 => Ok(Self),
            _ => Err("give a number of seconds above 0".to_owned()),
        }
    }
}

/// Signals by name, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SignalList(Vec<i32>);

impl SignalList {
    pub(super) fn numbers(&self) -> &[i32] {
        &self.0
    }
}

impl FromStr for SignalList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known: Vec<_> = signals::STOP.into_iter().chain(signals::FORWARD).collect();
        let mut numbers = Vec::new();
        for word in text.split(',').map(str::trim) {
            let upper = word.to_ascii_uppercase();
            let full = if upper.starts_with("SIG") {
                upper
            } else {
                format!("SIG{upper}")
            };
            let Some(number) = known.iter().find(|number| signals::name(**number) == full) else {
                return Err(format!(
                    "{word:?} is not among TERM, INT, HUP, QUIT, USR1 and USR2"
                ));
            };
            if !numbers.contains(number) {
                numbers.push(*number);
            }
        }
        Ok(Self(numbers))
    }
}

/// Settings of the rendezvous, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RdzvConf(Vec<(String, String)>);

impl FromStr for RdzvConf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self(Vec::new()));
        }
        let mut settings: Vec<(String, String)> = Vec::new();
        for part in text.split(',') {
            let (key, value) = part
                .split_once('=')
                .map_or((part, ""), |(key, value)| (key, value));
            let (key, value) = (key.trim(), value.trim());
            if key.is_empty() || value.is_empty() {
                return Err(format!("{part:?} is not of the form KEY=VALUE"));
            }
            if settings.iter().any(|(known, _)| known == key) {
                return Err(format!("`{key}` is given twice"));
            }
            settings.push((key.to_owned(), value.to_owned()));
        }
        Ok(Self(settings))
    }
}

impl RdzvConf {
    /// The settings that have no use on one node, as the user wrote them.
    ///
    /// # Errors
    /// A time that is none.
    pub(super) fn check(&self) -> anyhow::Result<Vec<String>> {
        const SECONDS: [&str; 6] = [
            "timeout",
            "join_timeout",
            "last_call_timeout",
            "close_timeout",
            "read_timeout",
            "keep_alive_interval",
        ];
        let mut without_use = Vec::new();
        for (key, value) in &self.0 {
            let sound = match key.as_str() {
                // True of the only node, and of the store on it.
                "is_host" if ["1", "true", "t", "yes", "y"].contains(&value.to_lowercase().as_str()) => {
                    continue;
                }
                "store_type" if value == "tcp" => continue,
                "keep_alive_max_attempt" => whole::<u32>(value).is_some(),
                key if SECONDS.contains(&key) => whole::<u32>(value).is_some_and(|seconds| seconds > 0),
                _ => true,
            };
            if !sound {
                anyhow::bail!("--rdzv-conf {key}={value}: give a whole number from 1 on");
            }
            without_use.push(format!("{key}={value}"));
        }
        Ok(without_use)
    }
}

#[cfg(test)]
mod tests;
