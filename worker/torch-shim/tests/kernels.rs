//! Process-wide kernel settings, tested in a separate process because they also affect the CPU.

#![allow(clippy::unwrap_used)]

use dtrain_torch_shim::cuda::{cudnn_benchmark, set_tf32, tf32};

#[test]
fn kernel_settings_are_read_back_without_a_gpu() {
    for on in [true, false, true] {
        set_tf32(on).unwrap();
        assert_eq!(tf32().unwrap(), (on, on));
        tch::Cuda::cudnn_set_benchmark(on);
        assert_eq!(cudnn_benchmark().unwrap(), on);
    }
}
