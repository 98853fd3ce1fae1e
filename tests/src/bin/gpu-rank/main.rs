//! Checks of `cargo xtask gpu-test` within a process, on the first visible GPU: `gpu-rank kernels FOLDER`
//! with PyTorch's results in the folder, `gpu-rank segments`, `gpu-rank streams` and `gpu-rank graph`.
//! `gpu-rank hold-memory BYTES` allocates the GPU's memory except BYTES bytes until its standard input ends.
//!
//! Prints a line for each passed check. A failed check ends the process with a panic. On fake GPUs, the last line has the
//! number of skipped comparisons.
#![allow(clippy::unwrap_used)]

mod graph;
mod memory_holder;
mod streams;

use std::path::PathBuf;

use dtrain_test_kit::no_values;
use dtrain_tests::draws::draws_are_those_of_the_cpu;
use dtrain_tests::parity::{self, models, optimizers, resnets, scaler};
use dtrain_tests::segments::dropout_draws_the_same;
use dtrain_torch_shim::cuda;
use tch::Device;

type Failure = Box<dyn std::error::Error>;

const GPU: Device = Device::Cuda(0);

/// A comparison with its name.
type Check = (&'static str, fn());

/// Comparisons with PyTorch's results on the GPU.
const KERNELS: [Check; 9] = [
    ("updates of the optimizers", optimizers::updates_follow_torch),
    ("updates by Muon", optimizers::muon_follows_torch),
    ("adaptive clipping", optimizers::adaptive_clipping_follows_timm),
    ("moving average", optimizers::the_moving_average_follows_torch),
    ("loss scaler", scaler::ten_thousand_steps_equal_torchs),
    ("evaluation of ResNet-18 and 34", resnets::evaluation_gives_torchvisions_logits),
    (
        "gradients and statistics of ResNet-18 and 34",
        resnets::training_gives_torchvisions_logits_gradients_and_statistics,
    ),
    ("evaluation of ViT, GPT, U-Net and ResNet-50", models::evaluation_gives_pytorchs_logits),
    (
        "gradients and statistics of ViT, GPT, U-Net and ResNet-50",
        models::training_gives_pytorchs_logits_gradients_and_statistics,
    ),
];

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    cuda::load()?;
    if cuda::device_count()? == 0 {
        return Err("CUDA finds no GPU".into());
    }
    cuda::set_device(0)?;
    // The references use plain float32.
    cuda::set_tf32(false)?;
    match args.as_slice() {
        ["kernels", folder] => {
            parity::compare_on(GPU, PathBuf::from(folder));
            for (name, check) in KERNELS {
                check();
                println!("ok {name}");
            }
        }
        ["segments"] => {
            dropout_draws_the_same(GPU);
            println!("ok dropout within segments");
            draws_are_those_of_the_cpu(GPU);
            println!("ok dropout by sample");
        }
        ["streams"] => streams::run()?,
        ["graph"] => graph::run()?,
        ["hold-memory", bytes] => memory_holder::run(bytes.parse()?)?,
        _ => {
            return Err(
                "usage: gpu-rank kernels FOLDER, segments, streams, graph or hold-memory BYTES".into()
            );
        }
    }
    no_values::report();
    Ok(())
}
