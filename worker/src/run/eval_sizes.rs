//! Whether the sets to evaluate can be cut into batches of the model.

use crate::run::error::{Result, TrainError};
use crate::tasks::{EvalSet, Facts, Task};

/// Returns an error if a set that may be evaluated has fewer samples than a batch of the model.
pub(crate) fn check_sizes(task: &dyn Task) -> Result<()> {
    let Facts { batches, .. } = task.facts();
    let watched = task.facts().watched();
    let mut sets = std::iter::once(watched).chain(task.facts().tests());
    sets.try_for_each(|set| check_limits(&set, batches.evaluation_least, batches.evaluation_most))
}

pub(super) fn check_limits(set: &EvalSet, least: usize, most: Option<usize>) -> Result<()> {
    let samples = set.samples.len();
    match most {
        _ if samples == 0 => Ok(()),
        _ if samples < least => Err(TrainError::SmallTestSet { set: set.name.clone(), samples, least }),
        // A rest of fewer than `least` samples goes to the batch before it.
        Some(most) if most + 1 < 2 * least => Err(TrainError::NarrowBatches { least, most }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::data::{Generated, Split};
    use crate::tasks::TEST;

    fn set(samples: usize) -> EvalSet {
        let samples = Generated::new(2, samples, 1, 1, Split::Test);
        EvalSet { name: TEST.to_owned(), samples: Arc::new(samples) }
    }

    #[test]
    fn batches_of_a_program_must_divide_every_test_set() {
        for (samples, least, most) in
            [(0, 2, Some(2)), (5, 2, Some(3)), (5, 3, Some(5)), (1, 1, Some(1)), (9, 4, None)]
        {
            assert!(check_limits(&set(samples), least, most).is_ok(), "{samples} {least} {most:?}");
        }
        let error = check_limits(&set(1), 2, None);
        assert!(matches!(error, Err(TrainError::SmallTestSet { samples: 1, least: 2, .. })));
        for (least, most) in [(2, 2), (3, 4)] {
            let error = check_limits(&set(100), least, Some(most));
            assert!(matches!(error, Err(TrainError::NarrowBatches { .. })), "{least} {most}");
        }
    }
}
