//! `dtrain launch`: check everything, start the workers, supervise them, report.

mod environment;
mod files;
mod meeting;
mod numa;
mod placement;
mod plan;
mod report;
mod size;
mod supervise;

use crate::cli::LaunchArgs;
use crate::output::{Screen, shows_frames};
use anyhow::Context;
use dtrain_common::env::omp_threads;
use dtrain_common::exit::ExitStatus;
use dtrain_common::files::write_atomic;
use dtrain_common::run_dir::RunDir;
use environment::Shared;
use files::Files;
use meeting::Meeting;
use plan::Plan;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// When the command began, on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    /// Origin of the agent's times.
    pub(crate) at: Instant,
    /// The same moment by the calendar, for files and for the workers.
    pub(crate) wall: SystemTime,
}

impl Begun {
    /// This moment.
    pub(crate) fn now() -> Self {
        Self {
            at: Instant::now(),
            wall: SystemTime::now(),
        }
    }

    /// Time on the agent's clock.
    pub(crate) fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }
}

/// Runs the command to its end. Call it from the main thread: the workers die with the thread that starts them.
///
/// # Errors
/// Whatever is wrong before all workers run. None is left running then, and nothing of an earlier run is overwritten.
pub(crate) fn run(args: &LaunchArgs, begun: Begun) -> anyhow::Result<ExitStatus> {
    let notes = args.contract.check()?;
    let meeting = Meeting::check(&args.contract)?;
    let mut plan = Plan::new(args, begun)?;
    plan.tell(notes);
    let files = Files::create(plan.run_dir.as_ref(), plan.nproc)?;
    let shared = Shared {
        world_size: plan.nproc,
        master_port: meeting.port()?,
        master_addr: meeting.host,
        role: args.contract.role.clone(),
        own_devices: plan.placement.own_devices.clone(),
        run_id: args
            .contract
            .rdzv_id
            .clone()
            .unwrap_or_else(|| plan.run_id(begun)),
        omp_threads: plan
            .placement
            .bound
            .at_most(omp_threads(size::cores(), plan.nproc)),
        start: begun.wall,
        frames: shows_frames(),
    };
    let specs = (0..plan.nproc)
        .map(|rank| {
            let vars = shared.vars(rank, &files.error_file(rank), |name| std::env::var_os(name));
            plan.worker(rank, vars)
        })
        .collect();
    let screen = Screen::start(plan.headline()).context("cannot start the thread that writes the output")?;
    // The screen's thread ends only after the last sender is gone, so this cannot fail while the launcher runs.
    let say = |text: String| drop(screen.notices.send(text));

    let earlier = plan.run_dir.as_ref().map(set_aside_result).transpose()?.flatten();
    let job = supervise::Job {
        specs,
        files: &files,
        begun,
        shutdown_timeout: args.shutdown_timeout(),
        requeue_code: plan.requeue_code(),
        signals: args.contract.signals(),
    };
    let run = supervise::supervise(job, &screen)?;
    if let Some((rank, error)) = &run.not_started {
        let why = report::why_not_started(error);
        let of = if plan.nproc == 1 {
            String::new()
        } else {
            format!(" for rank {rank}")
        };
        files.remove();
        if let Some((path, content)) = earlier {
            write_atomic(&path, &content).with_context(|| format!("cannot put back {}", path.display()))?;
        }
        run.finish(screen);
        return Err(anyhow::anyhow!(
            "cannot start `{}`{of}: {why}",
            plan.program.display()
        ));
    }
    let report = report::Report::new(&plan, &run, &files, begun);
    if let Some(run_dir) = &plan.run_dir
        && let Err(error) = report.write(run_dir)
    {
        say(format!(
            "dtrain: cannot write {}: {error}",
            run_dir.result().display()
        ));
    }
    if let Some(text) = report.text() {
        say(text);
    }
    run.finish(screen);
    Ok(report.status())
}

/// Removes the result of an earlier start in the same run directory, which is not this one's, and answers where it
/// lay and its content.
fn set_aside_result(run_dir: &RunDir) -> anyhow::Result<Option<(PathBuf, Vec<u8>)>> {
    let path = run_dir.result();
    let content = match std::fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.with_context(|| format!("cannot read the earlier {}", path.display()))?,
    };
    std::fs::remove_file(&path).with_context(|| format!("cannot remove the earlier {}", path.display()))?;
    Ok(Some((path, content)))
}
