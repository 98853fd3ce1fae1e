//! Ranks as processes, started without the launcher.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use dtrain_common::env::WorkerEnv;

use crate::process::output_text;

/// Runs `program ARGS` as `world_size` processes with the environment contract and collects their output.
///
/// # Panics
/// If a process cannot be started, or if some have not ended within `limit` (then they are killed).
pub fn run(program: &Path, args: &[&str], world_size: usize, limit: Duration) -> Vec<Output> {
    run_with(program, args, &[], world_size, limit)
}

/// As [`run`], with further environment variables.
///
/// # Panics
/// As [`run`].
pub fn run_with(
    program: &Path,
    args: &[&str],
    vars: &[(&str, &str)],
    world_size: usize,
    limit: Duration,
) -> Vec<Output> {
    let port = free_port();
    let mut ranks: Vec<Child> =
        (0..world_size).map(|rank| start(program, args, vars, rank, world_size, port)).collect();
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

fn start(
    program: &Path,
    args: &[&str],
    vars: &[(&str, &str)],
    rank: usize,
    world_size: usize,
    port: u16,
) -> Child {
    let env = WorkerEnv {
        rank,
        local_rank: rank,
        world_size,
        local_world_size: world_size,
        master_port: port,
        ..WorkerEnv::single()
    };
    Command::new(program)
        .args(args)
        .envs(env.vars())
        .env("OMP_NUM_THREADS", "1")
        .envs(vars.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()))
}

fn output(rank: Child) -> Output {
    rank.wait_with_output().expect("a rank's output can be read")
}

/// Returns a port that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a loopback port");
    listener.local_addr().expect("a bound listener has an address").port()
}
