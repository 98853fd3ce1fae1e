#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use tch::Device;

use super::*;
use crate::data::{self, Column, Field, Generated, Loader, LoaderOptions, MicroBatch, Split};

fn decoded(indices: &[u32]) -> data::Batch {
    let options = LoaderOptions { threads: 1, prefetch_batches: 1, seed: 1, augment: false };
    let work = MicroBatch::of(0, indices.to_vec());
    let set = Arc::new(Generated::new(3, 10, 4, 1, Split::Train));
    Loader::start(set, options, std::iter::once(work)).unwrap().next().unwrap().unwrap()
}

#[test]
fn fields_become_tensors_of_their_shapes() {
    let decoded = decoded(&[4, 9]);
    let batch = Batch::new(&decoded, Device::Cpu).unwrap();
    let images = batch.field("image").unwrap();
    assert_eq!((images.size(), images.kind()), (vec![2, 3, 4, 4], tch::Kind::Float));
    let values = Vec::<f32>::try_from(images.f_view([-1]).unwrap()).unwrap();
    assert_eq!(values, *decoded.columns[0].as_f32().unwrap());
    assert_eq!(Vec::<i64>::try_from(batch.field("label").unwrap()).unwrap(), [1, 0]);
    assert_eq!((batch.weight, batch.weights.size()), (2.0, vec![2]));
}

#[test]
fn a_missing_field_error_lists_the_fields() {
    let batch = Batch::new(&decoded(&[0]), Device::Cpu).unwrap();
    let text = batch.field("mask").unwrap_err().to_string();
    assert!(
        text.starts_with("the data has no field `mask`, only `image`, `label`; choose a data.kind"),
        "{text}"
    );
}

#[test]
fn an_empty_batch_is_valid() {
    let fields: Arc<[Field]> = vec![Field::i64("tokens", [5])].into();
    let empty = data::Batch { fields, columns: vec![Column::I64(Vec::new())], ..data::Batch::default() };
    let batch = Batch::new(&empty, Device::Cpu).unwrap();
    assert_eq!((batch.field("tokens").unwrap().size(), batch.weight), (vec![0, 5], 0.0));
}

#[test]
fn every_task_of_recipes_is_started() {
    struct Name;
    impl WithTask for Name {
        type Output = String;

        fn run<T: BuildTask + 'static>(self) -> String {
            std::any::type_name::<T>().rsplit("::").next().unwrap().to_lowercase()
        }
    }
    for task in recipe::Task::NAMES.iter().map(|name| recipe::Task::named(name).unwrap()) {
        let wanted = (!task.facts().is_own).then(|| task.as_str().to_owned());
        assert_eq!(with_task(task, Name), wanted);
    }
}
