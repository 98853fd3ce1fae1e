//! `data.sampler`: orders of the training samples, declared once for each.

use dtrain_common::choices;

choices! {
    /// The order of the training samples.
    Sampler {
        Shuffled = "shuffled": "Each sample once in an epoch, in a random order.",
        Balanced = "balanced": "Each class as often as every other in a random order; an epoch has as many samples.",
        Buckets = "buckets": "Each document once in an epoch; those of a step have similar lengths.",
        Repeated = "repeated": "A part of the samples, each several times in a row with its own random changes; an epoch has as many samples.",
    }
}

/// Does the same with the module of any order, which has the lower-case name of its word.
#[macro_export]
macro_rules! each_sampler {
    ($word:expr, $order:ident => $then:expr) => {
        match $word {
            $crate::Sampler::Shuffled => {
                use shuffled as $order;
                $then
            }
            $crate::Sampler::Balanced => {
                use balanced as $order;
                $then
            }
            $crate::Sampler::Buckets => {
                use buckets as $order;
                $then
            }
            $crate::Sampler::Repeated => {
                use repeated as $order;
                $then
            }
        }
    };
}
