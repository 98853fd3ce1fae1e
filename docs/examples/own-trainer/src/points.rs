//! The data: measured points of a surface.

use std::ops::Range;

use dtrain_worker::data::{Column, Dataset, Field, SampleError, SampleRng, rng};

/// Points that cover the unit square evenly. Every third has three times the noise of the others.
pub(crate) struct Points {
    range: Range<usize>,
    noise: f32,
    fields: [Field; 3],
}

impl Points {
    /// Returns the points with these numbers and this noise.
    pub(crate) fn new(range: Range<usize>, noise: f32) -> Self {
        let fields = [Field::f32("position", [2]), Field::f32("height", []), Field::f32("precision", [])];
        Self { range, noise, fields }
    }

    /// Returns the mean of the field `precision`: 1 for two points in three, 1/9 for the third.
    pub(crate) fn mean_precision(&self) -> f64 {
        (2.0 + 1.0 / 9.0) / 3.0
    }
}

impl Dataset for Points {
    fn len(&self) -> usize {
        self.range.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// In training, noise is drawn anew in each epoch: `random` depends only on seed, epoch and point.
    fn load(
        &self,
        index: usize,
        random: Option<&mut SampleRng>,
        out: &mut [Column],
    ) -> Result<(), SampleError> {
        let [position, height, precision] = out else {
            panic!("a point has three fields, not {}", out.len());
        };
        let number = (self.range.start + index) as f64;
        // Multiples of these two numbers fill the square without gaps (Roberts 2018, the R2 sequence).
        let (x, y) = ((number * 0.754_877_666_246_693).fract(), (number * 0.569_840_290_998_053_2).fract());
        let spread = if index % 3 == 2 { 3.0 } else { 1.0 };
        let error = random.map_or(0.0, |random| self.noise * spread * rng::between(random, -1.0, 1.0));
        position.f32().copy_from_slice(&[x as f32, y as f32]);
        height.f32()[0] = ((3.0 * x).sin() * (2.0 * y).cos()) as f32 + error;
        precision.f32()[0] = 1.0 / (spread * spread);
        Ok(())
    }

    fn describe(&self, index: usize) -> String {
        format!("point {}", self.range.start + index)
    }
}
