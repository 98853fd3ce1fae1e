//! The words of a launch: the same workers by dtrain, by torchrun and alone.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{By, Job, LINES, WORKERS};
use crate::python::torchrun;

/// torchrun looks at its workers so often; moments of death are spread over this time.
const TORCHRUN_INTERVAL_MS: f64 = 100.0;

/// Starts the workers with what torchrun would tell them, each writing to a file of its own, and waits for all.
const ALONE: &str = r#"logs=$1; workers=$2; shift 2; rank=0
while [ $rank -lt $workers ]; do RANK=$rank "$@" > "$logs/stdout.log.$rank" & rank=$((rank + 1)); done
wait"#;

/// What one launch is made of.
#[derive(Debug)]
pub(super) struct Launch {
    workers: u32,
    flags: Vec<OsString>,
    program: Vec<OsString>,
    /// Where workers note times.
    pub(super) notes: PathBuf,
    /// Where log files go.
    pub(super) logs: PathBuf,
}

impl Launch {
    /// A launch in a folder of its own. `bench` is the workers' program; `share` is how much of torchrun's interval passes
    /// before a death.
    pub(super) fn new(job: Job, by: By, bench: &Path, folder: &Path, share: f64) -> Self {
        let (notes, logs) = (folder.join("notes"), folder.join("logs"));
        let (mut flags, mut program) = (Vec::new(), Vec::new());
        match job {
            Job::NoOp(_) => program.push("/bin/true".into()),
            Job::Death | Job::Restart => {
                let after = format!("{:.0}", share * TORCHRUN_INTERVAL_MS);
                program.extend([bench.into(), "die".into(), notes.clone().into(), after.into()]);
                if job == Job::Restart {
                    flags.extend(["--max-restarts", "1"].map(OsString::from));
                }
            }
            Job::Lines => {
                program.extend([bench.into(), "lines".into(), LINES.to_string().into()]);
                match by {
                    By::Dtrain => flags.extend(["--run-dir".into(), logs.clone().into()]),
                    By::Torchrun => {
                        flags.extend(["--tee", "3", "--log-dir"].map(OsString::from));
                        flags.push(logs.clone().into());
                    }
                    By::Nobody => {}
                }
            }
        }
        let workers = if let Job::NoOp(workers) = job {
            workers
        } else {
            WORKERS
        };
        Self {
            workers,
            flags,
            program,
            notes,
            logs,
        }
    }

    /// The whole command.
    pub(super) fn words(&self, by: By, dtrain: &Path, python: &Path) -> Result<Vec<OsString>> {
        let workers = self.workers.to_string();
        let mut words: Vec<OsString> = match by {
            By::Dtrain => vec![dtrain.into(), "launch".into(), "--nproc".into(), workers.into()],
            By::Torchrun => torchrun(python, &workers)?,
            By::Nobody => {
                let words = ["/bin/sh", "-c", ALONE, "workers"].map(OsString::from);
                words
                    .into_iter()
                    .chain([self.logs.clone().into(), workers.into()])
                    .collect()
            }
        };
        words.extend(self.flags.iter().cloned());
        words.extend(match by {
            By::Dtrain => Some("--".into()),
            By::Torchrun => Some("--no-python".into()),
            By::Nobody => None,
        });
        words.extend(self.program.iter().cloned());
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn words(job: Job, by: By) -> String {
        let launch = Launch::new(job, by, Path::new("bench"), Path::new("work"), 0.25);
        let words = launch
            .words(by, Path::new("dtrain"), Path::new("python"))
            .unwrap();
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    #[test]
    fn both_launchers_start_the_same_program() {
        assert_eq!(
            words(Job::NoOp(8), By::Dtrain),
            "dtrain launch --nproc 8 -- /bin/true"
        );
        let theirs = words(Job::NoOp(8), By::Torchrun);
        assert!(
            theirs.starts_with("python -m torch.distributed.run --nproc-per-node 8 --master-port "),
            "{theirs}"
        );
        assert!(theirs.ends_with(" --no-python /bin/true"), "{theirs}");
    }

    #[test]
    fn a_death_comes_at_its_share_of_torchrun_s_interval() {
        assert!(words(Job::Death, By::Dtrain).ends_with("-- bench die work/notes 25"));
        let restart = words(Job::Restart, By::Torchrun);
        assert!(
            restart.ends_with("--max-restarts 1 --no-python bench die work/notes 25"),
            "{restart}"
        );
    }

    #[test]
    fn lines_go_to_log_files_on_every_side() {
        assert!(words(Job::Lines, By::Dtrain).contains("--run-dir work/logs -- bench lines 200000"));
        assert!(words(Job::Lines, By::Torchrun).contains("--tee 3 --log-dir work/logs --no-python bench"));
        assert!(words(Job::Lines, By::Nobody).ends_with("workers work/logs 4 bench lines 200000"));
    }
}
