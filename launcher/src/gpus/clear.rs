//! `dtrain gpu clear`: asks this user's workers to free memory that they do not use.

use crate::stdout::print;
use anyhow::bail;
use dtrain_common::control::{self, Request, RequestError, Response};
use dtrain_common::exit::ExitStatus;
use dtrain_common::gpu::{GpuError, Nvidia};
use dtrain_common::text::{counted, size};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Time for a busy worker to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks all workers at the same time, and prints their answers.
pub(super) fn run() -> anyhow::Result<ExitCode> {
    let workers = control::workers(&control::folders());
    if workers.is_empty() {
        if let Err(error @ GpuError::NoDriver) = Nvidia::open() {
            bail!("no dtrain worker of yours is running, and {error}");
        }
        print("No dtrain worker of yours is running.\n")?;
        return Ok(ExitStatus::Success.into());
    }
    print(&text(request_all(workers, PATIENCE)))?;
    Ok(ExitStatus::Success.into())
}

/// Asks every worker on its own thread, so that a stuck worker delays no answer. Keeps their order.
fn request_all(
    workers: Vec<(u32, PathBuf)>,
    patience: Duration,
) -> Vec<(u32, Result<Response, RequestError>)> {
    let (sender, answers) = mpsc::channel();
    let pids: Vec<_> = workers.iter().map(|(pid, _)| *pid).collect();
    for (position, (_, path)) in workers.into_iter().enumerate() {
        let sender = sender.clone();
        // If its thread cannot be started, the worker counts as busy.
        let _ = thread::Builder::new().spawn(move || {
            let _ = sender.send((position, control::request(&path, Request::Clear, patience)));
        });
    }
    drop(sender);
    let deadline = Instant::now() + patience + Duration::from_millis(200);
    let mut found: Vec<_> = pids.into_iter().map(|pid| (pid, Err(RequestError::Busy))).collect();
    while let Ok((position, answer)) =
        answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        found[position].1 = answer;
    }
    found
}

fn text(answers: Vec<(u32, Result<Response, RequestError>)>) -> String {
    let mut out = String::new();
    let mut freed = 0;
    let mut answered = 0;
    for (pid, answer) in &answers {
        match answer {
            Ok(answer) => {
                freed += answer.freed;
                answered += 1;
                out.push_str(&format!(
                    "pid {pid} (rank {}, {}): freed {}; now {} allocated | {} reserved\n",
                    answer.rank,
                    answer.device,
                    size(answer.freed),
                    size(answer.allocated),
                    size(answer.reserved)
                ));
            }
            Err(RequestError::Gone) => {}
            Err(error) => out.push_str(&format!("pid {pid}: {error}\n")),
        }
    }
    out.push_str(&format!("{} freed {}\n", counted(answered, "worker"), size(freed)));
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    /// Makes a worker's socket that answers with this line; without a line, it never answers.
    fn worker(folder: &std::path::Path, pid: u32, line: Option<&'static str>) -> (u32, PathBuf) {
        let path = folder.join(format!("{pid}.sock"));
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = String::new();
            BufReader::new(&stream).read_line(&mut asked).unwrap();
            assert_eq!(asked, "{\"ask\":\"clear\"}\n");
            if let Some(line) = line {
                stream.write_all(line.as_bytes()).unwrap();
            } else {
                thread::sleep(Duration::from_secs(30));
            }
        });
        (pid, path)
    }

    #[test]
    fn a_busy_worker_delays_no_other_request() {
        let folder = tempfile::tempdir().unwrap();
        let workers = vec![
            worker(
                folder.path(),
                10,
                Some(
                    "{\"freed\":1073741824,\"allocated\":1048576,\"reserved\":2097152,\"device\":\"GPU 0\",\"rank\":0}\n",
                ),
            ),
            worker(folder.path(), 11, None),
            worker(folder.path(), 12, Some("{\"error\":\"the driver failed\"}\n")),
            (13, folder.path().join("13.sock")),
        ];
        let start_time = Instant::now();
        let said = text(request_all(workers, Duration::from_millis(300)));
        assert!(start_time.elapsed() < Duration::from_secs(20));
        assert_eq!(
            said,
            "pid 10 (rank 0, GPU 0): freed 1.00 GiB; now 1.00 MiB allocated | 2.00 MiB reserved\n\
             pid 11: the worker did not answer in time\n\
             pid 12: the driver failed\n\
             1 worker freed 1.00 GiB\n"
        );
    }
}
