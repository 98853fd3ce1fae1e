//! Checks graphs: the same bits as separate kernels, also with dropout, and no damage after a failed capture.

use dtrain_test_kit::assert_values;
use dtrain_torch_shim::ShimError;
use dtrain_torch_shim::graph::{Graph, Pool};
use dtrain_torch_shim::memory;
use dtrain_torch_shim::stream::Stream;
use tch::{Kind, Tensor};

use crate::{Failure, GPU};

pub(crate) fn run() -> Result<(), Failure> {
    let default = Stream::current(0)?;
    Stream::from_pool(0, false)?.make_current()?;
    tch::manual_seed(1);
    let weight = (Tensor::randn([256, 256], (Kind::Float, GPU)) * 0.05).set_requires_grad(true);
    let mut input = Tensor::randn([64, 256], (Kind::Float, GPU));
    let step = |input: &Tensor| {
        let loss = input
            .mm(&weight)
            .gelu("none")
            .dropout(0.1, true)
            .mm(&weight.transpose(0, 1))
            .square()
            .sum(Kind::Float);
        loss.backward();
        loss.detach()
    };
    for _ in 0..3 {
        let _ = step(&input);
    }
    // The gradient has a fixed address from here on; backward adds to it.
    let other = Tensor::randn([64, 256], (Kind::Float, GPU));
    let eager = |input: &Tensor| {
        tch::manual_seed(7);
        let _ = weight.grad().zero_();
        let losses: Vec<f64> = (0..3).map(|_| step(input).double_value(&[])).collect();
        (losses, weight.grad().copy())
    };
    let wanted = [eager(&input), eager(&other)];
    memory::empty_cache(GPU)?;
    let pool = Pool::new(0)?;
    let (mut graph, loss) = Graph::capture(pool, || Ok::<_, ShimError>(step(&input)))?;
    let mut replayed = || -> Result<(Vec<f64>, Tensor), Failure> {
        tch::manual_seed(7);
        let _ = weight.grad().zero_();
        let mut losses = Vec::new();
        for _ in 0..3 {
            graph.replay()?;
            losses.push(loss.double_value(&[]));
        }
        Ok((losses, weight.grad().copy()))
    };
    let first = replayed()?;
    tch::no_grad(|| input.copy_(&other));
    let second = replayed()?;
    for (number, ((got, gradient), (wanted, expected))) in [first, second].iter().zip(&wanted).enumerate() {
        assert_values!(got == wanted, "the losses of input {number}: {got:?}, wanted {wanted:?}");
        assert_values!(gradient.equal(expected), "the gradient of input {number}");
    }
    println!("ok replays are bit-equal to the kernels, with dropout");

    // The host cannot read during a capture.
    let failed = Graph::capture(pool, || -> Result<f64, ShimError> {
        let sum = input.f_mm(&weight)?.f_sum(Kind::Float)?;
        Ok(f64::try_from(sum)?)
    });
    let error = failed.err().ok_or("reading a value during a capture did not fail")?;
    println!("ok a failed capture is an error: {}", first_line(&error.message));
    // The generator does not stay in capture mode: it draws the same random numbers as before.
    let drawn = || {
        tch::manual_seed(3);
        let numbers = Tensor::ones([1000], (Kind::Float, GPU)).dropout(0.5, true);
        (numbers.sum(Kind::Float).double_value(&[]), Tensor::randn([10], (Kind::Float, GPU)))
    };
    let (first, second) = (drawn(), drawn());
    assert_values!(first.0 == second.0 && first.1.equal(&second.1), "numbers after a failed capture");
    // The same if a capture cannot begin, here on the default stream.
    let own = Stream::current(0)?;
    default.make_current()?;
    assert!(Graph::capture(pool, || Ok::<_, ShimError>(())).is_err());
    assert_values!(drawn().1.equal(&second.1), "numbers after a capture that did not begin");
    own.make_current()?;
    println!("ok random numbers are equal after failed captures");
    let (losses, gradient) = replayed()?;
    assert_values!(losses == wanted[1].0, "losses after failed captures: {losses:?}");
    assert_values!(gradient.equal(&wanted[1].1), "the gradient after failed captures");
    drop((graph, loss));
    memory::empty_cache(GPU)?;
    // The allocator works as before: it allocates, frees, and returns memory.
    let before = memory::usage(GPU)?;
    let large = Tensor::zeros([64 << 20], (Kind::Uint8, GPU));
    assert_values!(large.sum(Kind::Int64).int64_value(&[]) == 0, "new zeros");
    drop(large);
    memory::empty_cache(GPU)?;
    assert_eq!(memory::usage(GPU)?.reserved, before.reserved, "memory is given back");
    println!("ok the device works after failed captures");
    Ok(())
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
