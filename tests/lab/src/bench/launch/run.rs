//! Launches workloads and reads the results.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::super::figures::{Figures, Metric};
use super::super::runner::Runner;
use super::command::Launch;
use super::lines::ReceivedLines;
use super::{LINES, Launcher, WORKERS, Workload, notes};
use crate::commands::cpu_command;
use crate::files::read;
use crate::stats::median;

/// The exit code of a launch in which a worker failed. torchrun always uses this code.
const FAILED: u8 = 1;

impl Runner<'_> {
    /// Runs one round of a workload.
    pub(in super::super) fn run_workload(
        &self,
        workload: Workload,
        launcher: Launcher,
        folder: &Path,
    ) -> Result<Figures> {
        let launches = workload.launches(launcher);
        let once = |number| {
            let own = folder.join(format!("launch-{number}"));
            fs::create_dir_all(&own).with_context(|| format!("cannot make {}", own.display()))?;
            let share = f64::from(number) / f64::from(launches);
            self.launch_once(workload, launcher, &own, share)
                .with_context(|| format!("launch {} of {launches}", number + 1))
        };
        let each: Vec<Figures> = (0..launches).map(once).collect::<Result<_>>()?;
        let all = |metric: Metric| -> Vec<f64> {
            let values = each.iter().filter_map(|figures| figures.get(&metric));
            values.copied().collect()
        };
        match workload {
            Workload::Death => notes::death_figures(&all(Metric::DeathMs)),
            Workload::Restart => notes::restart_figures(&all(Metric::RestartMs)),
            Workload::Agents(_) | Workload::LostAgent | Workload::RemoteRestart => {
                let metrics = [Metric::StartedMs, Metric::NoticedMs, Metric::DeathMs, Metric::RestartMs];
                let middle = |metric| Some((metric, median(&all(metric))?));
                Ok(metrics.into_iter().filter_map(middle).collect())
            }
            Workload::NoOp(_) | Workload::Lines => {
                let mut figures: Figures =
                    [(Metric::WallMs, median(&all(Metric::WallMs)).context("nothing was launched")?)].into();
                for metric in [Metric::LauncherPeakBytes, Metric::LinesLost] {
                    figures.extend(all(metric).into_iter().reduce(f64::max).map(|value| (metric, value)));
                }
                Ok(figures)
            }
        }
    }

    fn launch_once(
        &self,
        workload: Workload,
        launcher: Launcher,
        folder: &Path,
        share: f64,
    ) -> Result<Figures> {
        let bench = self.programs.join("launch-bench");
        let launch = Launch::new(workload, launcher, &bench, folder, share);
        for folder in [&launch.notes, &launch.logs] {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let line = launch.command_line(launcher, &self.programs.join("dtrain"), &self.python)?;
        match workload {
            Workload::Agents(agents) => self.start_agents(agents, &line, &launch.notes, folder),
            Workload::RemoteRestart => self.restart_agents(&line, &launch.notes, folder),
            Workload::LostAgent => self.lose_agent(&line, &launch.notes, folder),
            Workload::Death => {
                self.run_expecting(FAILED, start(&line, folder), 0, folder)?;
                Ok([(Metric::DeathMs, notes::time_to_sigterm(&launch.notes)?)].into())
            }
            Workload::Restart => {
                self.run_expecting(0, start(&line, folder), 0, folder)?;
                Ok([(Metric::RestartMs, notes::time_to_restart(&launch.notes)?)].into())
            }
            Workload::NoOp(_) | Workload::Lines => {
                let out = folder.join("measured.json");
                let measure = [bench.as_os_str(), OsStr::new("measure"), out.as_os_str()];
                let measure: Vec<OsString> = measure.map(OsStr::to_owned).into_iter().chain(line).collect();
                self.run_expecting(0, start(&measure, folder), 0, folder)?;
                let mut figures = read_measured(&read(&out)?, launcher)?;
                if workload == Workload::Lines {
                    figures.insert(
                        Metric::LinesLost,
                        count_missing_lines(launcher, folder, &launch.logs)? as f64,
                    );
                }
                Ok(figures)
            }
        }
    }
}

/// Returns the command of this line. Its temporary files are in the folder.
pub(super) fn start(line: &[OsString], folder: &Path) -> Command {
    let mut command = cpu_command(Path::new(&line[0]));
    command.args(&line[1..]).env("TMPDIR", folder);
    command
}

/// Reads the output of `launch-bench measure`. Without a launcher, peak memory does not matter.
fn read_measured(text: &str, launcher: Launcher) -> Result<Figures> {
    let value: Value = serde_json::from_str(text)?;
    let number = |key: &str| value[key].as_f64().with_context(|| format!("launch-bench measured no {key}"));
    let mut figures = Figures::from([(Metric::WallMs, number("wall_ms")?)]);
    if launcher != Launcher::Nobody {
        figures.insert(Metric::LauncherPeakBytes, number("peak_bytes")?);
    }
    Ok(figures)
}

/// Counts lines missing from the launcher's standard output plus lines missing from all log files. Without a
/// launcher, lines are in log files only.
fn count_missing_lines(launcher: Launcher, folder: &Path, logs: &Path) -> Result<usize> {
    let mut kept = ReceivedLines::new(WORKERS, LINES);
    kept.read_logs(logs)?;
    let mut shown = ReceivedLines::new(WORKERS, LINES);
    if launcher != Launcher::Nobody {
        shown.read_file(&folder.join("0.out"))?;
        return Ok(kept.count_missing() + shown.count_missing());
    }
    Ok(kept.count_missing())
}
