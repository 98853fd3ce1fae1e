//! Checks within one process: kernels against PyTorch's results, segments, streams, graphs.

use anyhow::Result;

use super::{Check, check};
use crate::gpu_test::finding::Finding;
use crate::gpu_test::suite::Suite;

pub(super) fn checks() -> Vec<Check> {
    vec![
        check("updates, loss scale and networks against PyTorch", 60, |suite| {
            let folder = suite.reference.display().to_string();
            run_gpu_rank(suite, &["kernels", &folder])
        }),
        check("segments with dropout, bit-equal", 20, |suite| run_gpu_rank(suite, &["segments"])),
        check("copies on another stream", 20, |suite| run_gpu_rank(suite, &["streams"])),
        check("graph against its kernels, bit-equal", 20, |suite| run_gpu_rank(suite, &["graph"])),
    ]
}

fn run_gpu_rank(suite: &Suite<'_>, args: &[&str]) -> Result<Finding> {
    let ended = suite.run(suite.program("gpu-rank").args(args))?.expect(0)?;
    // It refuses to start without a GPU, and its tensors are on GPU 0.
    suite.proofs.add("gpu-rank");
    let passed: Vec<&str> = ended.stdout.lines().filter_map(|line| line.strip_prefix("ok ")).collect();
    let skipped = ended.stdout.lines().find(|line| line.starts_with("skipped "));
    let note = passed.iter().copied().chain(skipped).collect::<Vec<_>>().join("; ");
    Ok(suite.judged(!passed.is_empty(), skipped.is_none(), note).with("passed", passed.len() as f64))
}
