//! What losses and figures take of a network and its data.

/// A value that is taken by its name.
#[derive(Debug, Clone, Copy)]
pub enum Wanted {
    /// An output with a value for each sample: in words, and whether its shape fits. A length that is not fixed, such as that
    /// of the samples, is None.
    Output(&'static str, fn(&[Option<i64>]) -> bool),
    /// An output of N x ... x E with fixed lengths.
    Experts {
        /// The experts that a row chooses; E is above it.
        chosen: usize,
    },
    /// An output that is one number for all samples.
    Number,
    /// A field with the class of each sample, N int64.
    Classes,
}

impl Wanted {
    /// An output of N x D.
    pub const VECTORS: Self =
        Self::Output("one vector for each sample, N x D", |shape| matches!(shape, [None, Some(_)]));

    /// Returns whether it is an output, else a field.
    pub fn is_output(self) -> bool {
        !matches!(self, Self::Classes)
    }

    /// Returns what an output must be, in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Output(words, _) => words,
            Self::Experts { .. } => {
                "a number for each expert in the last dimension, N x ... x E with fixed lengths and E above `top`"
            }
            Self::Number => "one number for all samples",
            Self::Classes => "a class for each sample",
        }
    }

    /// Returns the shape of one sample's value in an output of this shape, or of the only value, if it is what is wanted and
    /// has fixed lengths.
    pub fn of_sample(self, output: &[Option<i64>]) -> Option<Vec<i64>> {
        let known = |shape: &[Option<i64>]| shape.iter().copied().collect::<Option<Vec<i64>>>();
        match (self, output) {
            (Self::Number, [] | [Some(1)]) => known(output),
            (Self::Output(_, fits), [None, rest @ ..]) if fits(output) => known(rest),
            (Self::Experts { chosen }, [None, .., Some(experts)]) if *experts > chosen as i64 => {
                known(&output[1..])
            }
            _ => None,
        }
    }
}
