//! The expected time of a cut. A prediction, and printed as such.
//!
//! F is the number of floating-point operations of a step on a rank, s the samples of its share, a its
//! micro-steps. The time of a step is assumed to be proportional to
//!
//! ```text
//! F x (1 + c x a / s)        c = MICRO_STEP_SAMPLES
//! ```
//!
//! Each micro-step costs c samples in addition: kernels are launched again, and small micro-batches use less
//! of a GPU. F includes recomputed segments. Ranks are assumed to hide their reduction behind backward.

use super::Prediction;
use dtrain_common::batch::Partition;

/// The extra cost of a micro-step, in samples. One of the guides measured times of 1, 1.08, 1.30 and 1.44 for
/// micro-batches of 16, 8, 4 and 2; another 1.18 for 1 against 2. Half a sample results in 1, 1.03, 1.09 and
/// 1.21, and 1.20: the least that agrees, since large GPUs lose more and small GPUs less.
const MICRO_STEP_SAMPLES: f64 = 0.5;

/// Returns the expected time of a step with `cut`, relative to `plain`. `segments` of the model can be
/// recomputed. Without counted operations, forward is assumed to be a third of a step, in equal segments.
pub(crate) fn relative_time(
    plain: (&Prediction, &Partition),
    cut: (&Prediction, &Partition),
    segments: usize,
) -> f64 {
    let counted = plain.0.flops > 0.0 && cut.0.flops > 0.0;
    let time = |(prediction, partition): (&Prediction, &Partition)| {
        let (steps, samples) = (partition.grad_accum_steps() as f64, partition.samples_of(0) as f64);
        let again = prediction.cut.recompute as f64 / segments.max(1) as f64;
        let work = if counted { prediction.flops } else { samples * (1.0 + again / 3.0) };
        work * (1.0 + MICRO_STEP_SAMPLES * steps / samples)
    };
    time(cut) / time(plain)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::planning::tests::Machine;

    /// Returns the time of 16 samples on one rank, if `recompute` of 4 segments are recomputed.
    fn time(machine: &Machine, micro_batch: usize, recompute: usize) -> f64 {
        let predict = |micro_batch, recompute| machine.prediction(&Machine::cut(1, micro_batch, recompute));
        let partition = |micro_batch| Partition::new(16, 1, Some(micro_batch)).unwrap();
        relative_time(
            (&predict(16, 0), &partition(16)),
            (&predict(micro_batch, recompute), &partition(micro_batch)),
            4,
        )
    }

    #[test]
    fn the_formula_is_as_documented() {
        let machine = Machine::default();
        assert_eq!(time(&machine, 16, 0), 1.0);
        let expected = [(8, 1.0303), (4, 1.0909), (2, 1.2121), (1, 1.4545)];
        for (micro_batch, factor) in expected {
            assert!((time(&machine, micro_batch, 0) - factor).abs() < 1e-4, "{micro_batch}");
        }
        assert!((time(&machine, 16, 4) - 4.0 / 3.0).abs() < 1e-12);
        assert!((time(&machine, 16, 2) - 7.0 / 6.0).abs() < 1e-12);
    }

    #[test]
    fn without_counts_a_forward_pass_takes_a_third() {
        let machine = Machine { counts: false, ..Machine::default() };
        assert!((time(&machine, 16, 4) - 4.0 / 3.0).abs() < 1e-12);
        assert!((time(&machine, 2, 0) - 1.2121).abs() < 1e-4);
    }
}
