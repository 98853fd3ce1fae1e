//! `dtrain report --live`: the page on loopback, with data that is read again during the runs.

mod request;
mod server;

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use dtrain_common::host;

use self::server::Site;
use super::object::Run;
use crate::screen::{stop_requests, wait};
use crate::stdout::print;

/// Time between two looks for the end of the runs.
const LOOKS: Duration = Duration::from_secs(1);

/// Serves the page of the runs until Ctrl-C.
///
/// # Errors
/// The port is in use, or signals cannot be received.
pub(super) fn serve(runs: Vec<Run>, left_out: Vec<String>, port: u16) -> anyhow::Result<ExitCode> {
    let stopped = stop_requests()?;
    let listener = listen(port)?;
    let port = listener.local_addr().context("cannot find the port of the page")?.port();
    let site = Arc::new(Site::new(runs, left_out));
    server::start(listener, Arc::clone(&site)).context("cannot start a thread for the page")?;
    let host = host::name();
    let text = format!(
        "http://127.0.0.1:{port}/\nFrom another machine: ssh -L {port}:localhost:{port} {host}, and open the same address there.\n\
         Ctrl-C ends the page; the runs continue.\n"
    );
    let mut is_read = print(&text)?;
    let mut were_running = true;
    loop {
        let are_running = site.is_running();
        if is_read && were_running && !are_running {
            let states = site.states().join(", ");
            is_read =
                print(&format!("No run is running any more ({states}). The page stays until Ctrl-C.\n"))?;
        }
        were_running = are_running;
        if let Some(end) = wait(&stopped, Instant::now() + LOOKS) {
            return Ok(end.into());
        }
    }
}

/// Listens on loopback alone.
fn listen(port: u16) -> anyhow::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            anyhow!("port {port} is in use; give another with --port N, or --port 0 for any free port")
        }
        io::ErrorKind::PermissionDenied => {
            anyhow!("port {port} is reserved for the system; give one above 1023 with --port N")
        }
        _ => anyhow!("cannot listen on 127.0.0.1:{port}: {error}"),
    })
}
