//! Ranks as processes, started without the launcher.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dtrain_common::env::{OMP_NUM_THREADS, WorkerEnv};

use crate::process::output_text;

/// Runs `program ARGS` as `world_size` processes with the environment contract and collects their output.
///
/// # Panics
/// If a process cannot be started, or if some have not ended within `limit` (then they are killed).
pub fn run(program: &Path, args: &[&str], world_size: usize, limit: Duration) -> Vec<Output> {
    run_on_nodes(program, args, &[], &[world_size], limit)
}

/// As [`run`], with further environment variables, and with this many ranks on each node. The nodes are one machine
/// and differ in GROUP_RANK.
///
/// # Panics
/// As [`run`].
pub fn run_on_nodes(
    program: &Path,
    args: &[&str],
    vars: &[(&str, &str)],
    nodes: &[usize],
    limit: Duration,
) -> Vec<Output> {
    let command = |_: &WorkerEnv| {
        let mut command = Command::new(program);
        command.args(args).envs(vars.iter().copied());
        command
    };
    wait(start(&node_environments(nodes), command), limit)
}

/// Waits until all ranks have ended, and collects their output.
///
/// # Panics
/// As [`run`].
pub fn wait(mut ranks: Vec<Child>, limit: Duration) -> Vec<Output> {
    let begun = Instant::now();
    while ranks.iter_mut().any(|rank| matches!(rank.try_wait(), Ok(None))) {
        if begun.elapsed() > limit {
            for rank in &mut ranks {
                let _ = rank.kill();
            }
            let texts: Vec<String> = ranks.into_iter().map(|rank| output_text(&output(rank))).collect();
            panic!("the ranks did not end within {limit:?}:\n{}", texts.join("\n"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    ranks.into_iter().map(output).collect()
}

/// Returns the environments of the ranks of nodes with this many ranks each, with a free port.
pub fn node_environments(nodes: &[usize]) -> Vec<WorkerEnv> {
    let places = nodes.iter().enumerate();
    let places = places.flat_map(|(node, local_size)| (0..*local_size).map(move |local| (node, local)));
    let (world_size, master_port) = (nodes.iter().sum(), free_port());
    let environment = |(rank, (node, local_rank)): (usize, (usize, usize))| WorkerEnv {
        rank,
        local_rank,
        group_rank: node,
        world_size,
        local_world_size: nodes[node],
        group_world_size: nodes.len(),
        master_port,
        ..WorkerEnv::single()
    };
    places.enumerate().map(environment).collect()
}

/// Starts a rank for each environment, with the command that `command` returns for it.
///
/// # Panics
/// If a process cannot be started.
pub fn start(environments: &[WorkerEnv], command: impl Fn(&WorkerEnv) -> Command) -> Vec<Child> {
    let start = |env: &WorkerEnv| {
        let mut command = command(env);
        command.envs(env.vars());
        if !command.get_envs().any(|(name, _)| name == OMP_NUM_THREADS) {
            command.env(OMP_NUM_THREADS, "1");
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = command.get_program().to_owned();
        command.spawn().unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()))
    };
    environments.iter().map(start).collect()
}

fn output(rank: Child) -> Output {
    rank.wait_with_output().expect("a rank's output can be read")
}

/// Returns a free port that this process has not returned before, outside the ports that the system chooses itself
/// and those that a batch job gives.
///
/// # Panics
/// If no such port is free.
pub fn free_port() -> u16 {
    const PORTS: Range<u32> = 10_000..20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = PORTS.end - PORTS.start;
    // Processes that run at the same time begin far from each other.
    let first = std::process::id().wrapping_mul(389);
    let next = || PORTS.start + first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
    let free = |port: &u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok();
    let mut ports = (0..count).filter_map(|_| u16::try_from(next()).ok());
    ports.find(free).expect("a port of 10000 to 19999 is free")
}
