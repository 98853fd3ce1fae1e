//! `dtrain gpu kill`: ends this user's processes on GPUs, first by SIGTERM, then by SIGKILL.

use super::info::or_dash;
use super::owner::owner;
use crate::cli::KillArgs;
use crate::stdout::print;
use anyhow::bail;
use dtrain_agent::io::process::has_ended;
use dtrain_common::exit::ExitStatus;
use dtrain_common::gpu::{Driver, GpuId, GpuStatus, Status};
use dtrain_common::text::{Align::Left, Align::Right, columns, size};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The longest time that a killed process takes to end, unless it hangs in a driver.
const AFTER_KILL: Duration = Duration::from_secs(5);

/// Lists the processes, asks, and ends them.
pub(super) fn run(driver: &mut impl Driver, args: &KillArgs) -> anyhow::Result<ExitCode> {
    let status = driver.status()?;
    let found = find(&status, args)?;
    if found.own.is_empty() {
        print(&format!("{}No process of yours uses {}.\n", found.text, found.place))?;
        return Ok(ExitStatus::Success.into());
    }
    print(&found.text)?;
    if !args.yes && !confirm(found.own.len(), io::stdin().is_terminal())? {
        print("Nothing was ended.\n")?;
        return Ok(ExitStatus::Program(1).into());
    }
    let grace = Duration::from_secs_f64(args.grace);
    let status = if end(found.own, grace)? { ExitStatus::Success } else { ExitStatus::Program(1) };
    Ok(status.into())
}

/// The processes to end.
struct Found {
    /// Each process once.
    own: Vec<Victim>,
    /// A table of these processes, and the number of others.
    text: String,
    /// The searched GPUs, for messages.
    place: String,
}

/// A process with an open handle: its pid cannot be reused.
struct Victim {
    pid: u32,
    handle: OwnedFd,
}

fn find(status: &Status, args: &KillArgs) -> anyhow::Result<Found> {
    let gpus = chosen(status, args)?;
    let place = args.gpu_ids.as_ref().map_or("a GPU".to_owned(), |ids| format!("GPU {ids}"));
    let me = rustix::process::geteuid().as_raw();
    let mut own: Vec<Victim> = Vec::new();
    let mut others = BTreeSet::new();
    let mut table = vec![["pid", "GPU", "user", "memory", "command"].map(str::to_owned).to_vec()];
    for gpu in gpus {
        for process in &gpu.processes {
            // Opened before the description, so that the described process gets the signal.
            let (pid, handle) = (process.pid, handle(process.pid));
            match (owner(pid), handle) {
                (Some(owner), Some(handle)) if owner.uid == me && pid != std::process::id() => {
                    let memory = or_dash(process.used_bytes.map(size));
                    let (index, user, command) = (gpu.index.to_string(), owner.user, owner.command);
                    table.push(vec![pid.to_string(), index, user, memory, command]);
                    if !own.iter().any(|known| known.pid == pid) {
                        own.push(Victim { pid, handle });
                    }
                }
                _ => {
                    others.insert(pid);
                }
            }
        }
    }
    let mut text = String::new();
    if table.len() > 1 {
        columns(&mut text, 0, &[Right, Right, Left, Right, Left], &table);
    }
    if !others.is_empty() {
        let (is, processes) = match others.len() {
            1 => ("is", "process"),
            _ => ("are", "processes"),
        };
        text.push_str(&format!(
            "{} other {processes} {is} left alone: of another user, or not visible from here.\n",
            others.len()
        ));
    }
    Ok(Found { own, text, place })
}

/// Returns the chosen GPUs.
fn chosen<'a>(status: &'a Status, args: &KillArgs) -> anyhow::Result<Vec<&'a GpuStatus>> {
    let Some(ids) = &args.gpu_ids else {
        return Ok(status.gpus.iter().collect());
    };
    let mut gpus = Vec::new();
    for id in &ids.ids {
        let is_meant = |gpu: &&GpuStatus| match id {
            GpuId::Index(index) => gpu.index == *index,
            GpuId::Uuid(begin) => gpu.uuid.as_ref().is_some_and(|uuid| uuid.starts_with(begin.as_str())),
        };
        match status.gpus.iter().filter(is_meant).collect::<Vec<_>>()[..] {
            [gpu] => gpus.push(gpu),
            [] => bail!("--gpu-ids: `{id}` is not a GPU of this machine; `dtrain gpu info` lists them"),
            _ => bail!("--gpu-ids: `{id}` matches several UUIDs; give a longer prefix"),
        }
    }
    if gpus.is_empty() {
        bail!("--gpu-ids none names no GPU; name GPUs, or leave out the flag for all");
    }
    Ok(gpus)
}

fn handle(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()
}

/// Asks the user on the terminal.
fn confirm(count: usize, on_a_terminal: bool) -> anyhow::Result<bool> {
    let processes = match count {
        1 => "this process".to_owned(),
        _ => format!("these {count} processes"),
    };
    if !on_a_terminal {
        bail!("cannot ask before ending {processes}: standard input is not a terminal; give --yes");
    }
    write!(io::stderr(), "End {processes}? [y/N] ")?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Sends SIGTERM, and SIGKILL after the grace. Returns whether all have ended.
fn end(mut victims: Vec<Victim>, grace: Duration) -> anyhow::Result<bool> {
    for victim in &victims {
        victim.signal(Signal::TERM);
    }
    for pid in wait(&mut victims, grace) {
        print(&format!("pid {pid} ended on SIGTERM\n"))?;
    }
    for victim in &victims {
        victim.signal(Signal::KILL);
    }
    for pid in wait(&mut victims, AFTER_KILL) {
        print(&format!("pid {pid} was killed\n"))?;
    }
    for Victim { pid, .. } in &victims {
        print(&format!("pid {pid} still runs: it hangs in the kernel or the driver\n"))?;
    }
    Ok(victims.is_empty())
}

impl Victim {
    fn signal(&self, signal: Signal) {
        // Fails only if the process has already ended.
        let _ = pidfd_send_signal(&self.handle, signal);
    }
}

/// Removes the processes that end within `patience`, and returns their pids.
fn wait(victims: &mut Vec<Victim>, patience: Duration) -> Vec<u32> {
    let deadline = Instant::now() + patience;
    let ended = victims.extract_if(.., |victim| has_ended(&victim.handle, deadline));
    ended.map(|victim| victim.pid).collect()
}

#[cfg(test)]
mod tests;
