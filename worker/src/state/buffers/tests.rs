//! The joining of buffers on one rank, and sums over ranks by hand.
#![allow(clippy::unwrap_used)]

use tch::Device;

use super::super::layout::LayoutOptions;
use super::super::table::Parameter;
use super::*;

/// Returns buffers for statistics with these names.
fn of(statistics: &[(&'static str, &Tensor)]) -> Buffers {
    let group = Group::Statistics;
    let parameter = |&(name, tensor): &(&'static str, _)| Parameter { name, tensor, group };
    let parameters: Vec<_> = statistics.iter().map(parameter).collect();
    Buffers::new(&Table::new(&parameters, LayoutOptions::default(), 0).unwrap(), &BTreeMap::new()).unwrap()
}

fn model() -> (Tensor, Tensor, Buffers) {
    let mean = Tensor::from_slice(&[1f32, 2.0]);
    let count = Tensor::from(5i64);
    let buffers = of(&[("mean", &mean), ("count", &count)]);
    (mean, count, buffers)
}

/// The samples of a step.
const PARTS: usize = 1000;

/// Returns places of this share of a step.
fn places(share: f64) -> Range<usize> {
    0..(share * PARTS as f64).round() as usize
}

/// Updates the buffers as a BatchNorm does in a micro-step.
fn micro_step(mean: &Tensor, count: &Tensor, statistic: f64) {
    let _ = mean.shallow_clone().g_mul_scalar_(0.9).g_add_scalar_(0.1 * statistic);
    let _ = count.shallow_clone().g_add_scalar_(1);
}

#[test]
fn buffers_move_once_towards_the_mean_of_the_micro_steps() {
    let (mean, count, mut buffers) = model();
    buffers.begin_step(0, false, PARTS).unwrap();
    for (statistic, share) in [(10.0, 0.75), (30.0, 0.25)] {
        micro_step(&mean, &count, statistic);
        buffers.record_change(&places(share)).unwrap();
        assert_eq!((mean.double_value(&[0]), count.int64_value(&[])), (1.0, 5), "as the step began");
    }
    buffers.start_reduce(&Ranks::single()).unwrap().wait().unwrap();
    buffers.commit().unwrap();
    assert!((mean.double_value(&[0]) - (0.9 + 0.1 * 15.0)).abs() < 1e-6);
    assert_eq!(count.int64_value(&[]), 6);
}

#[test]
fn a_single_micro_batch_leaves_its_values_unless_the_step_is_skipped() {
    let (mean, count, mut buffers) = model();
    buffers.begin_step(0, true, PARTS).unwrap();
    micro_step(&mean, &count, 10.0);
    buffers.record_change(&places(1.0)).unwrap();
    buffers.start_reduce(&Ranks::single()).unwrap().wait().unwrap();
    buffers.commit().unwrap();
    let after = (mean.double_value(&[0]), count.int64_value(&[]));
    assert!((after.0 - 1.9).abs() < 1e-6 && after.1 == 6, "{after:?}");
    buffers.begin_step(0, true, PARTS).unwrap();
    micro_step(&mean, &count, 30.0);
    buffers.record_change(&places(1.0)).unwrap();
    buffers.rewind().unwrap();
    assert_eq!((mean.double_value(&[0]), count.int64_value(&[])), after);
}

#[test]
fn rewinding_restores_the_buffers() {
    let (mean, count, mut buffers) = model();
    buffers.begin_step(0, false, PARTS).unwrap();
    micro_step(&mean, &count, 10.0);
    buffers.record_change(&places(0.5)).unwrap();
    micro_step(&mean, &count, 30.0);
    buffers.rewind().unwrap();
    assert_eq!((mean.double_value(&[0]), count.int64_value(&[])), (1.0, 5));
    buffers.begin_step(0, false, PARTS).unwrap();
    micro_step(&mean, &count, 10.0);
    buffers.record_change(&places(1.0)).unwrap();
    buffers.commit().unwrap();
    assert!((mean.double_value(&[0]) - (0.9 + 0.1 * 10.0)).abs() < 1e-6);
    assert_eq!(count.int64_value(&[]), 6);
}

#[test]
fn a_dropped_step_changes_no_buffer() {
    let (mean, count, mut buffers) = model();
    buffers.begin_step(0, false, PARTS).unwrap();
    micro_step(&mean, &count, f64::NAN);
    buffers.record_change(&places(1.0)).unwrap();
    // The next step begins without a commit.
    buffers.begin_step(0, false, PARTS).unwrap();
    assert_eq!((mean.double_value(&[1]), count.int64_value(&[])), (2.0, 5));
}

/// Returns a tensor of each dtype that is not averaged, with these values.
fn whole_numbers(values: [i64; 2]) -> Vec<Tensor> {
    let kinds = [Kind::Bool, Kind::Uint8, Kind::Int8, Kind::Int16, Kind::Int, Kind::Int64];
    kinds.map(|kind| Tensor::from_slice(&values).to_kind(kind)).into()
}

fn numbers(tensors: &[Tensor]) -> Vec<Vec<i64>> {
    tensors.iter().map(|tensor| Vec::try_from(tensor.to_kind(Kind::Int64)).unwrap()).collect()
}

/// One flag rises and one falls, as each micro-batch sets them.
#[test]
fn flags_and_counters_of_every_dtype_change_once_per_step() {
    let mut sums: Vec<Vec<Tensor>> = Vec::new();
    for micro_steps in [2, 1, 0] {
        let own = whole_numbers([0, 1]);
        let names = ["a", "b", "c", "d", "e", "f"];
        let named: Vec<_> = names.into_iter().zip(&own).collect();
        let mut buffers = of(&named);
        buffers.begin_step(sums.len(), false, PARTS).unwrap();
        for _ in 0..micro_steps {
            assert_eq!(numbers(&own), vec![[0, 1]; 6], "as the step began");
            own.iter().for_each(|tensor| drop(tensor.shallow_clone().logical_not_()));
            buffers.record_change(&places(0.25)).unwrap();
        }
        own.iter().for_each(|tensor| drop(tensor.shallow_clone().fill_(1)));
        buffers.rewind().unwrap();
        assert_eq!(numbers(&own), vec![[0, 1]; 6], "rewound");
        sums.push(buffers.flats.iter().map(|flat| flat.new_values.copy()).collect());
        if micro_steps > 0 {
            buffers.start_reduce(&Ranks::single()).unwrap().wait().unwrap();
            buffers.commit().unwrap();
            assert_eq!(numbers(&own), vec![[1, 0]; 6], "{micro_steps} micro-steps");
        }
    }
    // The maximum over the ranks, one of which has no samples.
    for block in 0..6 {
        let all = sums.iter().map(|sums| sums[block].narrow(0, 0, 2)).collect::<Vec<_>>();
        let largest = Tensor::stack(&all, 0).amax([0i64].as_slice(), false).to_kind(Kind::Int64);
        assert_eq!(Vec::<i64>::try_from(largest).unwrap(), [1, 0], "{block}");
    }
}

/// Returns values that reveal rounding and the loss of an infinity or a sign of zero; always the same.
fn constants() -> Vec<f32> {
    let mut values = vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE / 4.0, f32::MAX];
    values
        .extend((1..500u32).map(|at| (f64::from(at) * 0.37).sin() as f32 * 10f32.powi(at as i32 % 30 - 15)));
    values
}

/// Returns samples of the micro-batches of steps, whose shares add up to 1 except for rounding.
fn splits() -> Vec<Vec<usize>> {
    let uneven = |count| (1..=count).map(|at| at * at % 7 + 1).collect();
    (1..=24usize).flat_map(|count| [vec![1; count], uneven(count)]).collect()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values = Vec::<f32>::try_from(tensor).unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn unchanged_buffers_keep_their_bits_in_every_split() {
    let constant = Tensor::from_slice(&constants());
    let whole = Tensor::from_slice(&[i64::MAX, -3, 0]);
    let wide = Tensor::from_slice(&[0.1f64, -1e300, 1.0 / 3.0]);
    let mut buffers = of(&[("constant", &constant), ("whole", &whole), ("wide", &wide)]);
    for split in splits() {
        buffers.begin_step(0, false, split.iter().sum()).unwrap();
        for samples in split {
            buffers.record_change(&(0..samples)).unwrap();
        }
        buffers.commit().unwrap();
    }
    assert_eq!(bits(&constant), constants().into_iter().map(f32::to_bits).collect::<Vec<_>>());
    assert_eq!(Vec::<i64>::try_from(&whole).unwrap(), [i64::MAX, -3, 0]);
    assert_eq!(Vec::<f64>::try_from(&wide).unwrap(), [0.1, -1e300, 1.0 / 3.0]);
}

#[test]
fn complex_buffers_are_averaged() {
    let table = Tensor::view_as_complex(&Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0]).view([2, 2]));
    let mut buffers = of(&[("table", &table)]);
    buffers.begin_step(0, false, PARTS).unwrap();
    for factor in [2.0, 4.0] {
        let _ = table.shallow_clone().g_mul_scalar_(factor);
        buffers.record_change(&places(0.5)).unwrap();
    }
    buffers.start_reduce(&Ranks::single()).unwrap().wait().unwrap();
    buffers.commit().unwrap();
    assert_eq!(Vec::<f32>::try_from(table.view_as_real().view([-1])).unwrap(), [3.0, 6.0, 9.0, 12.0]);
}

#[test]
fn one_micro_batch_gives_exactly_the_layers_values() {
    let (mean, count, mut buffers) = model();
    let (expected, _) = (mean.copy(), buffers.begin_step(0, false, PARTS).unwrap());
    for (mean, count) in [(&mean, &count), (&expected, &Tensor::from(0i64))] {
        micro_step(mean, count, 0.7);
    }
    buffers.record_change(&places(1.0)).unwrap();
    buffers.commit().unwrap();
    assert_eq!(bits(&mean), bits(&expected));
}

#[test]
fn buffers_of_more_than_a_chunk_change_as_a_whole() {
    let table = Tensor::arange(CHUNK + 17, (Kind::Float, tch::Device::Cpu));
    let expected = &table * 3.0;
    let mut buffers = of(&[("table", &table)]);
    buffers.begin_step(0, false, PARTS).unwrap();
    let _ = table.shallow_clone().g_mul_scalar_(3.0);
    buffers.record_change(&places(1.0)).unwrap();
    buffers.commit().unwrap();
    assert!(table.equal(&expected));
}

#[test]
fn buffers_change_by_the_mean_over_ranks() {
    for split in splits() {
        let mut sums = Vec::new();
        for rank in 0..2 {
            let (mean, count, mut buffers) = model();
            buffers.begin_step(rank, false, split.iter().sum()).unwrap();
            for (at, samples) in split.iter().enumerate().filter(|(at, _)| at % 2 == rank) {
                micro_step(&mean, &count, at as f64);
                buffers.record_change(&(0..*samples)).unwrap();
            }
            sums.push(buffers.flats[0].new_values.copy());
        }
        let together = (&sums[0] + &sums[1]).to_kind(Kind::Float);
        let weighted: usize = split.iter().enumerate().map(|(at, samples)| at * samples).sum();
        let statistic = weighted as f64 / split.iter().sum::<usize>() as f64;
        let expected = 0.9 + 0.1 * statistic;
        assert!((together.double_value(&[0]) - expected).abs() < 1e-6 * expected, "{split:?}");
    }
}

#[test]
fn large_initial_values_are_replaced_exactly() {
    for large in [f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e13] {
        let least = Tensor::from_slice(&[large]);
        let mut buffers = of(&[("least", &least)]);
        buffers.begin_step(0, false, PARTS).unwrap();
        for seen in [2.0, 4.0] {
            let _ = least.shallow_clone().fill_(seen);
            buffers.record_change(&places(0.5)).unwrap();
        }
        buffers.commit().unwrap();
        assert_eq!(least.double_value(&[0]), 3.0, "{large}");
    }
}

/// Queues of three rows under both ends, a last value and an error of each kind.
#[test]
fn named_buffers_are_joined_in_the_order_of_the_samples() {
    let joins = |all: &[(&str, Join)]| -> BTreeMap<String, Join> {
        all.iter().map(|(name, join)| ((*name).to_owned(), *join)).collect()
    };
    let with = |statistics: &[(&'static str, &Tensor)], all: &[(&str, Join)]| {
        let group = Group::Statistics;
        let parameters: Vec<_> =
            statistics.iter().map(|&(name, tensor)| Parameter { name, tensor, group }).collect();
        let table = Table::new(&parameters, LayoutOptions::default(), 0).unwrap();
        Buffers::new(&table, &joins(all))
    };
    let queue = || Tensor::from_slice(&[1f32, 2.0, 3.0]).view([3, 1]);
    let (front, back, last) = (queue(), queue(), Tensor::from(7i64));
    let all = [("front", &front), ("back", &back), ("last", &last)];
    let mut buffers =
        with(&all, &[("front", Join::Append), ("back", Join::Append), ("last", Join::Last)]).unwrap();
    let values = |tensor: &Tensor| Vec::<f32>::try_from(tensor.view([-1])).unwrap();
    let add = |places: Range<usize>| {
        let new = Tensor::arange_start(
            10 + places.start as i64,
            10 + places.end as i64,
            (Kind::Float, Device::Cpu),
        );
        let (new, count) = (new.view([-1, 1]), places.len() as i64);
        front.shallow_clone().copy_(&Tensor::cat(&[&new, &front.copy()], 0).narrow(0, 0, 3));
        back.shallow_clone().copy_(&Tensor::cat(&[&back.copy(), &new], 0).narrow(0, count, 3));
        let _ = last.shallow_clone().fill_(places.end as i64);
    };
    // The last micro-batch comes first, as if from another rank.
    buffers.begin_step(0, false, 3).unwrap();
    for places in [1..3, 0..1] {
        add(places.clone());
        buffers.record_change(&places).unwrap();
    }
    buffers.start_reduce(&Ranks::single()).unwrap().wait().unwrap();
    buffers.commit().unwrap();
    assert_eq!((values(&front), values(&back)), (vec![10.0, 11.0, 12.0], vec![10.0, 11.0, 12.0]));
    assert_eq!(last.int64_value(&[]), 3);
    buffers.begin_step(0, false, 2).unwrap();
    for places in [0..1, 1..2] {
        add(places.clone());
        buffers.record_change(&places).unwrap();
    }
    buffers.start_reduce(&Ranks::single()).unwrap().wait().unwrap();
    buffers.commit().unwrap();
    assert_eq!((values(&front), values(&back)), (vec![10.0, 11.0, 10.0], vec![12.0, 10.0, 11.0]));
    let mut buffers = with(&all, &[("front", Join::Append)]).unwrap();
    for (places, words) in [(0..1, "gets one row for each sample"), (0..3, "no more rows than a micro-batch")]
    {
        buffers.begin_step(0, false, 4).unwrap();
        front.shallow_clone().copy_(&Tensor::from_slice(&[4f32, 5.0, 6.0]).view([3, 1]));
        let error = buffers.record_change(&places).unwrap_err().to_string();
        assert!(error.starts_with("model.state.front: ") && error.contains(words), "{error}");
        buffers.rewind().unwrap();
    }

    let error =
        |all: &[(&str, Join)]| with(&[("front", &front), ("last", &last)], all).unwrap_err().to_string();
    assert!(error(&[("frond", Join::Mean)]).contains("no buffer of the model; it has `front`, `last`"));
    assert!(error(&[("last", Join::Mean)]).contains("whole numbers have no mean"));
    assert!(error(&[("last", Join::Append)]).contains("one number is no queue"));
}
