//! torchrun's flags other than those of the rendezvous, the number of workers, output and restarts.

use super::rendezvous::RendezvousArgs;
use anyhow::bail;
use clap::builder::NonEmptyStringValueParser;
use clap::{ArgAction, Args, ValueEnum};
use dtrain_agent::signals;
use std::collections::HashSet;

/// See the module.
#[derive(Clone, Debug, Args)]
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

    // Must follow all other flags: its heading applies to later ones.
    #[command(flatten)]
    pub(crate) rendezvous: RendezvousArgs,
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
    /// Checks the flags against each other; returns warnings for the user.
    pub(crate) fn check(&self) -> anyhow::Result<Vec<String>> {
        if self.module && self.no_python {
            bail!("-m and --no-python contradict each other; give one of them");
        }
        let mut notes = self.rendezvous.check()?;
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

#[cfg(test)]
pub(super) mod tests;
