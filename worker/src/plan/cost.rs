//! What a cut is expected to cost in time. A prediction, and printed as one.
//!
//! With F the floating-point operations of a step on a rank, s the samples of its share and a its micro-steps, a step is taken
//! to last in proportion to
//!
//! ```text
//! F x (1 + c x a / s)        c = MICRO_STEP_SAMPLES
//! ```
//!
//! Every micro-step costs as much on top as c samples: kernels are launched and filled anew, and the smaller the micro-batch
//! the less of the GPU they fill. Operations of recomputed segments are in F. Ranks are taken to hide their reduction behind
//! backward, however the step is cut up.

use super::Prediction;
use dtrain_common::batch::Partition;

/// What a micro-step costs on top of its samples, in samples. One of the guides measured times of 1, 1.08, 1.30 and 1.44 for
/// micro-batches of 16, 8, 4 and 2, another 1.18 for 1 against 2. Half a sample gives 1, 1.03, 1.09 and 1.21, and 1.20: the
/// least that agrees, since large GPUs lose more and small ones less.
const MICRO_STEP_SAMPLES: f64 = 0.5;

/// The expected time of a step with `cut`, against that of a step with `plain`. `segments` are those of the model that can be computed
/// again; where operations were not counted, a forward pass is taken to be a third of a step, and each segment an equal part of it.
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
    use crate::plan::tests::Machine;

    /// A step of 16 samples on one rank in micro-batches of `micro_batch`, with so many of 4 segments computed again.
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
    fn the_formula_is_the_documented_one() {
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
    fn where_nothing_was_counted_a_forward_pass_is_a_third() {
        let machine = Machine { counts: false, ..Machine::default() };
        assert!((time(&machine, 16, 4) - 4.0 / 3.0).abs() < 1e-12);
        assert!((time(&machine, 2, 0) - 1.2121).abs() < 1e-4);
    }
}
