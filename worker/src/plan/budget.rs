//! How much of a GPU a rank's tensors may take.

/// What a process takes of a GPU besides tensors: the CUDA context, the code of kernels, and the handles and workspaces of
/// cuBLAS, cuDNN and NCCL. 0.6 GiB: a context with libtorch's kernels is 0.3 to 0.5 GiB from the T4 to the H100.
pub(crate) const CONTEXT_BYTES: u64 = 614 << 20;

/// What is left unused of the rest, in percent: blocks of the caching allocator that fit no request. The guides saw 1.45 of
/// 14.74 GiB lost that way without expandable segments, which are on here and leave less; it also covers that drivers report
/// the same GPU with up to 0.2 GiB more or less.
pub(crate) const FRAGMENTATION_PERCENT: u64 = 5;

/// The bytes that tensors may take of a GPU with `total` bytes that nobody else uses; 0 for a GPU smaller than the margin.
pub(crate) fn usable(total: u64) -> u64 {
    let rest = total.saturating_sub(CONTEXT_BYTES);
    rest - rest / 100 * FRAGMENTATION_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_is_the_context_and_a_part() {
        let usable_gib = |gib: f64| usable((gib * (1u64 << 30) as f64) as u64) as f64 / (1u64 << 30) as f64;
        assert!((usable_gib(14.74) - (14.74 - 0.5996) * 0.95).abs() < 0.001);
        assert_eq!((usable(0), usable(CONTEXT_BYTES)), (0, 0));
        assert!(usable(u64::MAX) < u64::MAX);
    }
}
