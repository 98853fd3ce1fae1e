//! NumberedSamples samples with values from the formula, which Python computes too.

use dtrain_tests::formula;
use dtrain_worker::data::{Column, Dataset, Field, SampleError, SampleRng, epoch_order};

use crate::nets::Kind;

/// Samples for one kind of network.
pub(crate) struct NumberedSamples {
    fields: Vec<Field>,
    kind: Kind,
    /// The number of each sample.
    numbers: Vec<usize>,
}

impl NumberedSamples {
    /// Creates `samples` samples. With `in_order_of` a seed, numbers follow the first epoch's order: step k
    /// has the numbers from k times the effective batch. Otherwise, numbers follow the data set's order.
    pub(crate) fn new(kind: Kind, samples: usize, in_order_of: Option<u64>) -> Self {
        let mut numbers: Vec<usize> = (0..samples).collect();
        if let Some(seed) = in_order_of {
            for (position, index) in epoch_order(samples, seed, 0).into_iter().enumerate() {
                numbers[index as usize] = position;
            }
        }
        let fields = match kind {
            Kind::Gpt => vec![
                Field::i64("number", []),
                Field::i64("tokens", [kind.input_len()]),
                Field::i64("targets", [kind.input_len()]),
            ],
            _ => vec![
                Field::i64("number", []),
                Field::f32("image", kind.input_shape()),
                Field::i64("label", []),
            ],
        };
        Self { fields, kind, numbers }
    }
}

impl Dataset for NumberedSamples {
    fn len(&self) -> usize {
        self.numbers.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn load(&self, index: usize, _: Option<&mut SampleRng>, out: &mut [Column]) -> Result<(), SampleError> {
        let number = self.numbers[index];
        let (name, period) = (self.kind.name(), self.kind.period());
        let content = number % period;
        let len = self.kind.input_len();
        out[0].i64()[0] = number as i64;
        let classes = self.kind.classes();
        match self.kind {
            Kind::Gpt => {
                let tokens: Vec<i64> = formula::words(&format!("{name}.tokens.{content}"), len + 1)
                    .into_iter()
                    .map(|word| (word % classes) as i64)
                    .collect();
                out[1].i64().copy_from_slice(&tokens[..len]);
                out[2].i64().copy_from_slice(&tokens[1..]);
            }
            _ => {
                let stream = format!("{name}.image.{content}");
                let values = formula::unit(&stream, len);
                for (slot, value) in out[1].f32().iter_mut().zip(values) {
                    *slot = (1.5 * value) as f32;
                }
                let word = formula::words(&format!("{name}.label.{content}"), 1)[0];
                out[2].i64()[0] = (word % classes) as i64;
            }
        }
        Ok(())
    }

    fn describe(&self, index: usize) -> String {
        format!("sample {}", self.numbers[index])
    }
}
