//! Checks within one process: kernels against PyTorch's results, segments, streams, graphs.

use anyhow::Result;

use super::{Check, check};
use crate::gpu_test::finding::Finding;
use crate::gpu_test::site::Site;

pub(super) fn checks() -> Vec<Check> {
    vec![
        check("updates, loss scale and networks against PyTorch", 60, |site| {
            let folder = site.reference.display().to_string();
            rank(site, &["kernels", &folder])
        }),
        check("segments with dropout, to the bit", 20, |site| rank(site, &["segments"])),
        check("copies beside the computing stream", 20, |site| rank(site, &["streams"])),
        check("a graph against its kernels, to the bit", 20, |site| rank(site, &["graph"])),
    ]
}

fn rank(site: &Site<'_>, args: &[&str]) -> Result<Finding> {
    let ended = site.run(site.program("gpu-rank").args(args))?.expect(0)?;
    let held: Vec<&str> = ended.stdout.lines().filter_map(|line| line.strip_prefix("ok ")).collect();
    Ok(Finding::judged(!held.is_empty(), held.join("; ")).with("held", held.len() as f64))
}
