//! The state of a hung process: its threads in the kernel, and their stacks if a debugger is installed.

use super::{output, proc, search_path};
use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Debuggers that print all stacks of a running process, best first; `{}` is the process id.
const DEBUGGERS: [(&str, &[&str]); 3] = [
    ("py-spy", &["dump", "--native", "--pid", "{}"]),
    ("gdb", &["-p", "{}", "-batch", "-nx", "-ex", "set pagination off", "-ex", "thread apply all bt"]),
    ("eu-stack", &["-p", "{}"]),
];

/// Describes the process within `patience`.
pub fn of(pid: u32, patience: Duration) -> String {
    // Read before a debugger stops the process.
    let threads = threads(pid);
    let stacks = match debugger(pid, patience) {
        Some((name, stacks)) => format!("\nstacks, by {name}:\n{stacks}"),
        None => "\nno stacks: install py-spy, gdb or eu-stack (elfutils)\n".to_owned(),
    };
    threads + &stacks
}

/// A thread in the kernel.
struct Thread {
    number: String,
    name: String,
    state: String,
    /// The kernel function in which it waits; `-` if it does not wait there.
    wchan: String,
    /// Only root can read it.
    stack: String,
}

impl Thread {
    fn read(task: &Path) -> Self {
        let read = |name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
        let (status, wchan) = (read("status"), read("wchan"));
        let field = |key: &str| {
            let mut lines = status.lines();
            let value = lines.find_map(|line| line.strip_prefix(key));
            value.map_or("?", str::trim).to_owned()
        };
        let wchan = match wchan.trim() {
            "" | "0" => "-",
            named => named,
        };
        Self {
            number: task.file_name().unwrap_or_default().display().to_string(),
            name: field("Name:"),
            state: field("State:"),
            wchan: wchan.to_owned(),
            stack: read("stack"),
        }
    }

    /// Returns the threads of a process; `None` after its end.
    fn of(pid: u32) -> Option<Vec<Self>> {
        let tasks = fs::read_dir(proc::folder(pid)?.join("task")).ok()?;
        Some(tasks.flatten().map(|task| Self::read(&task.path())).collect())
    }
}

/// Returns where a process that does not end waits: the state of its first thread that cannot be interrupted.
pub fn wait_channel(pid: u32) -> String {
    let threads = Thread::of(pid).unwrap_or_default();
    let waiting = threads.iter().find(|thread| thread.state.starts_with('D'));
    match waiting.or(threads.first()) {
        Some(Thread { state, wchan, .. }) => format!("state {state}, in the kernel at {wchan}"),
        None => "it has ended meanwhile".to_owned(),
    }
}

/// Returns a line for each thread.
fn threads(pid: u32) -> String {
    let mut text = format!("threads of process {pid} (name, state, waiting in the kernel at):\n");
    let Some(threads) = Thread::of(pid) else {
        text.push_str("  the process has ended\n");
        return text;
    };
    for Thread { number, name, state, wchan, stack } in threads {
        let _ = writeln!(text, "  {number} {name}: {state}, {wchan}");
        for line in stack.lines() {
            let _ = writeln!(text, "      {line}");
        }
    }
    text
}

fn debugger(pid: u32, patience: Duration) -> Option<(&'static str, String)> {
    let start_time = Instant::now();
    let path = std::env::var_os("PATH");
    DEBUGGERS.iter().find_map(|(name, args)| {
        // The process may have continued and ended meanwhile.
        fs::metadata(proc::folder(pid)?).ok()?;
        let found = search_path::find(OsStr::new(name), path.as_deref()).ok()?;
        let args = args.iter().map(|arg| arg.replace("{}", &pid.to_string()));
        let left = patience.checked_sub(start_time.elapsed())?;
        let printed = output(Command::new(found).args(args), left)?;
        (!printed.trim().is_empty()).then_some((*name, printed))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_thread_is_listed() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread =
            std::thread::Builder::new().name("waits-here".to_owned()).spawn(move || stopped.recv()).unwrap();
        // A thread sets its name after its start.
        let start_time = Instant::now();
        while !threads(std::process::id()).contains("waits-here: ") {
            assert!(start_time.elapsed() < Duration::from_secs(30), "{}", threads(std::process::id()));
            std::thread::yield_now();
        }
        drop(stop);
        let _ = thread.join();
        assert!(threads(u32::MAX).contains("the process has ended"));
    }
}
