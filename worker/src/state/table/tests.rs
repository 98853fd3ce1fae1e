//! Rows, blocks and gradients. No order, phase or shard loses a value.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::column::{AVERAGE, Keep};
use super::super::moves::pieces;
use super::*;
use crate::collectives::Ranks;

const MOMENT: ColumnSpec = ColumnSpec { name: "moment", role: Role::Moment(Rows::Elements) };

fn tensors() -> Vec<(&'static str, Tensor)> {
    let make = |shape: &[i64], kind| Tensor::rand(shape, (kind, Device::Cpu)).set_requires_grad(true);
    vec![
        ("first.weight", make(&[3, 5], Kind::Float)),
        ("first.bias", make(&[3], Kind::Float)),
        ("double", make(&[2], Kind::Double)),
        ("last", make(&[7], Kind::Float)),
    ]
}

fn table(tensors: &[(&'static str, Tensor)]) -> Table {
    Table::of(tensors.iter().map(|(name, tensor)| (*name, tensor))).unwrap()
}

/// Returns the sum of the squares of the gradients.
fn squares(table: &Table) -> f64 {
    let norms = table.own_norms().unwrap();
    norms.iter().map(|norm| norm.double_value(&[]).powi(2)).sum()
}

/// A norm of float32 would differ in the sixth digit.
#[test]
fn the_norm_of_a_gradient_does_not_depend_on_the_order() {
    let values: Vec<f32> =
        (0..300_000u32).map(|at| (at as f32 * 0.37).sin() * (1.0 + (at % 97) as f32)).collect();
    let expected = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
    let reversed: Vec<f32> = values.iter().rev().copied().collect();
    for values in [values, reversed] {
        let weight = Tensor::zeros([values.len() as i64], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let tensors = vec![("weight", weight)];
        let table = table(&tensors);
        table.grads().unwrap()[0].copy_(&Tensor::from_slice(&values));
        assert!((squares(&table) / expected - 1.0).abs() < 1e-12, "{} {expected}", squares(&table));
    }
}

#[test]
fn parameters_keep_their_values_and_become_aligned_views() {
    let tensors = tensors();
    let before: Vec<Tensor> = tensors.iter().map(|(_, tensor)| tensor.copy()).collect();
    let table = table(&tensors);
    assert_eq!(table.trained_elements(), 15 + 3 + 2 + 7);
    assert_eq!(table.blocks().len(), 2);
    let floats = &table.blocks()[0];
    let names: Vec<&str> = floats.slots.iter().map(|slot| slot.name.as_str()).collect();
    assert_eq!(names, ["last", "first.bias", "first.weight"]);
    assert!(floats.slots.iter().all(|slot| slot.offset * 4 % 64 == 0));
    for ((_, parameter), before) in tensors.iter().zip(&before) {
        assert_eq!(parameter, before);
        assert!(parameter.requires_grad() && parameter.is_leaf());
    }
    let _ = tch::no_grad(|| table.data[0].flat.shallow_clone().fill_(2.0));
    assert_eq!(tensors[0].1.double_value(&[2, 4]), 2.0);
}

#[test]
fn gradients_accumulate_into_their_block() {
    let tensors = tensors();
    let table = table(&tensors);
    let add = |sum: Tensor, (_, tensor): &(_, Tensor)| sum + (tensor * 2.0).sum(Kind::Double);
    for _ in 0..2 {
        tensors.iter().fold(Tensor::from(0f64), add).backward();
    }
    // 27 elements with a gradient of 4 each; the gaps between them stay zero.
    assert!((squares(&table) - 27.0 * 16.0).abs() < 1e-3);
    table.scale_grad(0.5).unwrap();
    assert_eq!(tensors[3].1.grad().double_value(&[6]), 2.0);
    table.zero_grad().unwrap();
    assert_eq!(squares(&table), 0.0);
    let _ = tch::no_grad(|| tensors[1].1.grad().fill_(f64::NAN));
    assert!(!squares(&table).is_finite());
}

#[test]
fn channels_last_weights_keep_their_strides() {
    let weight = Tensor::rand([4, 3, 2, 2], (Kind::Float, Device::Cpu))
        .permute([0, 2, 3, 1])
        .contiguous()
        .permute([0, 3, 1, 2])
        .set_requires_grad(true);
    let (before, strides) = (weight.detach().copy(), weight.stride());
    assert_eq!(strides, [12, 1, 6, 3]);
    let table = Table::of([("weight", &weight)]).unwrap();
    assert_eq!((weight.stride(), weight.grad().stride()), (strides.clone(), strides));
    assert_eq!(weight, before);
    (&weight * &before).sum(Kind::Float).backward();
    assert_eq!(weight.grad(), before);
    assert_eq!(table.grads().unwrap()[0], before);
}

/// The values by column and row, gathered over ranks that hold parts.
type Values = BTreeMap<(String, String), Vec<f64>>;

fn values(tables: &[Table]) -> Values {
    let mut values = Values::new();
    for table in tables {
        for (row, leaf) in table.rows.iter().zip(&table.leaves) {
            values.insert(("data".into(), row.name.clone()), Vec::try_from(leaf.flatten(0, -1)).unwrap());
        }
        for (spec, held) in table.columns() {
            let parts = table.parts(spec.role);
            for (block, slot) in table.slots() {
                for (range, own) in pieces(&parts, held, block, slot).unwrap() {
                    let key = (spec.name.to_owned(), slot.name.clone());
                    let all = values.entry(key).or_insert_with(|| vec![f64::NAN; slot.len() as usize]);
                    let own = Vec::<f64>::try_from(own.to_kind(Kind::Double)).unwrap();
                    all[range.start as usize..range.end as usize].copy_from_slice(&own);
                }
            }
        }
    }
    values
}

/// A model of several rows, and one table of it for every shard.
struct Scene {
    tensors: Vec<Vec<Tensor>>,
    names: Vec<String>,
    tables: Vec<Table>,
}

impl Scene {
    fn new(lengths: &[i64], groups: &[Group], shards: usize) -> Self {
        let names: Vec<String> = (0..lengths.len()).map(|row| format!("row {row}")).collect();
        let value =
            |row: usize, len: i64| Tensor::arange(len, (Kind::Float, Device::Cpu)) + 1000.0 * row as f64;
        let tensors: Vec<Vec<Tensor>> = (0..shards)
            .map(|_| lengths.iter().enumerate().map(|(row, &len)| value(row, len)).collect())
            .collect();
        let options = LayoutOptions { first_bucket_bytes: 128, bucket_bytes: 512, shards, whole_rows: false };
        let mut scene = Self { tensors, names, tables: Vec::new() };
        for shard in 0..shards {
            let mut table = Table::new(&scene.parameters(shard, groups), options, shard).unwrap();
            table.add_column(MOMENT).unwrap();
            table.add_column(AVERAGE).unwrap();
            for (number, column) in table.columns.iter().enumerate() {
                for held in &column.held {
                    // Makes the values of all columns different.
                    held.shallow_clone().copy_(&(held + 0.25 * (number + 1) as f64));
                }
            }
            let mut given = Vec::new();
            let mut give = |len: usize, kind| {
                given.push(Tensor::zeros([len as i64], (kind, Device::Cpu)));
                Ok(given.last().map(Tensor::shallow_clone))
            };
            table.share(&mut give).unwrap();
            scene.tables.push(table);
        }
        scene
    }

    /// Returns the parameters with trained rows first.
    fn parameters(&self, shard: usize, groups: &[Group]) -> Vec<Parameter<'_>> {
        let mut all: Vec<Parameter<'_>> = std::iter::zip(&self.names, &self.tensors[shard])
            .zip(groups)
            .map(|((name, tensor), &group)| Parameter { name, tensor, group })
            .collect();
        all.sort_by_key(|parameter| !parameter.group.is_trained());
        all
    }
}

fn groups(rows: usize) -> impl Strategy<Value = Vec<Group>> {
    let group = prop_oneof![
        (0usize..2).prop_map(Group::Trained),
        (0usize..2).prop_map(Group::Trained),
        Just(Group::Resting),
    ];
    prop::collection::vec(group, rows)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rearranging_keeps_all_values(
        lengths in prop::collection::vec(1i64..200, 5), groups in groups(5), seed: u64
    ) {
        let mut scene = Scene::new(&lengths, &groups, 1);
        let before = values(&scene.tables);
        let table = &mut scene.tables[0];
        let mut order: Vec<usize> = (0..table.leaves().len()).collect();
        order.sort_by_key(|&row| (row as u64 + 1).wrapping_mul(seed | 1));
        table.rearrange(&order, &Ranks::single()).unwrap();
        prop_assert!(!table.rearrange(&order, &Ranks::single()).unwrap());
        // Gradients still use the allocated memory.
        for (block, grad) in table.grad.iter().enumerate() {
            prop_assert_eq!(grad.flat.data_ptr(), grad.memory.as_ref().unwrap().data_ptr());
            prop_assert_eq!(grad.flat.size1().unwrap(), table.blocks()[block].len);
        }
        prop_assert_eq!(values(&scene.tables), before);
    }

    #[test]
    fn a_new_phase_keeps_old_rows_and_initializes_new_ones(
        lengths in prop::collection::vec(1i64..200, 5), first in groups(5), second in groups(5), moments: bool, average: bool
    ) {
        let mut scene = Scene::new(&lengths, &first, 1);
        let before = values(&scene.tables);
        let keep = Keep { moments, average };
        let mut table = scene.tables.remove(0);
        table.count_updates(&vec![true; table.leaves().len()], 1);
        table.leave_phase(keep).unwrap();
        table.enter_phase(&scene.parameters(0, &second), &Ranks::single()).unwrap();
        let after = values(&[table]);
        for (row, name) in scene.names.iter().enumerate() {
            let of = |column: &str, values: &Values| values.get(&(column.to_owned(), name.clone())).cloned();
            prop_assert_eq!(of("data", &after), of("data", &before));
            let (was, is) = (first[row].is_trained(), second[row].is_trained());
            let expected = match (moments, is, was) {
                (false, _, _) | (_, false, _) => None,
                (true, true, true) => of("moment", &before),
                (true, true, false) => Some(vec![0.0; lengths[row] as usize]),
            };
            prop_assert_eq!(of("moment", &after), expected);
            prop_assert_eq!(of("average", &after), average.then(|| of("average", &before).unwrap()));
        }
    }
}

#[test]
fn shards_have_every_value_exactly_once() {
    let groups = [Group::Trained(0), Group::Trained(1), Group::Resting, Group::Trained(0)];
    let lengths = [40, 300, 7, 77];
    let whole = values(&Scene::new(&lengths, &groups, 1).tables);
    for shards in [2, 3] {
        let scene = Scene::new(&lengths, &groups, shards);
        assert_eq!(values(&scene.tables), whole, "{shards} shards");
        let elements: i64 = (scene.tables.iter())
            .flat_map(|table| table.column("moment").unwrap().iter().map(|held| held.numel() as i64))
            .sum();
        let blocks = scene.tables[0].blocks().iter().filter(|block| block.group.is_trained());
        assert_eq!(elements, blocks.map(|block| block.len).sum::<i64>());
    }
}

#[test]
fn removed_rows_keep_their_values_in_separate_storage() {
    let tensors = tensors();
    let before: Vec<(Tensor, Vec<i64>)> =
        tensors.iter().map(|(_, tensor)| (tensor.copy(), tensor.stride())).collect();
    let mut table = table(&tensors);
    let flat = table.data[0].flat.shallow_clone();
    let keep = Keep { moments: false, average: false };
    table.leave_phase(keep).unwrap();
    table.enter_phase(&[], &Ranks::single()).unwrap();
    let _ = tch::no_grad(|| flat.shallow_clone().fill_(7.0));
    for ((_, parameter), (value, strides)) in tensors.iter().zip(&before) {
        assert_eq!(parameter, value);
        assert_eq!(&parameter.stride(), strides);
        assert!(parameter.is_leaf() && !parameter.grad().defined());
    }
}
