#![allow(clippy::unwrap_used)]

use super::*;
use crate::planning::tests::{GIB, MIB, Machine};
use proptest::prelude::*;

fn request(budget: u64) -> CutRequest {
    CutRequest {
        ranks: 1,
        budget,
        micro_batch: MicroBatch::Auto,
        amp: Amp::Off,
        recompute: Recompute::Auto,
        shard_optimizer: false,
    }
}

fn solve(machine: &mut Machine, request: &CutRequest) -> Choice {
    let subject = machine.about();
    Solver::new(&subject, machine).solve(request).unwrap()
}

/// Returns micro-batch, micro-steps and segments of the choice; None if nothing fits.
fn chosen(machine: &Machine, request: &CutRequest) -> Option<(usize, usize, usize)> {
    match solve(&mut machine.clone(), request) {
        Choice::Fit { prediction, grad_accum_steps, .. } => {
            assert!(prediction.peak <= request.budget);
            let cut = prediction.cut;
            Some((cut.micro_batch, grad_accum_steps, cut.recompute))
        }
        Choice::NoFit { .. } => None,
    }
}

#[test]
fn ample_memory_computes_the_share_at_once() {
    let mut machine = Machine::default();
    let plain = machine.prediction(&Machine::cut(1, 16, 0));
    let expected = Choice::Fit {
        prediction: plain,
        partition: "16 = 1 rank x 16 x 1 accumulation".into(),
        grad_accum_steps: 1,
        relative_time: 1.0,
    };
    assert_eq!(solve(&mut machine, &request(80 * GIB)), expected);
    assert_eq!(machine.predictions, 1);
}

#[test]
fn a_smaller_micro_batch_is_chosen_unless_recompute_is_cheaper() {
    let machine = Machine::default();
    // Weights, gradients, moments and average take 500 MiB, a sample 1 GiB.
    assert_eq!(chosen(&machine, &request(9 * GIB)), Some((8, 2, 0)));
    assert_eq!(chosen(&machine, &request(5 * GIB)), Some((4, 4, 0)));
    assert_eq!(chosen(&machine, &request(3 * GIB)), Some((2, 8, 0)));
    // In 2 GiB, 1 sample without recompute fits, at 1.45 times the time. 2 samples with 2 of 4 segments and 6
    // with all of them cost 1.41; the larger micro-batch is chosen.
    assert_eq!(chosen(&machine, &request(2 * GIB)), Some((6, 3, 4)));
    // Not even one sample fits without recompute.
    assert_eq!(chosen(&machine, &request(GIB)), Some((2, 8, 4)));
    assert_eq!(chosen(&machine, &request(1000 * MIB)), Some((1, 16, 3)));
    assert_eq!(chosen(&machine, &request(700 * MIB)), None);
}

#[test]
fn settings_of_the_recipe_are_kept() {
    let machine = Machine::default();
    let budget = 5 * GIB;
    let off = CutRequest { recompute: Recompute::Off, budget: GIB, ..request(0) };
    assert_eq!(chosen(&machine, &off), None);
    let on = CutRequest { recompute: Recompute::On, ..request(budget) };
    assert_eq!(chosen(&machine, &on), Some((16, 1, 4)));
    let fixed = CutRequest { micro_batch: MicroBatch::Value(8), ..request(budget) };
    assert_eq!(chosen(&machine, &fixed), Some((8, 2, 3)));
    let fixed = CutRequest { recompute: Recompute::Off, ..fixed };
    assert_eq!(chosen(&machine, &fixed), None);
}

#[test]
fn the_smallest_cut_is_reported_if_nothing_fits() {
    let mut machine = Machine::default();
    let expected = Choice::NoFit {
        smallest: machine.prediction(&Machine::cut(1, 1, 4)),
        partition: "16 = 1 rank x 1 x 16 accumulation".into(),
        grad_accum_steps: 16,
    };
    assert_eq!(solve(&mut machine, &request(100 * MIB)), expected);
}

#[test]
fn the_smallest_micro_batch_is_respected() {
    let machine = Machine { min_micro_batch: 2, segments: 0, ..Machine::default() };
    assert_eq!(chosen(&machine, &request(3 * GIB)), Some((2, 8, 0)));
    assert_eq!(chosen(&machine, &request(2 * GIB)), None);
    // 5 samples in micro-batches of at least 2 are 5, or 3 and 2.
    let machine = Machine { effective_batch: 5, ..machine };
    let smallest = solve(&mut machine.clone(), &request(1));
    assert_eq!(smallest.prediction().cut.micro_batch, 3);
}

#[test]
fn the_largest_micro_batch_is_respected() {
    let machine = Machine { max_micro_batch: Some(6), ..Machine::default() };
    assert_eq!(chosen(&machine, &request(64 * GIB)), Some((6, 3, 0)));
}

#[test]
fn more_ranks_than_samples_is_an_error() {
    let machine = &mut Machine::default();
    let subject = machine.about();
    let too_many = CutRequest { ranks: 17, ..request(GIB) };
    let error = Solver::new(&subject, machine).solve(&too_many).unwrap_err();
    assert!(
        error.to_string().starts_with("an effective batch of 16 cannot be shared by 17 ranks"),
        "{error}"
    );
}

/// Returns the least time of all fitting cuts that the recipe allows, by brute force.
fn least_time(machine: &Machine, request: &CutRequest) -> Option<f64> {
    let samples = machine.effective_batch.div_ceil(request.ranks);
    let plain = machine.prediction(&request.cut(samples, 0));
    let whole = Partition::new(machine.effective_batch, request.ranks, None).unwrap();
    let mut least: Option<f64> = None;
    for steps in 1..=samples {
        let limit = samples.div_ceil(steps);
        let partition = Partition::new(machine.effective_batch, request.ranks, Some(limit)).unwrap();
        for recompute in 0..=machine.segments {
            let prediction = machine.prediction(&request.cut(partition.micro_batch(), recompute));
            let fits = prediction.peak <= request.budget;
            let time = relative_time((&plain, &whole), (&prediction, &partition), machine.segments);
            if fits && least.is_none_or(|least| time < least) {
                least = Some(time);
            }
        }
    }
    least
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_choice_is_best_for_linear_memory(
        effective_batch in 1usize..200,
        ranks in 1usize..5,
        segments in 0usize..13,
        per_sample in 1u64..2000,
        budget in 0u64..100_000,
    ) {
        prop_assume!(effective_batch >= ranks);
        let mut machine = Machine { effective_batch, segments, per_sample: per_sample * MIB, ..Machine::default() };
        let request = CutRequest { ranks, ..request(budget * MIB) };
        let least = least_time(&machine, &request);
        match solve(&mut machine, &request) {
            Choice::Fit { prediction, grad_accum_steps, relative_time, .. } => {
                let cut = prediction.cut;
                prop_assert!(prediction.peak <= request.budget);
                prop_assert_eq!(prediction, machine.prediction(&cut));
                let partition = Partition::new(effective_batch, ranks, Some(cut.micro_batch)).unwrap();
                prop_assert_eq!(partition.micro_batch(), cut.micro_batch);
                prop_assert_eq!(partition.grad_accum_steps(), grad_accum_steps);
                prop_assert!(relative_time <= least.unwrap() * 1.005, "{} against {:?}", relative_time, least);
            }
            Choice::NoFit { smallest, .. } => {
                prop_assert_eq!(least, None);
                prop_assert!(smallest.peak > request.budget);
            }
        }
        prop_assert!(machine.predictions <= 40, "{} predictions", machine.predictions);
    }

    #[test]
    fn measurements_near_a_line_are_fitted(
        effective_batch in 1usize..100,
        segments in 1usize..9,
        budget in 600u64..30_000,
        seed in 1u64..50,
    ) {
        let wobble = |cut: &Cut| (cut.micro_batch as u64 * 7919 + cut.recompute as u64 * 104_729) % 97 * MIB;
        let mut machine = Machine { effective_batch, segments, per_sample: 40 * seed * MIB, wobble, ..Machine::default() };
        let request = request(budget * MIB);
        let choice = solve(&mut machine, &request);
        prop_assert_eq!(*choice.prediction(), machine.prediction(&choice.prediction().cut));
        prop_assert_eq!(matches!(choice, Choice::Fit { .. }), choice.prediction().peak <= request.budget);
    }
}
