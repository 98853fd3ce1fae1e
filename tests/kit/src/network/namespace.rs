//! The namespaces of a node, which last as long as one process in them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Enters the arguments' names, prints a line, and waits for the end of standard input, which comes also if the
/// test is killed. Then kills all processes in its network namespace.
///
/// `/sys` is mounted again, because it shows the interfaces of the namespace in which it was mounted.
const HOLD: &str = r#"
set -e
if [ -n "$1" ]; then
    mount --bind "$1/hosts" /etc/hosts
    mount --bind "$1/nsswitch.conf" /etc/nsswitch.conf
fi
mkdir -p "$3"
if mount --rbind /sys/fs/cgroup "$3" && mount -t sysfs sysfs /sys; then mount --rbind "$3" /sys/fs/cgroup; fi
echo "$2" > /proc/sys/kernel/hostname
ip link set lo up
echo ready
while read -r line; do :; done
set +e
trap '' TERM INT HUP
for round in $(seq 200); do
    alive=
    for network in /proc/[0-9]*/ns/net; do
        pid=${network#/proc/}; pid=${pid%%/*}
        [ "$pid" != $$ ] && [ "$network" -ef /proc/$$/ns/net ] && alive=$pid && kill -9 "$pid" 2>/dev/null
    done
    [ -n "$alive" ] || break
    sleep 0.01
done
"#;

/// Starts a program in other namespaces and in the working folder of the calling process. Each shell becomes the
/// next program, so the process id stays the same.
const ENTER: &str = r#"target=$1; shift; exec nsenter --target "$target" --net --uts --mount --time \
    sh -c 'cd "$0" && exec "$@"' "$PWD" "$@""#;

/// Network, host name, mounts and monotonic clock of a node. Drop kills the processes in it.
#[derive(Debug)]
pub(super) struct Namespace {
    holder: Child,
}

impl Namespace {
    /// Creates namespaces with this host name. `files` holds their `hosts` and `nsswitch.conf`, `scratch` is an
    /// empty folder. The monotonic clock is `ahead` seconds before that of the machine.
    pub(super) fn new(name: &str, files: Option<&Path>, scratch: &Path, ahead: i64) -> Result<Self, String> {
        let mut command = Command::new("unshare");
        command.args(["--net", "--uts", "--mount"]);
        if ahead != 0 {
            let ahead = ahead.to_string();
            command.args(["--time", "--monotonic", &ahead, "--boottime", &ahead]);
        }
        command.args(["sh", "-c", HOLD, "holder"]).arg(files.unwrap_or(Path::new(""))).arg(name).arg(scratch);
        // Ctrl-C at a terminal must not end it before the programs in it.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut holder = command.spawn().map_err(|error| format!("unshare: {error}"))?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line == "ready\n" {
            return Ok(Self { holder });
        }
        let output = holder.wait_with_output().unwrap();
        Err(format!("no namespaces: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }

    /// Returns the process that a program names to move an interface here.
    pub(super) fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// Returns the same command, run in these namespaces.
    pub(super) fn enter(&self, command: &Command) -> Command {
        let mut entering = Command::new("sh");
        entering.args(["-c", ENTER, "enter", &self.pid().to_string()]);
        entering.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => entering.env(name, value),
                None => entering.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            entering.current_dir(folder);
        }
        entering
    }

    /// Runs a shell command here.
    #[track_caller]
    pub(super) fn sh(&self, script: &str) {
        let output = self.enter(Command::new("sh").args(["-ec", script])).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Calls a function in a thread of this process whose sockets belong to this network.
    pub(super) fn in_thread<T: Send>(&self, call: impl FnOnce() -> T + Send) -> T {
        let network = fs::File::open(format!("/proc/{}/ns/net", self.pid())).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                call()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Returns the processes in this network, except the one that holds it.
    pub(super) fn processes(&self) -> Vec<u32> {
        let network = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let own = network(self.pid());
        let entries = fs::read_dir("/proc").unwrap();
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(|pid| *pid != self.pid() && network(*pid) == own).collect()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}
