//! Command lines of a launch: the same workers by dtrain, by torchrun, and alone.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{LINES, Launcher, WORKERS, Workload};
use crate::python::{free_port, torchrun};

/// How often torchrun checks its workers. Times of death are spread over this interval.
const TORCHRUN_INTERVAL_MS: f64 = 100.0;

/// Starts the workers with torchrun's variables, each writing to its own file, and waits for all.
const ALONE: &str = r#"logs=$1; workers=$2; shift 2; rank=0
while [ $rank -lt $workers ]; do RANK=$rank "$@" > "$logs/stdout.log.$rank" & rank=$((rank + 1)); done
wait"#;

/// A launch, without the launcher.
#[derive(Debug)]
pub(super) struct Launch {
    agents: u32,
    workers: u32,
    flags: Vec<OsString>,
    program: Vec<OsString>,
    /// The folder in which workers note times.
    pub(super) notes: PathBuf,
    /// The folder of log files.
    pub(super) logs: PathBuf,
}

impl Launch {
    /// Creates a launch in a folder. `bench` is the workers' program; `share` is the part of torchrun's
    /// interval that passes before a death.
    pub(super) fn new(
        workload: Workload,
        launcher: Launcher,
        bench: &Path,
        folder: &Path,
        share: f64,
    ) -> Self {
        let (notes, logs) = (folder.join("notes"), folder.join("logs"));
        let (mut flags, mut program) = (Vec::new(), Vec::new());
        match workload {
            Workload::NoOp(_) => program.push("/bin/true".into()),
            Workload::Agents(_) => program.extend([bench.into(), "start".into(), notes.clone().into()]),
            Workload::LostAgent => program.extend([bench.into(), "wait".into()]),
            Workload::Death | Workload::Restart | Workload::RemoteRestart => {
                let after = format!("{:.0}", share * TORCHRUN_INTERVAL_MS);
                program.extend([bench.into(), "die".into(), notes.clone().into(), after.into()]);
                if workload != Workload::Death {
                    flags.extend(["--max-restarts", "1"].map(OsString::from));
                }
            }
            Workload::Lines => {
                program.extend([bench.into(), "lines".into(), LINES.to_string().into()]);
                match launcher {
                    Launcher::Dtrain => flags.extend(["--run-dir".into(), logs.clone().into()]),
                    Launcher::Torchrun => {
                        flags.extend(["--tee", "3", "--log-dir"].map(OsString::from));
                        flags.push(logs.clone().into());
                    }
                    Launcher::Nobody => {}
                }
            }
        }
        let agents = match workload {
            Workload::Agents(agents) => agents,
            Workload::RemoteRestart | Workload::LostAgent => 2,
            _ => 1,
        };
        let workers = match workload {
            Workload::NoOp(workers) => workers,
            Workload::Agents(_) => 1,
            Workload::RemoteRestart | Workload::LostAgent => WORKERS / 2,
            _ => WORKERS,
        };
        Self { agents, workers, flags, program, notes, logs }
    }

    /// Returns the whole command line.
    pub(super) fn command_line(
        &self,
        launcher: Launcher,
        dtrain: &Path,
        python: &Path,
    ) -> Result<Vec<OsString>> {
        let workers = self.workers.to_string();
        let mut line: Vec<OsString> = match launcher {
            Launcher::Dtrain => vec![dtrain.into(), "launch".into(), "--nproc".into(), workers.into()],
            Launcher::Torchrun => torchrun(python, &workers)?,
            Launcher::Nobody => {
                let shell = ["/bin/sh", "-c", ALONE, "workers"].map(OsString::from);
                shell.into_iter().chain([self.logs.clone().into(), workers.into()]).collect()
            }
        };
        line.extend(self.flags.iter().cloned());
        if self.agents > 1 {
            let nodes =
                ["--nnodes", &self.agents.to_string(), "--rdzv-backend", "c10d", "--rdzv-id", "bench"];
            line.extend(nodes.map(OsString::from));
            line.extend(["--rdzv-endpoint".into(), format!("127.0.0.1:{}", free_port()?).into()]);
        }
        line.extend(match launcher {
            Launcher::Dtrain => Some("--".into()),
            Launcher::Torchrun => Some("--no-python".into()),
            Launcher::Nobody => None,
        });
        line.extend(self.program.iter().cloned());
        Ok(line)
    }
}
