//! An exponential moving average of the parameters (Polyak and Juditsky 1992; as used by Tarvainen and Valpola 2017, arXiv
//! 1703.01780), one in-place kernel per flat buffer.

use tch::{Kind, TchError, Tensor};
use thiserror::Error;

use super::replay::patiently;

/// Elements that are exchanged at a time: the scratch space of [`Ema::swap`], 4 MiB of float32.
const CHUNK: i64 = 1 << 20;

/// The averages of a set of flat buffers, the same buffers in the same order at every call.
///
/// After each committed optimizer step [`Ema::update`]; around an evaluation [`Ema::swap`] and [`Ema::swap`] again; in a
/// checkpoint [`Ema::flats`] and [`Ema::updates`], and after copying the former back [`Ema::restore`].
#[derive(Debug)]
pub struct Ema {
    decay: f64,
    warmup: bool,
    updates: u64,
    swapped: bool,
    flats: Vec<Tensor>,
}

/// An average that could not be made or moved.
#[derive(Debug, Error)]
pub enum EmaError {
    /// The decay is none.
    #[error("ema.decay is {0}; it must be at least 0 and below 1, such as 0.9999")]
    Decay(f64),
    /// The buffers are not those that the average was made of.
    #[error(
        "the moving average is of {wanted}, but was given {got}; make it anew where the parameters change"
    )]
    Buffers {
        /// The buffers that it was made of.
        wanted: String,
        /// The buffers given.
        got: String,
    },
    /// The live buffers hold the average: an update would mix the two up.
    #[error("the moving average is in use for an evaluation; swap it back before the next update")]
    Swapped,
    /// A tensor operation failed.
    #[error(transparent)]
    Torch(#[from] TchError),
}

impl Ema {
    /// An average that begins as a copy of `data`: contiguous buffers of any shape and dtype, on any device. Only those of a
    /// floating dtype are averaged; of the others (counters) the last value counts.
    ///
    /// With `warmup` the decay of update t, counted from 0, is min(decay, (1 + t) / (10 + t)), as
    /// tf.train.ExponentialMovingAverage with `num_updates`: the random first weights do not linger.
    ///
    /// # Errors
    /// [`EmaError::Decay`] for a decay outside of [0, 1); where memory runs out.
    pub fn new<'a>(
        decay: f64,
        warmup: bool,
        data: impl IntoIterator<Item = &'a Tensor>,
    ) -> Result<Self, EmaError> {
        if !(0.0..1.0).contains(&decay) {
            return Err(EmaError::Decay(decay));
        }
        let copy = |tensor: &Tensor| {
            let mut flat = tensor.f_empty_like()?;
            flat.f_copy_(tensor)?;
            Ok(flat)
        };
        let flats = tch::no_grad(|| data.into_iter().map(copy).collect::<Result<_, TchError>>())?;
        Ok(Self {
            decay,
            warmup,
            updates: 0,
            swapped: false,
            flats,
        })
    }

    /// The decay of the next update: average <- decay x average + (1 - decay) x data.
    pub fn next_decay(&self) -> f64 {
        if !self.warmup {
            return self.decay;
        }
        let t = self.updates as f64;
        self.decay.min((1.0 + t) / (10.0 + t))
    }

    /// Moves the averages towards `data`.
    ///
    /// # Errors
    /// [`EmaError::Swapped`] between two swaps; [`EmaError::Buffers`] where `data` are other buffers. Nothing has moved
    /// then.
    pub fn update<'a>(&mut self, data: impl IntoIterator<Item = &'a Tensor>) -> Result<(), EmaError> {
        if self.swapped {
            return Err(EmaError::Swapped);
        }
        let data = self.checked(data)?;
        let share = 1.0 - self.next_decay();
        tch::no_grad(|| {
            for (average, live) in self.flats.iter_mut().zip(data) {
                let averaged = is_averaged(average.kind());
                patiently(live.device(), || match averaged {
                    true => average.f_lerp_(live, share).map(drop),
                    false => average.f_copy_(live),
                })?;
            }
            Ok::<_, TchError>(())
        })?;
        self.updates += 1;
        Ok(())
    }

    /// Exchanges the averages with the contents of `data`, bit by bit, so that the model is evaluated with the averages; a
    /// second call puts everything back. Goes chunk by chunk, without a third copy.
    ///
    /// # Errors
    /// [`EmaError::Buffers`] where `data` are other buffers (nothing has moved then); where memory for one chunk is lacking.
    pub fn swap<'a>(&mut self, data: impl IntoIterator<Item = &'a Tensor>) -> Result<(), EmaError> {
        let data = self.checked(data)?;
        tch::no_grad(|| {
            self.flats
                .iter()
                .zip(data)
                .try_for_each(|(average, live)| exchange(average, live))
        })?;
        self.swapped = !self.swapped;
        Ok(())
    }

    /// Whether the live buffers hold the averages, and [`Ema::flats`] the live values.
    pub fn is_swapped(&self) -> bool {
        self.swapped
    }

    /// The averages, laid out as the buffers; they may be copied from and into.
    pub fn flats(&self) -> &[Tensor] {
        &self.flats
    }

    /// Puts the first averages in place of what there was, after the buffers they are of were laid out anew.
    pub(super) fn replace(&mut self, flats: Vec<Tensor>) {
        for (old, new) in self.flats.iter_mut().zip(flats) {
            *old = new;
        }
    }

    /// The averages, to be brought into another order; until [`Ema::move_to`] there are none.
    pub(super) fn take(&mut self) -> Vec<Tensor> {
        std::mem::take(&mut self.flats)
    }

    /// Goes on with these averages, after the buffers that they are of changed in number or size.
    pub(super) fn move_to(&mut self, flats: Vec<Tensor>) {
        self.flats = flats;
    }

    /// Updates so far.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Continues after `updates` updates, whose averages have been copied into [`Ema::flats`].
    pub fn restore(&mut self, updates: u64) {
        self.updates = updates;
    }

    fn checked<'a>(&self, data: impl IntoIterator<Item = &'a Tensor>) -> Result<Vec<&'a Tensor>, EmaError> {
        let data: Vec<&Tensor> = data.into_iter().collect();
        let fits = |(own, other): (&Tensor, &&Tensor)| {
            own.size() == other.size() && own.kind() == other.kind() && own.device() == other.device()
        };
        if data.len() == self.flats.len() && self.flats.iter().zip(&data).all(fits) {
            return Ok(data);
        }
        Err(EmaError::Buffers {
            wanted: describe(&self.flats),
            got: describe(data.iter().copied()),
        })
    }
}

fn is_averaged(kind: Kind) -> bool {
    matches!(kind, Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16)
}

fn exchange(a: &Tensor, b: &Tensor) -> Result<(), TchError> {
    let (a, b) = (a.f_view(-1)?, b.f_view(-1)?);
    let elements = a.size1()?;
    let scratch = patiently(a.device(), || {
        Tensor::f_empty([CHUNK.min(elements)], (a.kind(), a.device()))
    })?;
    for begin in (0..elements).step_by(CHUNK as usize) {
        let length = CHUNK.min(elements - begin);
        let (mut a, mut b) = (a.f_narrow(0, begin, length)?, b.f_narrow(0, begin, length)?);
        let mut kept = scratch.f_narrow(0, 0, length)?;
        kept.f_copy_(&a)?;
        a.f_copy_(&b)?;
        b.f_copy_(&kept)?;
    }
    Ok(())
}

/// Buffers in the words of an error.
fn describe<'a>(buffers: impl IntoIterator<Item = &'a Tensor>) -> String {
    let mut words: Vec<String> = buffers
        .into_iter()
        .map(|buffer| format!("{:?} {:?} on {:?}", buffer.kind(), buffer.size(), buffer.device()))
        .collect();
    if words.len() > 4 {
        let count = words.len();
        words.truncate(4);
        words.push(format!("... ({count} buffers)"));
    }
    if words.is_empty() {
        return "no buffers".to_owned();
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tch::Device;

    const DECAYS: [f64; 3] = [0.0, 0.5, 0.9999];

    /// A value that depends on the buffer's element and the step, with no pattern for an average to cancel.
    fn value(step: u64, index: usize) -> f64 {
        ((step * 37 + index as u64 * 11 + 3) % 101) as f64 / 7.0 - 5.0
    }

    fn values(step: u64) -> Vec<f64> {
        (0..13).map(|index| value(step, index)).collect()
    }

    #[test]
    fn averages_follow_the_formula() {
        for decay in DECAYS {
            for warmup in [false, true] {
                let double = Tensor::from_slice(&values(0));
                let (single, counter) = (double.to_kind(Kind::Float), Tensor::from_slice(&[0i64]));
                let mut ema = Ema::new(decay, warmup, [&single, &double, &counter]).unwrap();
                let mut wanted = values(0);
                for step in 1..=200 {
                    let live = Tensor::from_slice(&values(step));
                    let live = [
                        live.to_kind(Kind::Float),
                        live,
                        Tensor::from_slice(&[step as i64]),
                    ];
                    let t = (step - 1) as f64;
                    let d = if warmup {
                        decay.min((1.0 + t) / (10.0 + t))
                    } else {
                        decay
                    };
                    for (index, wanted) in wanted.iter_mut().enumerate() {
                        *wanted = d * *wanted + (1.0 - d) * value(step, index);
                    }
                    ema.update(&live).unwrap();
                    let wanted = Tensor::from_slice(&wanted);
                    for (flat, tolerance) in ema.flats().iter().zip([2e-5, 1e-12]) {
                        let off = (flat - &wanted).abs().max().double_value(&[]);
                        assert!(off <= tolerance, "decay {decay}, step {step}: off by {off:e}");
                    }
                    assert_eq!(ema.flats()[2].int64_value(&[0]), step as i64);
                }
                assert_eq!(ema.updates(), 200);
            }
        }
    }

    #[test]
    fn warm_up_forgets_the_first_values() {
        let data = [Tensor::from(1000f64)];
        let mut ema = Ema::new(0.9999, true, &data).unwrap();
        assert_eq!(ema.next_decay(), 0.1);
        let zero = [Tensor::from(0f64)];
        (0..50).for_each(|_| ema.update(&zero).unwrap());
        assert!(ema.flats()[0].double_value(&[]) < 1e-6);
        ema.restore(1_000_000);
        assert_eq!(ema.next_decay(), 0.9999);
    }

    #[test]
    fn the_average_has_storage_of_its_own() {
        let live = Tensor::zeros([3], (Kind::Float, Device::Cpu));
        let ema = Ema::new(0.9, false, [&live]).unwrap();
        let _ = live.shallow_clone().fill_(1.0);
        assert_eq!(ema.flats()[0].double_value(&[0]), 0.0);
    }

    /// Bits, since a NaN differs from itself.
    fn bits(tensor: &Tensor) -> Vec<i32> {
        Vec::try_from(tensor.view_dtype(Kind::Int)).unwrap()
    }

    #[test]
    fn two_swaps_are_the_identity_bit_by_bit() {
        // More than one chunk, and a rest; NaN and infinity are values like others.
        let large = Tensor::randn([CHUNK * 2 + 17], (Kind::Float, Device::Cpu));
        let odd = Tensor::from_slice(&[f32::NAN, -0.0, f32::NEG_INFINITY, 1e-42]);
        let none = Tensor::zeros([0], (Kind::Float, Device::Cpu));
        let live = [large, odd, none];
        let mut ema = Ema::new(0.9, false, &live).unwrap();
        for flat in ema.flats() {
            let _ = flat.shallow_clone().neg_();
        }
        let (before, average) = (live.each_ref().map(bits), bits(&ema.flats()[0]));
        ema.swap(&live).unwrap();
        assert!(ema.is_swapped());
        assert_eq!(
            (bits(&live[0]), bits(&ema.flats()[0])),
            (average, before[0].clone())
        );
        assert!(matches!(ema.update(&live), Err(EmaError::Swapped)));
        ema.swap(&live).unwrap();
        assert_eq!(live.each_ref().map(bits), before);
        assert!(!ema.is_swapped());
    }

    #[test]
    fn other_buffers_and_decays_are_refused() {
        let live = [Tensor::zeros([3], (Kind::Float, Device::Cpu))];
        let mut ema = Ema::new(0.9, false, &live).unwrap();
        let other = Tensor::zeros([4], (Kind::Float, Device::Cpu));
        let error = ema.update([&other]).unwrap_err().to_string();
        assert!(
            error.contains("Float [3]") && error.contains("Float [4]"),
            "{error}"
        );
        assert!(ema.swap([]).unwrap_err().to_string().contains("no buffers"));
        assert!(ema.update([&live[0].to_kind(Kind::Double)]).is_err());
        assert_eq!(ema.updates(), 0);
        for decay in [1.0, -0.1, f64::NAN] {
            assert!(matches!(Ema::new(decay, true, &live), Err(EmaError::Decay(_))));
        }
    }
}
