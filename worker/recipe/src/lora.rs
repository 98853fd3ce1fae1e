//! `[model.lora]` and `[model.frozen]`: weights that a run does not train.

use dtrain_common::recipe::kinds::{GLOB_OR_GLOBS, GLOBS, Kind, Range};
use dtrain_common::recipe::one_or_many;
use dtrain_common::section;

section! {
    /// `[model.lora]`
    Lora "model.lora" {
        /// Globs on the names of the linear and convolution weights that get an adapter, at least one.
        #[serde(deserialize_with = "one_or_many")]
        patterns as "match": Vec<String> = Vec::new(), GLOB_OR_GLOBS;
        /// The rank of an adapter.
        rank: usize = 8, Kind::Whole(1, 1 << 16);
        /// The factor of an adapter's result, times the rank.
        alpha: f64 = 8.0, Kind::Number(Range::ABOVE_ZERO);
        /// The probability with which an adapter drops an element of its input in training.
        dropout: f64 = 0.0, Kind::Number(Range::BELOW_ONE);
        /// Globs of further parameters that are trained, such as those of a new head.
        #[serde(deserialize_with = "one_or_many")]
        train: Vec<String> = Vec::new(), GLOBS;
    }
}

section! {
    /// `[model.frozen]`
    Frozen "model.frozen" {
        /// Globs of the weights that are bfloat16.
        #[serde(deserialize_with = "one_or_many")]
        bf16: Vec<String> = Vec::new(), GLOBS;
        /// Globs of the weights that are float16.
        #[serde(deserialize_with = "one_or_many")]
        fp16: Vec<String> = Vec::new(), GLOBS;
        /// Globs of the weights that are whole numbers of 8 bits, with a factor for each row.
        #[serde(deserialize_with = "one_or_many")]
        int8: Vec<String> = Vec::new(), GLOBS;
    }
}
