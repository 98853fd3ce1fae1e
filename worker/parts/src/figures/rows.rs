//! Figures that need all samples at once: a row of numbers of each.

use tch::{Device, Kind, TchError, Tensor};

/// The most samples whose rows are kept. Of more, a figure is made of sums.
pub const MOST: usize = 100_000_000;

/// A figure of the rows of all samples.
pub trait ByRows {
    /// Returns the numbers of a row.
    fn columns(&self) -> usize;

    /// Returns the rows of a batch, N x columns: float32 and detached. The row of a sample of weight 0 is 0; no other is.
    fn rows(&self, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError>;

    /// Returns the figure of rows, one after the other, in any order.
    fn of_rows(&self, rows: &[f32]) -> f64;

    /// Returns sums over rows, from which the figure follows nearly: always as many.
    fn sums(&self, rows: &[f32]) -> Vec<f64>;

    /// Returns the figure of the sums over all rows.
    fn of_sums(&self, sums: &[f64]) -> f64;
}

/// The rows of a share of the samples, or their sums, on the host. The values of all shares add up to the whole.
#[derive(Debug)]
pub struct Share {
    tensor: Tensor,
    keeps_rows: bool,
}

impl Share {
    /// Allocates the rows of `samples` samples, or of more than `most` their sums.
    pub fn new(figure: &dyn ByRows, samples: usize, most: usize) -> Result<Self, TchError> {
        let keeps_rows = samples <= most;
        let tensor = match keeps_rows {
            true => {
                let shape = [samples as i64, figure.columns() as i64];
                Tensor::f_zeros(shape, (Kind::Float, Device::Cpu))?
            }
            false => Tensor::f_from_slice(&figure.sums(&[]))?,
        };
        Ok(Self { tensor, keeps_rows })
    }

    /// Adds the `rows`, on any device, of the samples from number `first` on.
    pub fn add(&mut self, figure: &dyn ByRows, first: usize, rows: &Tensor) -> Result<(), TchError> {
        match self.keeps_rows {
            true => self.tensor.f_narrow(0, first as i64, rows.size()[0])?.f_copy_(rows),
            false => {
                let rows = rows.f_to_device(Device::Cpu)?.f_reshape([-1])?;
                let sums = figure.sums(&Vec::try_from(&rows)?);
                let _ = self.tensor.f_add_(&Tensor::f_from_slice(&sums)?)?;
                Ok(())
            }
        }
    }

    /// Returns the values: the sum over all shares is the whole.
    pub fn values(&self) -> &Tensor {
        &self.tensor
    }

    /// Returns the figure, if the values are those of all samples.
    pub fn figure(&self, figure: &dyn ByRows) -> Result<f64, TchError> {
        let values = self.tensor.f_reshape([-1])?;
        Ok(match self.keeps_rows {
            true => figure.of_rows(&Vec::try_from(&values)?),
            false => figure.of_sums(&Vec::try_from(&values)?),
        })
    }
}

/// Returns the name of a figure of this many samples: one that is made of sums is not exact.
pub fn name(label: &str, samples: usize, most: usize) -> String {
    if samples <= most { label.to_owned() } else { format!("{label}_binned") }
}
