//! Checks copies from pinned memory during computation on another stream.

use dtrain_test_kit::assert_values;
use dtrain_torch_shim::cuda;
use dtrain_torch_shim::stream::{Event, Stream};
use tch::{Kind, Tensor};

use crate::{Failure, GPU};

/// Copies as for the next micro-batch: beside a computing stream, with an event, freed before it is read.
pub(crate) fn run() -> Result<(), Failure> {
    const NUMBERS: usize = 1 << 20;
    let computing = Stream::current(0)?;
    let copies = Stream::from_pool(0, false)?;
    let busy = Tensor::randn([2048, 2048], (Kind::Float, GPU));
    for round in 0..20 {
        let first = round as f32;
        let values: Vec<f32> = (0..NUMBERS).map(|at| first + (at % 97) as f32).collect();
        let mut copied = Event::new()?;
        // The computing stream is busy for milliseconds when the copy begins and when its result is read.
        let work = (0..20).fold(busy.shallow_clone(), |x, _| x.mm(&busy) * 1e-3);
        let batch = copies.run(|| -> Result<Tensor, Failure> {
            let pinned = cuda::pinned(&values)?;
            Ok(pinned.to_device_(GPU, Kind::Float, true, false))
        })??;
        copied.record(copies)?;
        // The copy no longer needs the source, which may change now.
        let expected: f64 = values.iter().map(|&value| f64::from(value)).sum();
        drop(values);
        copied.block(computing)?;
        computing.record_tensor(&batch)?;
        let work = (0..20).fold(work, |x, _| x.mm(&busy) * 1e-3);
        let sum = batch.to_kind(Kind::Double).sum(Kind::Double);
        drop(batch);
        // The next user of this memory must not get it before the sum is computed.
        let other = copies.run(|| Tensor::full([NUMBERS as i64], -1.0, (Kind::Float, GPU)))?;
        let sum = sum.double_value(&[]);
        assert_values!(sum == expected, "round {round}: {sum}, wanted {expected}");
        drop((work, other));
    }
    println!("ok copies on another stream");
    Ok(())
}
