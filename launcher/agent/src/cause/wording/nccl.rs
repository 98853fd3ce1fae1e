//! How NCCL says that it failed, and torch and our own trainer for it.

use super::super::Kind;
use super::{Means, Rule, rule};

/// What names its reason comes before the names of NCCL's errors, of which each has many.
pub(super) const FAULTS: &[Rule] = &[
    rule(
        Kind::Nccl,
        Means::Is(
            "two ranks compute on the same GPU, which NCCL refuses: start no more workers than GPUs (--nproc gpu), and let \
             each take the GPU of its LOCAL_RANK",
        ),
        &["duplicate gpu detected"],
    ),
    rule(
        Kind::Nccl,
        Means::Is(OTHER_VERSION),
        &[
            "mismatched nccl version",
            "undefined symbol: nccl",
            "compiled with too old version of nccl",
        ],
    ),
    Rule {
        with: &["nccl"],
        ..rule(Kind::Nccl, Means::Is(OTHER_VERSION), &["version mismatch"])
    },
    rule(
        Kind::Nccl,
        Means::Is(
            "NCCL found no network interface that it may use: name one in NCCL_SOCKET_IFNAME (`ip -br address` lists them); \
             NCCL_DEBUG=INFO shows what it tried",
        ),
        &["no socket interface found"],
    ),
    Rule {
        peer_lost: true,
        ..rule(
            Kind::Nccl,
            Means::Is(
                "another rank went away while this one waited for it (NCCL), usually because it failed itself: look at the \
                 other ranks' logs",
            ),
            &[
                "ncclremoteerror",
                "connection closed by remote peer",
                "remote process exited or there was a network error",
            ],
        )
    },
    rule(
        Kind::Nccl,
        Means::Is(
            "a collective operation of NCCL did not end in time: usually another rank hangs, has failed, or runs other \
             operations; look at the other ranks' logs",
        ),
        &["watchdog caught collective operation timeout"],
    ),
    rule(
        Kind::Nccl,
        Means::Of(|line| {
            failed(
                line,
                "often it is the network (NCCL_SOCKET_IFNAME names the interface, NCCL_IB_DISABLE=1 leaves InfiniBand out) or \
                 shared memory that is full (`df -h /dev/shm`)",
            )
        }),
        &["ncclsystemerror", "unhandled system error"],
    ),
    rule(
        Kind::Nccl,
        Means::Of(|line| {
            failed(
                line,
                "a call of CUDA failed in it: `nvidia-smi` and `dmesg | grep -i xid` show whether the GPU is well",
            )
        }),
        &["ncclunhandledcudaerror", "unhandled cuda error"],
    ),
    rule(
        Kind::Nccl,
        Means::Of(|line| {
            failed(
                line,
                "see that all nodes have the same libtorch, and with it the same NCCL",
            )
        }),
        &["ncclinternalerror"],
    ),
    rule(
        Kind::Nccl,
        Means::Of(|line| {
            failed(
                line,
                "see that all ranks run the same operations, each on a GPU of its own",
            )
        }),
        &["ncclinvalidusage", "ncclinvalidargument"],
    ),
    rule(
        Kind::Nccl,
        Means::Of(|line| failed(line, "")),
        &["nccl error in:", "nccl error:", "nccl communicator was aborted"],
    ),
];

const OTHER_VERSION: &str = "the ranks, or libtorch and the program, have NCCLs of different versions: use the same libtorch on \
                             all nodes, and no other libnccl.so.2 in LD_LIBRARY_PATH or LD_PRELOAD; NCCL_DEBUG=VERSION shows \
                             what each rank loads";

/// The error by its name, if the line has that, and what else to look at.
fn failed(line: &str, hint: &str) -> String {
    let name = line
        .split(|c: char| !c.is_ascii_alphanumeric())
        .find(|word| word.starts_with("nccl") && word.ends_with("Error"))
        .map_or_else(String::new, |name| format!(" with {name}"));
    let hint = if hint.is_empty() {
        String::new()
    } else {
        format!("; {hint}")
    };
    format!("NCCL failed{name}; set NCCL_DEBUG=INFO to see which call and why{hint}")
}
