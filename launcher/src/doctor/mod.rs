//! `dtrain doctor`: what this machine has and lacks for training, with remedies.
//!
//! Each check reads the machine, and a pure function turns the reading into rows. Checks run on threads of
//! their own, so that a driver, disk or name server that hangs is itself a row. `job` is the doctor of several
//! nodes that know each other, `hosts` asks nothing of the other machines.

mod clock;
mod folder;
mod gpus;
mod hosts;
mod job;
mod libtorch;
mod limits;
mod network;
mod pairs;
mod python;
mod row;
mod variables;

use crate::cli::{C10D_PORT, DoctorArgs};
use crate::stdout::{print, print_coloured};
use anyhow::bail;
use dtrain_common::exit::ExitStatus;
use dtrain_common::progress::Progress;
use gpus::Gpus;
use libtorch::Libtorch;
use row::{Level, Row};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The time for all checks.
const PATIENCE: Duration = Duration::from_millis(2500);
/// The time for programs that a check starts.
const PROGRAM: Duration = Duration::from_millis(2300);

/// Runs the command: exit code 1 if a check fails.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.try_lock {
        return folder::try_lock(file);
    }
    let begun = Instant::now();
    if let Some(rendezvous) = args.rendezvous.rendezvous()? {
        // Its warnings are the launch's.
        args.rendezvous.check()?;
        return job::run(args, rendezvous);
    }
    if let [flag, ..] = args.rendezvous.without_use_alone()[..] {
        bail!("{flag} has no effect on one node; leave it out, or give --nnodes");
    }
    if args.nodes.is_empty() {
        return show(args, &examine(args).rows, begun);
    }
    let port = args.port.unwrap_or(C10D_PORT);
    let check = |host: &String| {
        let host = host.clone();
        let names = (Level::Fail, "no name server of /etc/resolv.conf answers; add the name to /etc/hosts");
        Check(host.clone(), names, Box::new(move || hosts::check(&host, port).into()))
    };
    show(args, &run_all(args.nodes.iter().map(check).collect()).rows, begun)
}

/// Prints the rows and returns the exit code.
fn show(args: &DoctorArgs, rows: &[Row], begun: Instant) -> anyhow::Result<ExitCode> {
    match args.json {
        true => print(&(serde_json::to_string(rows)? + "\n"))?,
        false => {
            let table = row::coloured(&row::table(rows, width()));
            print_coloured(&(table + "\n" + &row::summary(rows, begun.elapsed())))?
        }
    };
    let fails = rows.iter().any(|row| row.level == Level::Fail);
    Ok(if fails { ExitCode::FAILURE } else { ExitStatus::Success.into() })
}

/// The columns of the terminal, up to 120; elsewhere 100.
fn width() -> usize {
    let terminal = rustix::termios::tcgetwinsize(std::io::stdout()).ok().map(|size| usize::from(size.ws_col));
    terminal.filter(|columns| *columns > 0).unwrap_or(100).clamp(60, 120)
}

/// The result of the checks of one machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Machine {
    rows: Vec<Row>,
    gpus: Option<Gpus>,
    libtorch: Option<Libtorch>,
}

impl From<Vec<Row>> for Machine {
    fn from(rows: Vec<Row>) -> Self {
        Self { rows, ..Self::default() }
    }
}

/// A check: its name, its row if it hangs, and the function.
struct Check(String, Hang, Box<dyn FnOnce() -> Machine + Send>);

/// The level and the remedy of a check that hangs.
type Hang = (Level, &'static str);

/// Checks this machine.
fn examine(args: &DoctorArgs) -> Machine {
    run_all(checks(args))
}

/// Runs all checks at once.
fn run_all(checks: Vec<Check>) -> Machine {
    let (sender, receiver) = mpsc::channel();
    let names: Vec<(String, Hang)> = checks.iter().map(|check| (check.0.clone(), check.1)).collect();
    for (position, Check(_, _, check)) in checks.into_iter().enumerate() {
        let sender = sender.clone();
        // A thread that cannot start, or panics, gives no answer.
        let _ = thread::Builder::new().spawn(move || sender.send((position, check())).is_ok());
    }
    drop(sender);
    let _progress = Progress::start("checking");
    let end = Instant::now() + PATIENCE;
    let mut found: Vec<Option<Machine>> = names.iter().map(|_| None).collect();
    while let Ok((position, result)) = receiver.recv_timeout(end.saturating_duration_since(Instant::now())) {
        found[position] = Some(result);
    }
    let mut machine = Machine::default();
    for ((name, hang), result) in names.into_iter().zip(found) {
        let result = result.unwrap_or_else(|| vec![hung(&name, hang)].into());
        machine.rows.extend(result.rows);
        machine.gpus = machine.gpus.or(result.gpus);
        if result.libtorch.is_some() {
            machine.libtorch = result.libtorch;
            let fits = machine.libtorch.as_ref().map(|it| libtorch::judge_cuda(it, machine.gpus.as_ref()));
            machine.rows.extend(fits.unwrap_or_default());
        }
    }
    machine
}

fn hung(name: &str, (level, remedy): Hang) -> Row {
    let value = format!("no answer within {:.1} s", PATIENCE.as_secs_f64());
    Row { level, ..Row::warn(name, value, remedy) }
}

/// Returns the checks in the order of the table. GPUs come before libtorch, which must fit them.
fn checks(args: &DoctorArgs) -> Vec<Check> {
    fn simple(name: &'static str, hang: Hang, check: impl FnOnce() -> Vec<Row> + Send + 'static) -> Check {
        Check(name.into(), hang, Box::new(move || check().into()))
    }
    let read = (Level::Warn, "run the command again");
    let driver = (Level::Fail, "the NVIDIA driver hangs; if `nvidia-smi` hangs too, restart the machine");
    let names =
        (Level::Warn, "no name server of /etc/resolv.conf answers; add this machine's name to /etc/hosts");
    let disk = (Level::Fail, "the file system hangs; choose another --run-dir, or mount it again");
    let folder = args.run_dir.clone().unwrap_or_else(|| PathBuf::from("."));
    let interface = args.rendezvous.interface().map(str::to_owned);
    vec![
        Check(
            "GPUs".into(),
            driver,
            Box::new(|| {
                let (rows, gpus) = gpus::check();
                Machine { rows, gpus, libtorch: None }
            }),
        ),
        Check(
            "libtorch".into(),
            read,
            Box::new(|| {
                let (rows, libtorch) = libtorch::check(PROGRAM);
                Machine { rows, libtorch, gpus: None }
            }),
        ),
        simple("Python", read, || python::check(PROGRAM)),
        simple("memory", read, limits::check_memory),
        simple("shared memory", read, limits::check_shared_memory),
        simple("limits", read, limits::check_limits),
        simple("run directory", disk, move || folder::check(&folder)),
        simple("host name", names, network::check_name),
        simple("network", read, move || network::check_interfaces(interface.as_deref())),
        simple("ports", read, network::check_ports),
        simple("clock", read, clock::check),
        simple("environment", read, variables::check),
    ]
}
