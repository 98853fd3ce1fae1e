//! The parameter arena: all trainable parameters and their gradients are views into flat buffers, one pair per dtype.
//!
//! What works on all parameters (the reduction, clipping, the optimizer, checkpoints) works on ranges of the buffers: one
//! kernel instead of hundreds, no copies, and memory that can be counted exactly.

use dtrain_torch_shim::{ShimError, tensor};
use tch::{Kind, TchError, Tensor};
use thiserror::Error;

/// Parameters start on cache lines, as libtorch's own allocations do.
const ALIGNMENT_BYTES: usize = 64;

/// Where one parameter lies in its buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The parameter's name.
    pub name: String,
    /// Its first element in the buffer.
    pub offset: i64,
    /// Its shape.
    pub shape: Vec<i64>,
}

impl Slot {
    /// The number of its elements.
    pub fn len(&self) -> i64 {
        self.shape.iter().product()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The parameter's part of a buffer laid out like the arena's, in the parameter's shape.
    ///
    /// # Errors
    /// Where `buffer` is shorter than the arena's.
    pub fn view(&self, buffer: &Tensor) -> Result<Tensor, TchError> {
        buffer
            .f_narrow(0, self.offset, self.len())?
            .f_view(self.shape.as_slice())
    }
}

/// All parameters of one dtype.
#[derive(Debug)]
pub struct FlatBuffer {
    /// The dtype.
    pub kind: Kind,
    /// The parameters, one after another; gaps of alignment stay zero.
    pub data: Tensor,
    /// Their gradients, laid out alike.
    pub grad: Tensor,
    /// The parameters in the order of their offsets.
    pub slots: Vec<Slot>,
}

/// The flat buffers of a model.
#[derive(Debug)]
pub struct Arena {
    buffers: Vec<FlatBuffer>,
    parameters: u64,
}

/// An arena that could not be made or used.
#[derive(Debug, Error)]
pub enum ArenaError {
    /// A tensor operation failed.
    #[error(transparent)]
    Torch(#[from] TchError),
    /// A parameter could not be moved into its buffer.
    #[error("parameter {name}: {source}")]
    Move {
        /// The parameter.
        name: String,
        /// The cause.
        source: ShimError,
    },
}

impl Arena {
    /// Moves `parameters` (name and leaf tensor, in the order of construction) into flat buffers. Every layer that holds
    /// one of the tensors keeps it and sees the new storage. The layout is that of the gradients' readiness: backward
    /// reaches the last layer first.
    ///
    /// # Errors
    /// Where memory runs out, or a tensor is no dense leaf.
    pub fn new<'a>(parameters: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Result<Self, ArenaError> {
        let mut parameters: Vec<_> = parameters.into_iter().collect();
        parameters.reverse();
        let count = parameters.iter().map(|(_, tensor)| tensor.numel() as u64).sum();
        let buffers = kinds(&parameters)
            .into_iter()
            .map(|kind| {
                let members = parameters.iter().filter(|(_, tensor)| tensor.kind() == kind);
                FlatBuffer::new(kind, members.copied())
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            buffers,
            parameters: count,
        })
    }

    /// The buffers, one per dtype.
    pub fn buffers(&self) -> &[FlatBuffer] {
        &self.buffers
    }

    /// The number of parameters, without alignment.
    pub fn parameters(&self) -> u64 {
        self.parameters
    }

    /// The bytes of the parameters' buffers; the gradients' take as many again.
    pub fn bytes(&self) -> u64 {
        self.buffers
            .iter()
            .map(|b| b.data.numel() as u64 * b.kind.elt_size_in_bytes() as u64)
            .sum()
    }

    /// Sets all gradients to zero.
    ///
    /// # Errors
    /// None known.
    pub fn zero_grad(&self) -> Result<(), TchError> {
        self.each_grad(|grad| grad.f_zero_().map(drop))
    }

    /// Multiplies all gradients.
    ///
    /// # Errors
    /// None known.
    pub fn scale_grad(&self, factor: f64) -> Result<(), TchError> {
        self.each_grad(|grad| grad.f_mul_scalar_(factor).map(drop))
    }

    fn each_grad(&self, mut change: impl FnMut(&mut Tensor) -> Result<(), TchError>) -> Result<(), TchError> {
        tch::no_grad(|| {
            self.buffers
                .iter()
                .try_for_each(|buffer| change(&mut buffer.grad.shallow_clone()))
        })
    }

    /// The L2 norm of all gradients together; not finite where one of them is not.
    ///
    /// # Errors
    /// None known.
    pub fn grad_norm(&self) -> Result<f64, TchError> {
        let mut squares = 0.0;
        for buffer in &self.buffers {
            let norm = f64::try_from(buffer.grad.f_norm()?)?;
            squares += norm * norm;
        }
        Ok(squares.sqrt())
    }
}

impl FlatBuffer {
    fn new<'a>(
        kind: Kind,
        members: impl Iterator<Item = (&'a str, &'a Tensor)> + Clone,
    ) -> Result<Self, ArenaError> {
        let (data, slots) = pack(kind, members.clone())?;
        let grad = data.f_zeros_like()?;
        for (slot, (name, parameter)) in slots.iter().zip(members) {
            let view = slot.view(&grad)?;
            tensor::set_grad(parameter, &view).map_err(moving(name))?;
        }
        Ok(Self {
            kind,
            data,
            grad,
            slots,
        })
    }
}

/// The dtypes of named tensors, in the order of their first occurrence.
pub(super) fn kinds(tensors: &[(&str, &Tensor)]) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (_, tensor) in tensors {
        if !kinds.contains(&tensor.kind()) {
            kinds.push(tensor.kind());
        }
    }
    kinds
}

/// Moves tensors of one dtype into a new flat one, in order; each becomes a view that starts on a cache line.
pub(super) fn pack<'a>(
    kind: Kind,
    members: impl Iterator<Item = (&'a str, &'a Tensor)> + Clone,
) -> Result<(Tensor, Vec<Slot>), ArenaError> {
    let align = (ALIGNMENT_BYTES / kind.elt_size_in_bytes()).max(1);
    let mut slots: Vec<Slot> = Vec::new();
    let mut end = 0;
    for (name, tensor) in members.clone() {
        slots.push(Slot {
            name: name.to_owned(),
            offset: end,
            shape: tensor.size(),
        });
        end += tensor.numel().next_multiple_of(align) as i64;
    }
    let device = members
        .clone()
        .next()
        .map_or(tch::Device::Cpu, |(_, tensor)| tensor.device());
    let flat = Tensor::f_zeros([end], (kind, device))?;
    for (slot, (name, tensor)) in slots.iter().zip(members) {
        let mut view = slot.view(&flat)?;
        tch::no_grad(|| view.f_copy_(tensor))?;
        tensor::set_data(tensor, &view).map_err(moving(name))?;
    }
    Ok((flat, slots))
}

fn moving(name: &str) -> impl FnOnce(ShimError) -> ArenaError {
    let name = name.to_owned();
    move |source| ArenaError::Move { name, source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tch::Device;

    fn parameters() -> Vec<(&'static str, Tensor)> {
        let make = |shape: &[i64], kind| Tensor::rand(shape, (kind, Device::Cpu)).set_requires_grad(true);
        vec![
            ("first.weight", make(&[3, 5], Kind::Float)),
            ("first.bias", make(&[3], Kind::Float)),
            ("double", make(&[2], Kind::Double)),
            ("last", make(&[7], Kind::Float)),
        ]
    }

    #[test]
    fn parameters_keep_their_values_and_become_aligned_views() {
        let parameters = parameters();
        let before: Vec<Tensor> = parameters.iter().map(|(_, tensor)| tensor.copy()).collect();
        let arena = Arena::new(parameters.iter().map(|(name, tensor)| (*name, tensor))).unwrap();
        assert_eq!(arena.parameters(), 15 + 3 + 2 + 7);
        assert_eq!(arena.buffers().len(), 2);
        let floats = &arena.buffers()[0];
        let names: Vec<&str> = floats.slots.iter().map(|slot| slot.name.as_str()).collect();
        assert_eq!(names, ["last", "first.bias", "first.weight"]);
        assert!(
            floats
                .slots
                .iter()
                .all(|slot| slot.offset * 4 % ALIGNMENT_BYTES as i64 == 0)
        );
        for ((_, parameter), before) in parameters.iter().zip(&before) {
            assert_eq!(parameter, before);
            assert!(parameter.requires_grad() && parameter.is_leaf());
        }
        let _ = tch::no_grad(|| floats.data.shallow_clone().fill_(2.0));
        assert_eq!(parameters[0].1.double_value(&[2, 4]), 2.0);
    }

    #[test]
    fn gradients_accumulate_into_the_buffer() {
        let parameters = parameters();
        let arena = Arena::new(parameters.iter().map(|(name, tensor)| (*name, tensor))).unwrap();
        let loss = || {
            parameters.iter().fold(Tensor::from(0f64), |sum, (_, p)| {
                sum + (p * 2.0).sum(Kind::Double)
            })
        };
        loss().backward();
        loss().backward();
        // 27 parameters with a gradient of 4 each; the gaps between them stay zero.
        assert!((arena.grad_norm().unwrap() - (27.0f64 * 16.0).sqrt()).abs() < 1e-5);
        arena.scale_grad(0.5).unwrap();
        assert_eq!(parameters[3].1.grad().double_value(&[6]), 2.0);
        arena.zero_grad().unwrap();
        assert_eq!(arena.grad_norm().unwrap(), 0.0);
        let _ = tch::no_grad(|| parameters[1].1.grad().fill_(f64::NAN));
        assert!(!arena.grad_norm().unwrap().is_finite());
    }
}
