#![allow(clippy::unwrap_used)]

mod failures;
mod numbers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dtrain_recipe::Augment;
use proptest::prelude::*;

use self::numbers::{Numbers, all, eventually, images, indices, labels, options, work};
use super::super::changes::Changes;
use super::super::dataset::Column;
use super::super::sampler::Place;
use super::super::{Generated, Split};
use super::*;

#[test]
fn batches_come_in_order_with_their_content() {
    let batches = all(Arc::new(Numbers::default()), options(2), work(&[&[5, 8], &[], &[999]]));
    assert_eq!(batches.len(), 3);
    assert_eq!(
        (indices(&batches[0]), labels(&batches[0]), &*batches[0].weights),
        (vec![5.0, 8.0], &[5, 1][..], &[1.0, 1.0][..])
    );
    assert_eq!((images(&batches[0])[0], images(&batches[0])[3], images(&batches[0]).len()), (5.0, 8.0, 6));
    assert!(
        batches[1].columns.iter().all(|column| column.is_empty()) && batches[1].weights.is_empty(),
        "an empty micro-batch is an empty batch"
    );
    assert_eq!(images(&batches[2])[0], 999.0);
    assert_eq!(batches[2].fields.len(), 2);
    assert_eq!(batches[2].column("mask"), None);
}

#[test]
fn loaded_batches_come_without_waiting() {
    let mut loader =
        Loader::start(Arc::new(Numbers::default()), options(2), work(&[&[5, 8], &[1], &[999]]).into_iter())
            .unwrap();
    assert_eq!(indices(&loader.next().unwrap().unwrap()), [5.0, 8.0]);
    let second = loop {
        match loader.next_if_loaded() {
            Some(batch) => break batch.unwrap(),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert_eq!(indices(&second), [1.0]);
    assert_eq!(indices(&loader.next().unwrap().unwrap()), [999.0]);
    assert!(loader.next_if_loaded().is_none() && loader.next().is_none());
}

#[test]
fn augmentation_depends_on_seed_epoch_and_sample() {
    let noise = |seed, epoch, augment| {
        let work = vec![MicroBatch::of(epoch, vec![1, 7, 1])];
        let batch =
            &all(Arc::new(Numbers::default()), LoaderOptions { seed, augment, ..options(2) }, work)[0];
        [images(batch)[1], images(batch)[4], images(batch)[7]]
    };
    let first = noise(1, 0, true);
    assert_eq!(first[0], first[2], "the same sample in the same epoch");
    assert_ne!(first[0], first[1]);
    assert_eq!(first, noise(1, 0, true));
    assert_ne!(first, noise(2, 0, true));
    assert_ne!(first, noise(1, 1, true));
    assert_eq!(noise(1, 0, false), [0.0; 3]);
}

#[test]
fn prefetching_is_bounded() {
    let set = Arc::new(Numbers::default());
    let endless = (0..).map(|epoch| MicroBatch::of(epoch, vec![1; 4]));
    let mut loader = Loader::start(set.clone(), options(4), endless).unwrap();
    assert!(eventually(|| set.loaded.load(Ordering::SeqCst) == 12));
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(set.loaded.load(Ordering::SeqCst), 12, "3 batches of 4");
    loader.next().unwrap().unwrap();
    assert!(eventually(|| set.loaded.load(Ordering::SeqCst) == 16));
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(set.loaded.load(Ordering::SeqCst), 16);
}

#[test]
fn one_batch_is_shared_by_all_threads() {
    let set = Arc::new(Numbers { held: AtomicBool::new(true), ..Numbers::default() });
    let once = LoaderOptions { prefetch_batches: 1, ..options(4) };
    let mut loader = Loader::start(set.clone(), once, work(&[&[1; 16]]).into_iter()).unwrap();
    assert!(eventually(|| set.running.load(Ordering::SeqCst) == 4), "four threads are at the same batch");
    set.held.store(false, Ordering::SeqCst);
    assert_eq!(labels(&loader.next().unwrap().unwrap()), [1; 16]);
    assert!(loader.next().is_none());
    assert!(loader.next().is_none());
}

#[test]
fn reused_memory_does_not_change_batches() {
    let set = Arc::new(Numbers { bad: Some(3), ..Numbers::default() });
    let plan = work(&[&[900; 50], &[1, 3], &[2; 9]]);
    let fresh = all(set.clone(), options(2), plan.clone());
    let mut loader =
        Loader::start(set, LoaderOptions { prefetch_batches: 1, ..options(2) }, plan.into_iter()).unwrap();
    let mut addresses = Vec::new();
    for expected in fresh {
        let batch = loader.next().unwrap().unwrap();
        assert_eq!(batch, expected);
        addresses.push(images(&batch).as_ptr());
        // A thread may open the next batch before this memory is recycled, or after it.
        loader.recycle(batch);
    }
    for _ in 0..10 {
        loader.recycle(Batch { columns: vec![Column::F32(vec![0.0; 9])], ..Batch::default() });
    }
    assert!(loader.shared.lock().spare.len() <= 2);
}

#[test]
fn memory_of_another_data_set_is_not_used() {
    let plan: Vec<MicroBatch> = work(&[&[4, 5], &[6], &[7, 8, 9], &[1]]);
    let expected = all(Arc::new(Numbers::default()), options(2), plan.clone());
    let once = LoaderOptions { prefetch_batches: 1, ..options(2) };
    let mut loader = Loader::start(Arc::new(Numbers::default()), once, plan.into_iter()).unwrap();
    for expected in expected {
        loader.recycle(Batch {
            columns: vec![Column::I64(vec![3; 5]), Column::F32(vec![])],
            ..Batch::default()
        });
        assert_eq!(loader.next().unwrap().unwrap(), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Order and content equal those of one thread with one batch at a time.
    #[test]
    fn content_is_independent_of_threads(
        batches in prop::collection::vec(prop::collection::vec(0u32..1000, 0..20), 0..12),
        threads in 1usize..9,
        prefetch_batches in 0usize..6,
        bad in 0usize..1000,
    ) {
        let plan: Vec<MicroBatch> = (0..).zip(&batches).map(|(epoch, indices)| MicroBatch::of(epoch, indices.clone())).collect();
        let set = Arc::new(Numbers { slow: true, bad: Some(bad), ..Numbers::default() });
        let alone = all(set.clone(), LoaderOptions { threads: 0, prefetch_batches: 0, ..options(1) }, plan.clone());
        let shared = all(set, LoaderOptions { prefetch_batches, ..options(threads) }, plan);
        prop_assert_eq!(alone.len(), batches.len());
        prop_assert_eq!(alone, shared);
    }

    /// The same samples in other micro-batches are the same images.
    #[test]
    fn content_is_independent_of_the_partition(cut in 1usize..20, threads in 1usize..5) {
        let set: Arc<dyn Dataset> = Arc::new(Generated::new(5, 100, 6, 1, Split::Train).with_changes(Changes::new(&Augment::ResizedCropFlip.changes())));
        let indices: Vec<u32> = (0..40).rev().collect();
        let whole = all(set.clone(), options(threads), vec![MicroBatch::of(2, indices.clone())]);
        let pieces = indices.chunks(cut).map(|piece| MicroBatch::of(2, piece.to_vec())).collect();
        let pieces: Vec<f32> = all(set, options(1), pieces).iter().flat_map(|batch| images(batch).to_vec()).collect();
        prop_assert_eq!(images(&whole[0]), &pieces);
    }
}

#[test]
fn a_sample_that_stands_twice_in_an_epoch_has_two_random_changes() {
    let place = |repeat| Place { sample: 7, repeat };
    let work = MicroBatch { places: vec![place(0), place(1), place(0)], ..MicroBatch::of(0, []) };
    let batch =
        &all(Arc::new(Numbers::default()), LoaderOptions { augment: true, ..options(2) }, vec![work])[0];
    let changes = [1, 4, 7].map(|at| images(batch)[at]);
    assert!(changes[0] != changes[1] && changes[0] == changes[2], "{changes:?}");
}
