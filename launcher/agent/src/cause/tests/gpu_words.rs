//! Messages of CUDA, libtorch, the driver and NCCL about GPUs, and messages that only look similar.

use super::*;

/// The text that torch adds to every CUDA error.
const ADDED: &str = "\nSearch for `cudaErrorX' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n";

#[test]
fn errors_of_cuda_have_names_and_remedies() {
    for (words, kind, says) in [
        (
            "CUDA error: CUDA driver version is insufficient for CUDA runtime version",
            Kind::CudaDriver,
            "CUDA 13 needs 580",
        ),
        (
            "CUDA error: the provided PTX was compiled with an unsupported toolchain.",
            Kind::CudaDriver,
            "install a newer driver",
        ),
        (
            "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 804: forward compatibility was attempted on non supported HW",
            Kind::CudaDriver,
            "cuda-compat",
        ),
        (
            "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 803: system has unsupported display driver / cuda driver combination",
            Kind::CudaDriver,
            "reboot",
        ),
        (
            "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized",
            Kind::GpuUnavailable,
            "nvidia-fabricmanager",
        ),
        (
            "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            Kind::GpuUnavailable,
            "nvidia-smi -q -d COMPUTE",
        ),
        (
            "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?",
            Kind::GpuUnavailable,
            "--nproc gpu",
        ),
        ("CUDA error: no CUDA-capable device is detected", Kind::GpuUnavailable, "CUDA_VISIBLE_DEVICES"),
        (
            "CUDA error: no kernel image is available for execution on the device",
            Kind::GpuUnsupported,
            "compute capability 7.5",
        ),
        ("CUDA error: unspecified launch failure", Kind::CudaKernel, "CUDA_LAUNCH_BLOCKING=1"),
        ("CUDA error: an illegal memory access was encountered", Kind::CudaKernel, "CUDA_LAUNCH_BLOCKING=1"),
        ("CUDA error: misaligned address", Kind::CudaKernel, "a bug"),
        ("CUDA error: device-side assert triggered", Kind::CudaKernel, "number of classes"),
        ("CUDA error: the launch timed out and was terminated", Kind::CudaKernel, "with a display"),
        ("CUDA error: uncorrectable ECC error encountered", Kind::GpuHardware, "nvidia-smi -r"),
        (
            "CUDA error: uncorrectable NVLink error detected during the execution",
            Kind::GpuHardware,
            "--gpu-ids",
        ),
        (
            "CUDA error: unknown error",
            Kind::GpuLost,
            "restarts use the same GPUs unless --gpu-ids names others",
        ),
    ] {
        let python = raised(&format!("torch.AcceleratorError: {words}{ADDED}"));
        let native = format!(
            "terminate called after throwing an instance of 'c10::AcceleratorError'\n  what():  {words}{ADDED}\nException raised \
             from c10_cuda_check_implementation at /pytorch/c10/cuda/CUDAException.cpp:44 (most recent call first):\n"
        );
        let ours = format!("error: rank 1 on GPU 1: {words}{ADDED}");
        for (outcome, text) in [(EXIT_1, &python), (ABORTED, &native), (EXIT_1, &ours)] {
            assert!(!expect_cause(outcome, text, kind, says).peer_lost, "{words}");
        }
    }
}

#[test]
fn words_without_an_error_of_cuda() {
    for (words, kind, says) in [
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver by downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx",
            Kind::CudaDriver,
            "dtrain gpu info",
        ),
        (
            "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
            Kind::CudaDriver,
            "--gpus all",
        ),
        ("RuntimeError: No CUDA GPUs are available", Kind::GpuUnavailable, "finds no GPU"),
        (
            "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero.",
            Kind::GpuLost,
            "dmesg",
        ),
        ("Failed to initialize NVML: Driver/library version mismatch", Kind::CudaDriver, "reboot"),
        ("pynvml.NVMLError_GpuIsLost: GPU is lost", Kind::GpuLost, "drain the node"),
        (
            "Unable to determine the device handle for GPU0000:17:00.0: GPU is lost.  Reboot the system to recover this GPU",
            Kind::GpuLost,
            "nvidia-smi -r",
        ),
        (
            "NVRM: Xid (PCI:0000:17:00): 79, pid=4711, GPU has fallen off the bus.",
            Kind::GpuLost,
            "the driver lost a GPU",
        ),
        (
            "[ 1843.3] NVRM: Xid (PCI:0000:17:00): 119, pid=4711, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
            Kind::GpuLost,
            "the driver lost a GPU",
        ),
        ("NVRM: Xid (PCI:0000:17:00): 48, pid=4711, DBE (double bit error)", Kind::GpuHardware, "ECC"),
        (
            "NVRM: Xid (PCI:0000:17:00): 31, pid=4711, name=python, Ch 00000008, MMU Fault: FAULT_PDE ACCESS_TYPE_READ",
            Kind::CudaKernel,
            "out of bounds",
        ),
        (
            "DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, \"an illegal memory access was encountered\")",
            Kind::CudaKernel,
            "compute-sanitizer",
        ),
    ] {
        expect_cause(EXIT_1, &format!("{words}\n"), kind, says);
    }
}

#[test]
fn errors_of_nccl_have_remedies() {
    let torch = "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, ";
    let run_with = "(run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9";
    for (words, says) in [
        (
            format!(
                "{torch}invalid usage {run_with}\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"
            ),
            "two ranks use the same GPU",
        ),
        (
            format!(
                "{torch}invalid usage {run_with}\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nMismatched NCCL version detected : rank 0 version 22809 rank 1 version 22703"
            ),
            "the same libtorch on all nodes",
        ),
        (
            format!(
                "{torch}invalid usage {run_with}\nncclInvalidUsage: This usually reflects invalid usage of NCCL library."
            ),
            "the same operations",
        ),
        (
            format!(
                "{torch}unhandled system error {run_with}\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error."
            ),
            "NCCL_SOCKET_IFNAME",
        ),
        (
            format!("{torch}internal error {run_with}\nncclInternalError: Internal check failed."),
            "the same NCCL",
        ),
        (
            "error: all_reduce number 5 on rank 1: NCCL: internal error - please report this issue to the NCCL developers".to_owned(),
            "the same NCCL",
        ),
        (
            format!(
                "{torch}unhandled cuda error {run_with}\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'invalid argument'"
            ),
            "check the GPU with `nvidia-smi`",
        ),
        (
            "ImportError: /v/lib/libtorch_cuda.so: undefined symbol: ncclCommWindowRegister".to_owned(),
            "libnccl.so.2",
        ),
        (
            "node1:71:90 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found".to_owned(),
            "NCCL_SOCKET_IFNAME",
        ),
        (
            "error: NCCL 2.28 and 2.27: version mismatch between rank 0 and rank 1".to_owned(),
            "NCCL_DEBUG=VERSION",
        ),
    ] {
        expect_cause(EXIT_1, &format!("{words}\n"), Kind::Nccl, says);
    }
    // CUDA's error about the GPU is nearer to the cause than NCCL's.
    let lost = format!(
        "{torch}unhandled cuda error {run_with}\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 719 'unspecified launch failure'\n"
    );
    assert_eq!(found(EXIT_1, &lost).unwrap().kind, Kind::CudaKernel);
}

#[test]
fn similar_words_are_not_a_gpu_cause() {
    for text in [
        "NCCL version 2.28.9+cuda13.0\n",
        "node1:71:90 [0] NCCL INFO Using network Socket\n",
        "node1:71:90 [0] NCCL INFO NCCL version 2.28.9 compiled with CUDA 13.0\n",
        "NVIDIA driver 580.65, CUDA up to 13.0\n",
        "ECC errors: 0 corrected, 0 uncorrected\n",
        "taxid (PCI: 3) of 4 records\n",
        "unknown error in the parser\n",
        "error: the shape does not fit: version mismatch of the checkpoint\n",
        "a system that is not initialized yet\n",
        "CUDA_LAUNCH_BLOCKING=1 is set\n",
        "compiled with device-side assertions\n",
        " WARN training on the CPU: CUDA driver version is insufficient for CUDA runtime version\n",
        "\u{1b}[33m WARN\u{1b}[0m training on the CPU: no CUDA-capable device is detected\n",
        "2026-11-21T13:00:00Z  WARN worker: GPU is lost on another node\n",
        "[W1121 05:20:00.1 CUDAFunctions.cpp:109] Warning: CUDA initialization: Error 804: forward compatibility was attempted on non supported HW (function operator())\n",
    ] {
        assert_eq!(found(EXIT_1, text), None, "{text}");
    }
    let other = format!(
        "/venv/torch/cuda/__init__.py:180: UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 12040).\n{}",
        raised("ValueError: bad sample 17")
    );
    assert_eq!(found(EXIT_1, &other).unwrap().kind, Kind::PythonException);
}

/// It is seen before the rank that failed has ended, and is not blamed.
#[test]
fn a_rank_that_the_trainer_lost_is_a_lost_peer() {
    let words = "error: all_reduce number 1 on rank 0: a peer ended or left the group: rank 1 ended or left the group\n";
    let cause = found(EXIT_1, words).unwrap();
    assert!(cause.kind == Kind::PeerLost && cause.peer_lost, "{cause:?}");
    let nccl = "error: all_reduce number 1 on rank 0: a peer ended or left the group: NCCL: unhandled system error\n";
    assert_eq!(found(EXIT_1, nccl).unwrap().kind, Kind::Nccl);
}
