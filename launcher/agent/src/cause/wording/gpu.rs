//! How CUDA, libtorch and the driver say that a GPU failed, or cannot be used.

use super::super::Kind;
use super::{Means, Rule, rule};

/// Memory comes first: what fails for lack of it fails in many ways after. What names a fault of the GPU comes before what a
/// program may have done itself.
pub(super) const FAULTS: &[Rule] = &[
    rule(
        Kind::CudaOutOfMemory,
        Means::Of(out_of_memory),
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
    rule(
        Kind::CudaDriver,
        Means::Is(
            "the NVIDIA driver is older than libtorch's CUDA needs: install a newer driver (`dtrain gpu info` shows what it \
             supports; CUDA 13 needs 580), or use a libtorch that is built for an older CUDA",
        ),
        &[
            "cuda driver version is insufficient for cuda runtime version",
            "cudaerrorinsufficientdriver",
            "the nvidia driver on your system is too old",
            "the provided ptx was compiled with an unsupported toolchain",
        ],
    ),
    rule(
        Kind::CudaDriver,
        Means::Is(
            "the driver's libraries do not fit its kernel module: reboot after an update of the driver; in a container, or \
             with a package cuda-compat, see that its own libcuda.so.1 does not come before the driver's",
        ),
        &[
            "forward compatibility was attempted on non supported hw",
            "system has unsupported display driver / cuda driver combination",
            "driver/library version mismatch",
        ],
    ),
    rule(
        Kind::CudaDriver,
        Means::Is(
            "there is no NVIDIA driver where it looked: install one, or start the container with `--gpus all` (NVIDIA \
             container toolkit)",
        ),
        &["found no nvidia driver on your system"],
    ),
    rule(
        Kind::GpuUnsupported,
        Means::Is(
            "this libtorch has no code for this kind of GPU: builds for CUDA 13 begin with compute capability 7.5 (T4, RTX \
             20); use a libtorch that is built for an older CUDA, or another GPU",
        ),
        &["no kernel image is available for execution on the device"],
    ),
    Rule {
        with: XIDS_OF_HARDWARE,
        ..rule(Kind::GpuHardware, Means::Is(HARDWARE), &[XID])
    },
    rule(
        Kind::GpuHardware,
        Means::Is(HARDWARE),
        &[
            "uncorrectable ecc error",
            "uncorrectable nvlink error",
            "hardware stack error",
        ],
    ),
    Rule {
        with: XIDS_OF_PROGRAMS,
        ..rule(Kind::CudaKernel, Means::Is(ILLEGAL_ACCESS), &[XID])
    },
    rule(
        Kind::GpuLost,
        Means::Is(
            "the driver cannot reach a GPU any more: `dmesg | grep -i xid` and `nvidia-smi` say which; as root `nvidia-smi -r \
             -i N` resets it once nobody uses it, else reboot or drain the node; a restart takes the same GPUs again unless \
             --gpu-ids names others",
        ),
        &["gpu is lost", "fallen off the bus", "gpu_is_lost", XID],
    ),
    rule(
        Kind::GpuLost,
        Means::Is(
            "CUDA failed and does not say of what, as after a GPU was lost or the machine slept: see `nvidia-smi` and `dmesg \
             | grep -i xid`; as root `nvidia-smi -r -i N` resets a GPU; a restart takes the same GPUs again unless --gpu-ids \
             names others",
        ),
        &[
            "cuda error: unknown error",
            "cuda driver error: unknown error",
            "cuda unknown error",
            "cuda failure 999 'unknown error'",
            "cuda failure 'unknown error'",
            "cuda_error_unknown",
        ],
    ),
    rule(
        Kind::GpuUnavailable,
        Means::Is(
            "the GPU lets no further process in: another one has it for itself (`dtrain gpu info` names it; `nvidia-smi -q -d \
             COMPUTE` shows an exclusive mode), its MIG instance is gone, or it needs a reset (`nvidia-smi -r -i N` as root)",
        ),
        &[
            "device(s) is/are busy or unavailable",
            "cudaerrordevicesunavailable",
        ],
    ),
    rule(
        Kind::GpuUnavailable,
        Means::Is(
            "the connection between this machine's GPUs (NVSwitch) is not up: `systemctl status nvidia-fabricmanager`, whose \
             version must be the driver's",
        ),
        &["system not yet initialized"],
    ),
    rule(
        Kind::GpuUnavailable,
        Means::Is(
            "a worker asked for a GPU beyond those that it sees: start no more workers than GPUs (--nproc gpu), and see what \
             CUDA_VISIBLE_DEVICES shows",
        ),
        &["cuda error: invalid device ordinal", "cuda_error_invalid_device"],
    ),
    rule(
        Kind::GpuUnavailable,
        Means::Is(
            "CUDA finds no GPU: see `nvidia-smi` and CUDA_VISIBLE_DEVICES, and start a container with `--gpus all`; \
             --gpu-ids none means the CPU",
        ),
        &["no cuda-capable device is detected", "no cuda gpus are available"],
    ),
    rule(
        Kind::CudaKernel,
        Means::Is(ILLEGAL_ACCESS),
        &[
            "an illegal memory access was encountered",
            "cuda error: misaligned address",
            "cuda_error_illegal_address",
            "cuda_error_misaligned_address",
            "cuda error: an illegal instruction was encountered",
            "cuda error: invalid program counter",
        ],
    ),
    rule(
        Kind::CudaKernel,
        Means::Is(
            "a check in a kernel failed, usually of an index, such as a label that is not below the number of classes; \
             CUDA_LAUNCH_BLOCKING=1 shows the operation that did it, which else may be an earlier one",
        ),
        &["device-side assert triggered", "cuda_error_assert"],
    ),
    rule(
        Kind::CudaKernel,
        Means::Is(
            "a kernel was stopped because it ran too long, as on a GPU that also drives a display: use another GPU, or \
             smaller micro-batches",
        ),
        &[
            "the launch timed out and was terminated",
            "cuda_error_launch_timeout",
        ],
    ),
    rule(
        Kind::CudaKernel,
        Means::Is(
            "a kernel failed on the GPU: a bug in the program or a library, which CUDA_LAUNCH_BLOCKING=1 helps to find, or a \
             GPU that fails; `dmesg | grep -i xid` tells which: 79 is a lost GPU, 48, 94 and 95 are its memory, 13 and 31 a bug",
        ),
        &["unspecified launch failure", "cuda_error_launch_failed"],
    ),
];

/// How the driver reports in the kernel's log: `NVRM: Xid (PCI:0000:17:00): 79, pid=4711, GPU has fallen off the bus.`
const XID: &str = "nvrm: xid (pci";
/// Numbers for memory that is broken, and for NVLink.
const XIDS_OF_HARDWARE: &[&str] = &["): 48,", "): 63,", "): 64,", "): 74,", "): 94,", "): 95,"];
/// Numbers for what a program did.
const XIDS_OF_PROGRAMS: &[&str] = &["): 13,", "): 31,"];

const HARDWARE: &str = "the GPU's memory or one of its links is broken: `nvidia-smi -q -d ECC` and `dmesg | grep -i xid` say \
                        which GPU; as root `nvidia-smi -r -i N` resets it, and if it comes again have it replaced; a restart \
                        takes the same GPUs unless --gpu-ids names others";

const ILLEGAL_ACCESS: &str = "a kernel touched memory of the GPU that is not its own: a bug in the program or a library; \
                              CUDA_LAUNCH_BLOCKING=1 shows the operation that did it, which else may be an earlier one, and \
                              compute-sanitizer the access";

fn out_of_memory(line: &str) -> String {
    let asked = line
        .split_once("Tried to allocate ")
        .and_then(|(_, rest)| rest.split_once("iB"))
        .map(|(amount, _)| format!(" (it asked for {amount}iB more)"))
        .unwrap_or_default();
    format!(
        "the GPU's memory ran out{asked}; use smaller micro-batches, or see with `nvidia-smi` what else is on this GPU"
    )
}
