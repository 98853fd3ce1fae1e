//! The loss of a language model in bits for each byte of the text, which does not depend on the tokens.

use dtrain_recipe::figures::BitsPerByte;
use tch::{Kind, TchError, Tensor};

use super::{BySums, Figure, Made, Shape, Source};

impl Figure for BitsPerByte {
    fn takes(&self) -> Vec<Source<'_>> {
        vec![Source::Nats, Source::Bytes]
    }

    fn check(&self, _: &[Shape], _: Option<usize>) -> Result<(), String> {
        Ok(())
    }

    fn made(&self) -> Made<'_> {
        Made::BySums(self)
    }
}

/// The sums are nats and bytes.
impl BySums for BitsPerByte {
    fn add(&self, values: &[&Tensor], _: &Tensor) -> Result<Tensor, TchError> {
        let nats = values[0].f_detach()?.f_to_kind(Kind::Double)?.f_reshape([1])?;
        Tensor::f_cat(&[nats, values[1].f_sum(Kind::Double)?.f_reshape([1])?], 0)
    }

    fn sums(&self) -> usize {
        2
    }

    fn figure(&self, sums: &[f64]) -> f64 {
        sums[0] / std::f64::consts::LN_2 / sums[1]
    }
}
