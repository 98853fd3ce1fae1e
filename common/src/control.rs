//! The control socket of a running worker: `dtrain gpu clear` uses it to ask workers to free memory.
//!
//! Every worker has a socket `PID.sock` in a private folder. Request and answer are a line of JSON each:
//!
//! ```text
//! {"ask":"clear"}
//! {"freed":1288490188,"allocated":3650722201,"reserved":3865470566,"device":"GPU 0","rank":0}
//! ```
//!
//! A killed worker leaves its socket behind; the next process that finds it removes it.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::files::none_if_missing;

const MAX_LINE: u64 = 64 << 10;
/// Time limit for the line of the other side.
const LINE_TIMEOUT: Duration = Duration::from_secs(5);

/// A request to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Request {
    /// Give memory that no tensor uses back to the device, or on a CPU to the system.
    Clear,
    Memory,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// Bytes given back; 0 for [`Request::Memory`].
    pub freed: u64,
    /// Bytes that tensors use.
    pub allocated: u64,
    /// Bytes that the worker holds of the device, in use or not; on a CPU its resident memory.
    pub reserved: u64,
    /// `CPU` or `GPU 0`.
    pub device: String,
    pub rank: usize,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Reply {
    Response(Response),
    Error { error: String },
}

/// Reason why a worker did not answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("the worker has ended")]
    Gone,
    #[error("the worker did not answer in time")]
    Busy,
    #[error("{0}")]
    Failed(String),
    #[error("the connection failed: {0}")]
    Io(#[source] io::Error),
    #[error("cannot read the answer: {0}; the worker may run another version of dtrain")]
    Json(#[from] serde_json::Error),
}

/// An open socket; dropping it removes the socket's file.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

/// Returns the folders for sockets, preferred first. In a container, some processes may lack XDG_RUNTIME_DIR.
pub fn folders() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("dtrain"));
    let own = format!("/tmp/dtrain-{}", rustix::process::geteuid().as_raw());
    runtime.filter(|folder| folder.is_absolute()).into_iter().chain([own.into()]).collect()
}

impl Listener {
    /// Opens this process's socket in the first of `folders` that can be used.
    pub fn open(folders: &[PathBuf]) -> io::Result<Self> {
        let none = Err(ErrorKind::NotFound.into());
        folders.iter().fold(none, |opened, folder| opened.or_else(|_| Self::open_in(folder)))
    }

    fn open_in(folder: &Path) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => check_private(folder)?,
        }
        remove_stale(folder);
        let path = folder.join(format!("{}.sock", std::process::id()));
        // A socket of this name belongs to an ended process, whose pid this process now has.
        none_if_missing(fs::remove_file(&path))?;
        let listener = UnixListener::bind(&path)?;
        Ok(Self { listener, path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for a request and answers it; the client gets an `Err` of `answer` too. Callable after an error.
    pub fn serve(&self, answer: impl FnOnce(Request) -> Result<Response, String>) -> io::Result<()> {
        let (mut stream, _) = self.listener.accept()?;
        stream.set_read_timeout(Some(LINE_TIMEOUT))?;
        stream.set_write_timeout(Some(LINE_TIMEOUT))?;
        let reply = match serde_json::from_str::<Request>(&line(&stream)?) {
            Ok(request) => answer(request).map_or_else(|error| Reply::Error { error }, Reply::Response),
            Err(error) => Reply::Error { error: format!("cannot read the request: {error}") },
        };
        let text = serde_json::to_string(&reply)?;
        stream.write_all(format!("{text}\n").as_bytes())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // If this fails, the next process that finds the file removes it.
        let _ = fs::remove_file(&self.path);
    }
}

fn check_private(folder: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(folder)?;
    let user = rustix::process::geteuid().as_raw();
    if meta.is_dir() && meta.uid() == user && meta.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        ErrorKind::PermissionDenied,
        format!("{} is not a private folder of this user (mode 0700)", folder.display()),
    ))
}

/// Returns the pids and sockets of this user's running workers, by pid. Removes sockets of ended workers.
pub fn workers(folders: &[PathBuf]) -> Vec<(u32, PathBuf)> {
    let mut found = Vec::new();
    for folder in folders.iter().filter(|folder| check_private(folder).is_ok()) {
        remove_stale(folder);
        found.extend(sockets(folder));
    }
    found.sort_unstable();
    found
}

fn sockets(folder: &Path) -> Vec<(u32, PathBuf)> {
    let socket = |entry: fs::DirEntry| {
        let path = entry.path();
        Some((path.file_name()?.to_str()?.strip_suffix(".sock")?.parse().ok()?, path))
    };
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(socket).collect()
}

/// Removes sockets whose process has ended. A process between `bind` and `listen` refuses connections too.
fn remove_stale(folder: &Path) {
    for (pid, path) in sockets(folder) {
        if !Path::new("/proc").join(pid.to_string()).exists() && has_no_listener(&path) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns whether no process listens. A process of another container may: its pid is unknown here.
fn has_no_listener(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Asks the worker at `path` and waits up to `timeout`. If many clients ask, connecting takes longer.
pub fn request(path: &Path, request: Request, timeout: Duration) -> Result<Response, RequestError> {
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::NotFound
        | ErrorKind::ConnectionRefused
        | ErrorKind::ConnectionReset
        | ErrorKind::BrokenPipe
        | ErrorKind::UnexpectedEof => RequestError::Gone,
        ErrorKind::WouldBlock | ErrorKind::TimedOut => RequestError::Busy,
        _ => RequestError::Io(error),
    };
    let mut stream = UnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(timeout)).map_err(failed)?;
    stream.set_write_timeout(Some(timeout)).map_err(failed)?;
    let text = serde_json::to_string(&request)?;
    stream.write_all(format!("{text}\n").as_bytes()).map_err(failed)?;
    match serde_json::from_str(&line(&stream).map_err(failed)?)? {
        Reply::Response(answer) => Ok(answer),
        Reply::Error { error } => Err(RequestError::Failed(error)),
    }
}

fn line(stream: &UnixStream) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(stream).take(MAX_LINE).read_line(&mut line)?;
    if line.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(line)
}

#[cfg(test)]
mod tests;
