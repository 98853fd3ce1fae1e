//! The wordings by which libraries and the system say what went wrong, and what each of them means.
//!
//! They are those of torch 2.11, CUDA 13, NCCL 2.28, glibc and Linux. A kind that another one may also mention comes behind it:
//! a port that is taken ends in an error of the store, and a GPU without memory in one of NCCL.

mod gpu;
mod nccl;

use super::{Cause, Kind};

/// When a line is of a kind, and what it means then.
struct Rule {
    kind: Kind,
    /// One of these is in the line, in small letters.
    any: &'static [&'static str],
    /// And one of these, if there are any.
    with: &'static [&'static str],
    /// Whether it says that another rank, or the connection to it, is gone.
    peer_lost: bool,
    means: Means,
}

/// What a line means and what to do.
enum Means {
    /// The same for every line.
    Is(&'static str),
    /// Something of the line is in it.
    Of(fn(&str) -> String),
}

const fn rule(kind: Kind, means: Means, any: &'static [&'static str]) -> Rule {
    Rule {
        kind,
        any,
        with: &[],
        peer_lost: false,
        means,
    }
}

/// All rules in their order.
const TABLES: [&[Rule]; 4] = [gpu::FAULTS, START, nccl::FAULTS, CONNECTIONS];

/// Our own trainer's words, and what keeps a program from starting.
const START: &[Rule] = &[
    // The rank that it waited for may have a cause of its own.
    Rule {
        peer_lost: true,
        ..rule(
            Kind::CollectiveTimeout,
            Means::Is(
                "another rank did not come to an operation in time (--collective-timeout): it hangs or is much slower than \
                 the others; look at the other ranks' logs, and at what they do meanwhile",
            ),
            &["than the others, or called another operation"],
        )
    },
    rule(
        Kind::PortInUse,
        Means::Of(port_in_use),
        &["eaddrinuse", "address already in use"],
    ),
    rule(
        Kind::BusError,
        Means::Is(SHARED_MEMORY),
        &[
            "insufficient shared memory (shm)",
            "unexpected bus error encountered in worker",
            "workers are out of shared memory",
        ],
    ),
    Rule {
        with: &["/dev/shm", "/torch_"],
        ..rule(
            Kind::BusError,
            Means::Is(SHARED_MEMORY),
            &["no space left on device"],
        )
    },
    rule(
        Kind::ModuleNotFound,
        Means::Of(module_not_found),
        &["modulenotfounderror", ": no module named "],
    ),
    rule(
        Kind::MissingLibrary,
        Means::Of(missing_library),
        &[
            "error while loading shared libraries: ",
            ": cannot open shared object file",
        ],
    ),
];

/// What is heard of other ranks, and of other programs.
const CONNECTIONS: &[Rule] = &[
    Rule {
        peer_lost: true,
        with: &["gloo", "read error [", "writev [", "by peer ["],
        ..rule(
            Kind::Gloo,
            Means::Is(
                "another rank went away while this one waited for it (Gloo), usually because it failed itself: look at the \
                 other ranks' logs",
            ),
            &[
                "connection closed by peer",
                "connection reset by peer",
                "broken pipe",
                "socket closed",
                "pair closure",
            ],
        )
    },
    Rule {
        with: &["gloo", "operation to complete"],
        ..rule(
            Kind::Gloo,
            Means::Is(
                "it waited for another rank until the time was up (Gloo): usually that rank hangs or has failed; look at the \
                 other ranks' logs",
            ),
            &["timed out waiting", "connectfullmesh failed", "connect timeout"],
        )
    },
    Rule {
        peer_lost: true,
        ..rule(
            Kind::Store,
            Means::Is(STORE),
            &["failed to recv, got 0 bytes", "sendbytes failed on "],
        )
    },
    rule(
        Kind::Store,
        Means::Is(STORE),
        &[
            "the client socket has failed to connect to any",
            "the client socket has timed out after",
        ],
    ),
    rule(
        Kind::BrokenPipe,
        Means::Is(BROKEN_PIPE),
        &["brokenpipeerror", "broken pipe"],
    ),
];

const STORE: &str = "the store where ranks meet is gone or was never there, usually because rank 0 failed itself: look at its \
                     log, and at MASTER_ADDR and MASTER_PORT if they were set by hand. A Python program that meets at a \
                     `tcp://` address of its own needs TORCHELASTIC_USE_AGENT_STORE=False";
/// What a bus error means, told by a signal or in words.
pub(super) const SHARED_MEMORY: &str = "a bus error, which usually means that shared memory is full: see `df -h /dev/shm`, \
                                        and give a container more of it (`--shm-size`) or use fewer loader processes";
/// What a broken pipe means, told by a signal or in words.
pub(super) const BROKEN_PIPE: &str = "it wrote to a pipe or connection whose other end is closed: look at what was to \
                                      read there, which ended first";

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
    TABLES.into_iter().flatten().find_map(|rule| {
        let at = small.iter().rposition(|line| {
            let has = |words: &[&str]| words.iter().any(|word| line.contains(word));
            has(rule.any) && (rule.with.is_empty() || has(rule.with))
        })?;
        Some(Cause {
            kind: rule.kind,
            text: match rule.means {
                Means::Is(text) => text.to_owned(),
                Means::Of(text) => text(&lines[at]),
            },
            peer_lost: rule.peer_lost,
        })
    })
}

/// Whether a log says of the line that it is no error. Such lines are there in runs that go well.
fn is_remark(line: &str) -> bool {
    is_torchs_remark(line) || is_traced_remark(line)
}

/// `[W1121 05:20:00.1 socket.cpp:1] ...`, perhaps behind the rank: torch's log.
fn is_torchs_remark(line: &str) -> bool {
    let line = line
        .strip_prefix("[rank")
        .and_then(|rest| rest.split_once("]:"))
        .map_or(line, |(_, rest)| rest);
    let rest = line.strip_prefix("[W").or_else(|| line.strip_prefix("[I"));
    rest.is_some_and(|rest| rest.starts_with(|c: char| c == ' ' || c.is_ascii_digit()))
}

/// ` WARN training on the CPU: ...`, perhaps behind the time: our own trainer's log, and that of most programs in Rust.
fn is_traced_remark(line: &str) -> bool {
    let mut first = line.split_whitespace().take(2);
    first.any(|word| ["WARN", "INFO", "DEBUG", "TRACE"].contains(&word))
}

fn port_in_use(line: &str) -> String {
    let port = number_after(line, "port: ").map_or_else(String::new, |port| format!(" {port}"));
    format!(
        "the port{port} that it wanted to listen on is taken by another process; `ss -ltnp` shows which, end that one or \
         choose another port"
    )
}

fn module_not_found(line: &str) -> String {
    let module = line
        .split_once("No module named ")
        .map_or("", |(_, rest)| rest)
        .trim_matches(|c: char| "'\")".contains(c));
    let module = if module.is_empty() {
        String::new()
    } else {
        format!(" `{module}`")
    };
    format!(
        "Python does not find the module{module}; install it for the Python that runs the program, or activate the \
         environment that has it"
    )
}

fn missing_library(line: &str) -> String {
    let library = library(line).map_or_else(String::new, |name| format!(" {name}"));
    format!(
        "the shared library{library} is not found; install the package that holds it, or put its folder into \
         LD_LIBRARY_PATH"
    )
}

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
