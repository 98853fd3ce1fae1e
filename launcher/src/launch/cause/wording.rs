//! The wordings by which libraries and the system say what went wrong, and what each of them means.
//!
//! They are those of torch 2.11, NCCL 2.28, glibc and Linux. A kind that another one may also mention comes behind it:
//! a port that is taken ends in an error of the store, and a GPU without memory in one of NCCL.

use super::{Cause, Kind};

/// When a line is of a kind.
struct Rule {
    kind: Kind,
    /// One of these is in the line, in small letters.
    any: &'static [&'static str],
    /// And one of these, if there are any.
    with: &'static [&'static str],
    /// Whether it says that another rank, or the connection to it, is gone.
    peer_lost: bool,
}

const fn rule(kind: Kind, any: &'static [&'static str]) -> Rule {
    Rule {
        kind,
        any,
        with: &[],
        peer_lost: false,
    }
}

const GONE: &[&str] = &[
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "socket closed",
    "pair closure",
];

const RULES: [Rule; 14] = [
    rule(
        Kind::CudaOutOfMemory,
        &[
            "cuda out of memory",
            "hip out of memory",
            "torch.outofmemoryerror",
            "cuda error: out of memory",
            "cuda failure 2 'out of memory'",
            "cuda failure 'out of memory'",
            "cuda_error_out_of_memory",
            "cudaerrormemoryallocation",
            "cublas_status_alloc_failed",
            "cudnn_status_alloc_failed",
        ],
    ),
    // Our own trainer's. The rank that it waited for may have a cause of its own.
    Rule {
        peer_lost: true,
        ..rule(
            Kind::CollectiveTimeout,
            &["than the others, or called another operation"],
        )
    },
    rule(Kind::PortInUse, &["eaddrinuse", "address already in use"]),
    rule(
        Kind::BusError,
        &[
            "insufficient shared memory (shm)",
            "unexpected bus error encountered in worker",
            "workers are out of shared memory",
        ],
    ),
    Rule {
        with: &["/dev/shm", "/torch_"],
        ..rule(Kind::BusError, &["no space left on device"])
    },
    rule(
        Kind::ModuleNotFound,
        &["modulenotfounderror", ": no module named "],
    ),
    rule(
        Kind::MissingLibrary,
        &[
            "error while loading shared libraries: ",
            ": cannot open shared object file",
        ],
    ),
    Rule {
        peer_lost: true,
        ..rule(
            Kind::Nccl,
            &[
                "ncclremoteerror",
                "connection closed by remote peer",
                "remote process exited or there was a network error",
            ],
        )
    },
    rule(
        Kind::Nccl,
        &[
            WATCHDOG,
            "ncclsystemerror",
            "ncclinternalerror",
            "ncclunhandledcudaerror",
            "ncclinvalidusage",
            "ncclinvalidargument",
            "nccl error in:",
            "nccl communicator was aborted",
            "unhandled cuda error",
            "unhandled system error",
        ],
    ),
    Rule {
        peer_lost: true,
        with: &["gloo", "read error [", "writev [", "by peer ["],
        ..rule(Kind::Gloo, GONE)
    },
    Rule {
        with: &["gloo", "operation to complete"],
        ..rule(
            Kind::Gloo,
            &["timed out waiting", "connectfullmesh failed", "connect timeout"],
        )
    },
    Rule {
        peer_lost: true,
        ..rule(
            Kind::Store,
            &["failed to recv, got 0 bytes", "sendbytes failed on "],
        )
    },
    rule(
        Kind::Store,
        &[
            "the client socket has failed to connect to any",
            "the client socket has timed out after",
        ],
    ),
    rule(Kind::BrokenPipe, &["brokenpipeerror", "broken pipe"]),
];

const WATCHDOG: &str = "watchdog caught collective operation timeout";

/// The cause that one of `lines` words, if any does; of several the one whose rule comes first.
pub(super) fn find(lines: &[String]) -> Option<Cause> {
    let small: Vec<_> = lines
        .iter()
        .map(|line| {
            if is_remark(line) {
                String::new()
            } else {
                line.to_lowercase()
            }
        })
        .collect();
    RULES.iter().find_map(|rule| {
        let at = small.iter().rposition(|line| {
            let has = |words: &[&str]| words.iter().any(|word| line.contains(word));
            has(rule.any) && (rule.with.is_empty() || has(rule.with))
        })?;
        Some(Cause {
            kind: rule.kind,
            text: text(rule, &lines[at], &small[at]),
            peer_lost: rule.peer_lost,
        })
    })
}

/// Whether torch's log says of the line that it is no error: `[W1121 05:20:00.1 socket.cpp:1] ...`, perhaps behind
/// the rank. Such lines are there in runs that go well.
fn is_remark(line: &str) -> bool {
    let line = line
        .strip_prefix("[rank")
        .and_then(|rest| rest.split_once("]:"))
        .map_or(line, |(_, rest)| rest);
    let rest = line.strip_prefix("[W").or_else(|| line.strip_prefix("[I"));
    rest.is_some_and(|rest| rest.starts_with(|c: char| c == ' ' || c.is_ascii_digit()))
}

/// What the line means and what to do. `small` is the line in small letters.
fn text(rule: &Rule, line: &str, small: &str) -> String {
    match rule.kind {
        Kind::CudaOutOfMemory => {
            let asked = line
                .split_once("Tried to allocate ")
                .and_then(|(_, rest)| rest.split_once("iB"))
                .map(|(amount, _)| format!(" (it asked for {amount}iB more)"))
                .unwrap_or_default();
            format!(
                "the GPU's memory ran out{asked}; use smaller micro-batches, or see with `nvidia-smi` what else is on \
                 this GPU"
            )
        }
        Kind::PortInUse => {
            let port = number_after(line, "port: ").map_or_else(String::new, |port| format!(" {port}"));
            format!(
                "the port{port} that it wanted to listen on is taken by another process; `ss -ltnp` shows which, end that \
                 one or choose another port"
            )
        }
        Kind::BusError => SHARED_MEMORY.to_owned(),
        Kind::ModuleNotFound => {
            let module = line
                .split_once("No module named ")
                .map_or("", |(_, rest)| rest)
                .trim_matches(|c: char| "'\")".contains(c));
            let module = if module.is_empty() { String::new() } else { format!(" `{module}`") };
            format!(
                "Python does not find the module{module}; install it for the Python that runs the program, or activate the \
                 environment that has it"
            )
        }
        Kind::MissingLibrary => {
            let library = library(line).map_or_else(String::new, |name| format!(" {name}"));
            format!(
                "the shared library{library} is not found; install the package that holds it, or put its folder into \
                 LD_LIBRARY_PATH"
            )
        }
        Kind::Nccl if rule.peer_lost => "another rank went away while this one waited for it (NCCL), usually because it \
                                         failed itself: look at the other ranks' logs"
            .to_owned(),
        Kind::Nccl if small.contains(WATCHDOG) => "a collective operation of NCCL did not end in time: usually another rank \
                                                   hangs, has failed, or runs other operations; look at the other ranks' \
                                                   logs"
            .to_owned(),
        Kind::Nccl => {
            let name = line
                .split(|c: char| !c.is_ascii_alphanumeric())
                .find(|word| word.starts_with("nccl") && word.ends_with("Error"))
                .map_or_else(String::new, |name| format!(" with {name}"));
            format!("NCCL failed{name}; set NCCL_DEBUG=INFO to see which call and why")
        }
        Kind::CollectiveTimeout => "another rank did not come to an operation in time (--collective-timeout): it hangs or is much \
                                    slower than the others; look at the other ranks' logs, and at what they do meanwhile"
            .to_owned(),
        Kind::Gloo if rule.peer_lost => "another rank went away while this one waited for it (Gloo), usually because it \
                                         failed itself: look at the other ranks' logs"
            .to_owned(),
        Kind::Gloo => "it waited for another rank until the time was up (Gloo): usually that rank hangs or has failed; look \
                       at the other ranks' logs"
            .to_owned(),
        Kind::Store => "the store that rank 0 serves is gone or was never there, usually because rank 0 failed itself: look \
                        at its log, and at MASTER_ADDR and MASTER_PORT if they were set by hand"
            .to_owned(),
        // The other kinds are not told by wordings.
        _ => BROKEN_PIPE.to_owned(),
    }
}

/// What a bus error means, told by a signal or in words.
pub(super) const SHARED_MEMORY: &str = "a bus error, which usually means that shared memory is full: see `df -h /dev/shm`, \
                                        and give a container more of it (`--shm-size`) or use fewer loader processes";
/// What a broken pipe means, told by a signal or in words.
pub(super) const BROKEN_PIPE: &str = "it wrote to a pipe or connection whose other end is closed: look at what was to \
                                      read there, which ended first";

fn number_after(line: &str, word: &str) -> Option<u16> {
    let (_, rest) = line.split_once(word)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// The name in `error while loading shared libraries: libx.so: cannot open ...` or `libx.so: cannot open ...`.
fn library(line: &str) -> Option<&str> {
    let named = match line.split_once("shared libraries: ") {
        Some((_, rest)) => rest.split(':').next(),
        None => line
            .split_once(": cannot open shared object file")
            .and_then(|(before, _)| before.rsplit(' ').next()),
    };
    named.filter(|name| !name.is_empty())
}
