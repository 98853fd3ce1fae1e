//! `data.episodes`: samples of a few classes, for few-shot learning.

use dtrain_common::recipe::kinds::{COUNT, Kind};
use dtrain_common::section;

/// A number of classes, or of images of a class.
const FEW: Kind = Kind::Whole(1, 10_000);

section! {
    /// The shape and number of episodes. A sample of a step is an episode.
    Episodes "data.episodes" {
        /// Classes of an episode.
        n_way: usize = 5, FEW;
        /// Support images of each class.
        k_shot: usize = 1, FEW;
        /// Query images of each class.
        n_query: usize = 15, FEW;
        /// Training episodes of an epoch.
        train: usize = 200, COUNT;
        /// Test episodes, the same in every evaluation.
        test: usize = 600, COUNT;
        /// Validation episodes, likewise; by default as many as test episodes.
        #[serde(skip_serializing_if = "Option::is_none")]
        val: Option<usize> = None, COUNT;
    }
}
