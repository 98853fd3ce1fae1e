//! torchrun's flags with their meaning on one node. Flags for several nodes are errors.

use anyhow::bail;
use clap::builder::NonEmptyStringValueParser;
use clap::{ArgAction, Args, ValueEnum};
use dtrain_agent::signals;
use std::collections::HashSet;
use std::str::FromStr;

/// The error for a request of several nodes.
const ONE_NODE: &str = "several nodes are not built in this version";

/// torchrun's flags other than the number of workers, output and restarts.
#[derive(Debug, Args)]
#[command(next_help_heading = "torchrun's flags")]
pub(crate) struct ContractArgs {
    /// Run a Python module, as `python3 -m` does.
    #[arg(short, long)]
    pub(crate) module: bool,

    /// Execute the program itself, even if its name ends in `.py`.
    #[arg(long)]
    pub(crate) no_python: bool,

    /// Value of ROLE_NAME.
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) role: String,

    /// Set LOCAL_RANK=0 and show each worker only its own GPU.
    #[arg(long)]
    pub(crate) virtual_local_rank: bool,

    /// Bind each worker to CPU cores near its GPU.
    #[arg(long, value_name = "MODE")]
    pub(crate) numa_binding: Option<Binding>,

    /// Signals to handle [default: TERM,INT,HUP,QUIT,USR1,USR2].
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', num_args = 1, action = ArgAction::Set,
          value_parser = signal)]
    signals_to_handle: Option<Vec<i32>>,

    /// Value of TORCHELASTIC_RUN_ID [default: unique for each launch].
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) rdzv_id: Option<String>,

    /// MASTER_ADDR: an address of this machine [default: 127.0.0.1].
    #[arg(long, value_name = "HOST", value_parser = host)]
    master_addr: Option<String>,

    /// MASTER_PORT: a free port; 0 chooses one [default: 0].
    #[arg(long, value_name = "PORT", allow_negative_numbers = true)]
    master_port: Option<u16>,

    /// Same as `--master-addr`.
    #[arg(long, value_name = "HOST", value_parser = host)]
    local_addr: Option<String>,

    /// Set `--master-addr` and `--master-port` together; overrides both.
    #[arg(long, value_name = "HOST[:PORT]", value_parser = endpoint)]
    rdzv_endpoint: Option<(String, u16)>,

    /// `static` or `c10d`; no difference on one node.
    #[arg(long, value_name = "NAME", value_parser = backend)]
    rdzv_backend: Option<String>,

    /// Ignored on one node.
    #[arg(long, value_name = "KEY=VALUE,...", value_parser = rdzv_conf)]
    rdzv_conf: Option<RdzvConf>,

    /// One node, as always; overrides `--rdzv-endpoint`.
    #[arg(long)]
    pub(crate) standalone: bool,

    /// Number of nodes: 1 or 1:1.
    #[arg(long, value_name = "N|MIN:MAX", allow_negative_numbers = true, value_parser = nodes)]
    nnodes: Option<String>,

    /// Number of this node: 0.
    #[arg(long, value_name = "RANK", allow_negative_numbers = true)]
    node_rank: Option<u32>,

    /// Ignored: exits are detected immediately.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = interval)]
    monitor_interval: Option<f64>,

    #[arg(long, hide = true, value_parser = ["spawn", "fork", "forkserver"])]
    start_method: Option<String>,

    #[arg(long, hide = true)]
    event_log_handler: Option<String>,

    #[arg(long, hide = true)]
    logs_specs: Option<String>,

    #[arg(long, hide = true)]
    run_path: bool,
}

/// The CPU cores of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Binding {
    /// All cores of the GPU's NUMA node.
    Node,
    /// All cores of the GPU's socket.
    Socket,
    /// An equal share of the node's cores for each worker.
    Exclusive,
    /// Cores of the node that share one last-level cache.
    CoreComplex,
}

impl Binding {
    /// Returns the value's name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |word| word.get_name().to_owned())
    }
}

impl ContractArgs {
    /// Checks the flags against each other and against a single node; returns warnings for the user.
    pub(crate) fn check(&self) -> anyhow::Result<Vec<String>> {
        if self.module && self.no_python {
            bail!("-m and --no-python contradict each other; give one of them");
        }
        let nodes = self.nnodes.as_deref();
        if let Some(nodes) = nodes.filter(|nodes| !["1", "1:1"].contains(nodes)) {
            if self.standalone {
                bail!("--standalone and --nnodes {nodes} contradict each other: --standalone is one node");
            }
            bail!("--nnodes {nodes}: {ONE_NODE}; use --nnodes 1, or leave it out");
        }
        if let Some(rank) = self.node_rank.filter(|rank| *rank > 0) {
            bail!("--node-rank {rank}: {ONE_NODE}, and the only node is 0");
        }
        let mut notes = self.outranked();
        if let Some(conf) = &self.rdzv_conf {
            let without_use = without_use(conf)?.join(", ");
            if !without_use.is_empty() {
                notes.push(format!(
                    "--rdzv-conf {without_use} is ignored: there is only one node, and the store uses TCP"
                ));
            }
        }
        if self.rdzv_backend.as_deref() == Some("c10d") {
            notes.push("--rdzv-backend c10d is the same as static on one node".to_owned());
        }
        let handler = self.event_log_handler.as_deref();
        for (given, flag, why) in [
            (self.monitor_interval.is_some(), "--monitor-interval", "exits are detected immediately"),
            (self.start_method.is_some(), "--start-method", "workers are started as programs"),
            (
                handler.is_some_and(|name| name != "null"),
                "--event-log-handler",
                "it names a Python object; the launcher prints its events",
            ),
            (
                self.logs_specs.is_some(),
                "--logs-specs",
                "it names a Python object; use --log-dir, --redirects and --tee",
            ),
            (self.run_path, "--run-path", "every worker runs the script in its own Python"),
        ] {
            notes.extend(given.then(|| format!("{flag} is ignored: {why}")));
        }
        Ok(notes)
    }

    /// Returns warnings for flags of the meeting point that another flag overrides, as with torchrun.
    fn outranked(&self) -> Vec<String> {
        let (endpoint, given) = (self.endpoint().is_some(), self.rdzv_endpoint.is_some());
        let (addr, local) = (self.master_addr.is_some(), self.local_addr.is_some());
        let port = self.master_port.is_some();
        let pairs = [
            ("--rdzv-endpoint", given, "--standalone", self.standalone),
            ("--master-addr", addr, "--rdzv-endpoint", endpoint),
            ("--master-port", port, "--rdzv-endpoint", endpoint),
            ("--local-addr", local, "--rdzv-endpoint", endpoint),
            ("--local-addr", local, "--master-addr", addr && !endpoint),
        ];
        pairs
            .into_iter()
            .filter(|(_, given, _, stronger)| *given && *stronger)
            .map(|(flag, _, stronger, _)| format!("{flag} is ignored: {stronger} overrides it"))
            .collect()
    }

    /// Returns the endpoint in effect: with --standalone, the launcher chooses it.
    fn endpoint(&self) -> Option<&(String, u16)> {
        self.rdzv_endpoint.as_ref().filter(|_| !self.standalone)
    }

    /// Returns the flag and the host on which rank 0 must listen.
    pub(crate) fn host(&self) -> Option<(&'static str, &str)> {
        let endpoint = self.endpoint().map(|(host, _)| host);
        [
            ("--rdzv-endpoint", endpoint),
            ("--master-addr", self.master_addr.as_ref()),
            ("--local-addr", self.local_addr.as_ref()),
        ]
        .into_iter()
        .find_map(|(flag, host)| Some((flag, host?.as_str())))
    }

    /// Returns the flag and the port on which rank 0 must listen; `None` for any free port.
    pub(crate) fn port(&self) -> Option<(&'static str, u16)> {
        let (flag, port) = match self.endpoint() {
            Some((_, port)) => ("--rdzv-endpoint", *port),
            None => ("--master-port", self.master_port?),
        };
        (port != 0).then_some((flag, port))
    }

    pub(crate) fn signals(&self) -> Vec<i32> {
        let all = || signals::STOP.into_iter().chain(signals::FORWARD).collect();
        let mut handled = self.signals_to_handle.clone().unwrap_or_else(all);
        let mut seen = HashSet::new();
        handled.retain(|signal| seen.insert(*signal));
        handled
    }

    /// Returns the signals' names in the form that torchrun passes to workers.
    pub(crate) fn signal_names(&self) -> String {
        let names: Vec<_> = self.signals().into_iter().map(signals::name).collect();
        names.join(",")
    }
}

/// Parses digits only; the standard library also accepts a plus sign.
pub(super) fn whole<T: FromStr>(text: &str) -> Option<T> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Checks a number of nodes, or a range.
fn nodes(text: &str) -> Result<String, &'static str> {
    let (least, most) = text.split_once(':').unwrap_or((text, text));
    match (whole::<u32>(least), whole::<u32>(most)) {
        (Some(least), Some(most)) if least > 0 && least <= most => Ok(text.to_owned()),
        _ => Err("give a number of nodes of at least 1, or a range MIN:MAX"),
    }
}

/// Checks a host name or an address, and removes the brackets of an IPv6 address.
fn host(text: &str) -> Result<String, &'static str> {
    let host = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || "[]/=,".contains(c)) {
        return Err("give a host name or an IP address");
    }
    if host.contains(':') && host.parse::<std::net::Ipv6Addr>().is_err() {
        return Err("give a host name or an IP address; set the port with --master-port");
    }
    Ok(host.to_owned())
}

/// Parses a host with a port; without a port, 0 for any free one.
fn endpoint(text: &str) -> Result<(String, u16), &'static str> {
    // The last colon separates host and port, unless it belongs to an IPv6 address.
    let parts = text
        .rsplit_once(':')
        .filter(|(host, _)| (host.starts_with('[') && host.ends_with(']')) || !host.contains(':'));
    let (name, port) = parts.unwrap_or((text, "0"));
    Ok((host(name)?, whole(port).ok_or("give a port from 1 to 65535, or 0 for any free one")?))
}

fn backend(text: &str) -> Result<String, String> {
    match text {
        "static" | "c10d" => Ok(text.to_owned()),
        "etcd" | "etcd-v2" => Err(format!("{ONE_NODE}; use static or c10d")),
        _ => Err("unknown backend; use static or c10d".to_owned()),
    }
}

fn interval(text: &str) -> Result<f64, &'static str> {
    let seconds: Option<f64> = text.parse().ok();
    let seconds = seconds.filter(|seconds| seconds.is_finite() && *seconds > 0.0);
    seconds.ok_or("give a number of seconds above 0")
}

fn signal(text: &str) -> Result<i32, String> {
    let word = text.trim().to_ascii_uppercase();
    let full = format!("SIG{}", word.strip_prefix("SIG").unwrap_or(&word));
    let mut known = signals::STOP.into_iter().chain(signals::FORWARD);
    let found = known.find(|number| signals::name(*number) == full);
    found.ok_or_else(|| format!("{:?} is not among TERM, INT, HUP, QUIT, USR1 and USR2", text.trim()))
}

/// Settings of the rendezvous, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RdzvConf(Vec<(String, String)>);

fn rdzv_conf(text: &str) -> Result<RdzvConf, String> {
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

/// Returns the settings that have no effect on one node, as the user wrote them.
fn without_use(RdzvConf(settings): &RdzvConf) -> anyhow::Result<Vec<String>> {
    let mut without_use = Vec::new();
    for (key, value) in settings {
        let sound = match key.as_str() {
            // Both settings are true for a single node.
            "is_host" if ["1", "true", "t", "yes", "y"].contains(&value.to_lowercase().as_str()) => continue,
            "store_type" if value == "tcp" => continue,
            "keep_alive_max_attempt" => whole::<u32>(value).is_some(),
            "timeout"
            | "join_timeout"
            | "last_call_timeout"
            | "close_timeout"
            | "read_timeout"
            | "keep_alive_interval" => whole::<u32>(value).is_some_and(|seconds| seconds > 0),
            _ => true,
        };
        if !sound {
            bail!("--rdzv-conf {key}={value}: give a whole number of at least 1");
        }
        without_use.push(format!("{key}={value}"));
    }
    Ok(without_use)
}

#[cfg(test)]
mod tests;
