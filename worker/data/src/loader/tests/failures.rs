//! Bad images, panics, and ends in the middle.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::super::super::dataset::{Column, Field};
use super::super::super::error::{BadSample, SampleError};
use super::super::super::packed::Packed;
use super::super::super::rng::SampleRng;
use super::super::super::sampler::Place;
use super::super::super::{EpisodeShape, Episodes, FileSet, Groups, ImageOptions};
use super::super::*;
use super::numbers::{Numbers, all, images, indices, labels, options, work};
use crate::tests::images::{png, put, train};

#[test]
fn a_bad_image_has_no_weight_and_is_named() {
    let set = Numbers { bad: Some(8), ..Numbers::default() };
    let batch = &all(Arc::new(set), options(3), work(&[&[5, 8, 9, 8]]))[0];
    assert_eq!(batch.weights, [1.0, 0.0, 1.0, 0.0]);
    assert_eq!(batch.unreadable().collect::<Vec<_>>(), [8, 8]);
    assert_eq!([batch.bad[0].place, batch.bad[1].place], [1, 3]);
    assert_eq!((labels(batch)[0], labels(batch)[2], images(batch)[6]), (5, 2, 9.0));
    let bad = BadSample { index: 8, path: "number 8".to_owned(), reason: "the file is empty".to_owned() };
    let at = |place| BadPlace { place, sample: bad.clone() };
    assert_eq!(batch.bad, [at(1), at(3)]);
}

#[test]
fn a_readable_image_stands_in_for_a_bad_one_whatever_the_batches_and_threads() {
    let values = |threads, batches: &[&[u32]]| -> Vec<f32> {
        let set = Numbers { bad: Some(8), ..Numbers::default() };
        let of_one = |indices: &&[u32]| MicroBatch::of(4, indices.to_vec());
        let all = all(Arc::new(set), options(threads), batches.iter().map(of_one).collect());
        let image = |batch: &Batch, place: usize| images(batch)[3 * place..3 * place + 3].to_vec();
        let bad = all.iter().flat_map(|batch| batch.bad.iter().map(|bad| image(batch, bad.place)));
        bad.flatten().collect()
    };
    let alone = values(1, &[&[8]]);
    // The number of a sample, its random change, and a constant.
    assert!(alone[0] != 8.0 && alone[0].fract() == 0.0 && alone[1] > 0.0 && alone[2] == -1.0, "{alone:?}");
    assert_eq!(values(3, &[&[5, 8, 9], &[1, 2, 3, 8]]), [&alone[..], &alone].concat());
    // If no sample is readable, none replaces another.
    let (_root, index) = train(&[("a", 3)]);
    (0..3).for_each(|image| put(index.image_path(image), b""));
    let set = FileSet::new(index, ImageOptions::square(8));
    let batch = &all(Arc::new(set), options(2), work(&[&[0, 1, 2]]))[0];
    assert_eq!((batch.bad.len(), &*batch.weights), (3, &[0.0; 3][..]));
}

#[test]
fn a_file_damaged_after_the_check_costs_one_image() {
    let (_root, index) = train(&[("a", 3)]);
    put(index.image_path(1), &png(8, 8)[..40]);
    let set = FileSet::new(index, ImageOptions::square(8));
    let batch = &all(Arc::new(set), options(2), work(&[&[0, 1, 2]]))[0];
    assert_eq!(batch.weights, [1.0, 0.0, 1.0]);
    assert!(
        batch.bad[0].sample.path.ends_with("a/001.png") && batch.bad[0].sample.reason.starts_with("damaged")
    );
}

#[test]
fn dropping_in_the_middle_stops_at_once() {
    let set = Arc::new(Numbers { slow: true, ..Numbers::default() });
    let endless = (0..).map(|epoch| MicroBatch::of(epoch, 0..1000));
    let mut loader = Loader::start(set.clone(), options(4), endless).unwrap();
    loader.next().unwrap().unwrap();
    let start = Instant::now();
    drop(loader);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(Arc::strong_count(&set), 1, "no thread is left");
    assert!(set.loaded.load(Ordering::SeqCst) < 4000);
    drop(Loader::start(set, options(2), std::iter::empty()).unwrap());
}

#[test]
fn a_panic_in_a_sample_becomes_an_error_in_order() {
    for threads in [1, 3] {
        let set = Numbers { panics: Some(6), ..Numbers::default() };
        let mut loader =
            Loader::start(Arc::new(set), options(threads), work(&[&[1, 2], &[5, 6, 7], &[8]]).into_iter())
                .unwrap();
        assert_eq!(indices(&loader.next().unwrap().unwrap()), [1.0, 2.0]);
        let text = loader.next().unwrap().unwrap_err().to_string();
        assert!(text.starts_with("loading stopped at sample 6: made to fail;"), "{text}");
        assert!(loader.next().is_none());
    }
}

#[test]
fn a_sample_out_of_range_becomes_an_error() {
    let mut loader =
        Loader::start(Arc::new(Numbers::default()), options(2), work(&[&[1000]]).into_iter()).unwrap();
    assert!(loader.next().unwrap().unwrap_err().to_string().contains("sample 1000 of 1000"));
    assert!(loader.next().is_none());
}

#[test]
fn a_panic_in_the_plan_becomes_an_error_in_order() {
    let plan = (0..).map(|epoch| {
        assert!(epoch < 2, "no third batch");
        MicroBatch::of(epoch, vec![4])
    });
    let mut loader = Loader::start(Arc::new(Numbers::default()), options(2), plan).unwrap();
    assert_eq!(indices(&loader.next().unwrap().unwrap()), [4.0]);
    assert_eq!(indices(&loader.next().unwrap().unwrap()), [4.0]);
    let text = loader.next().unwrap().unwrap_err().to_string();
    assert!(text.starts_with("loading stopped at the plan of the next batch: no third batch"), "{text}");
    assert!(loader.next().is_none());
}

/// A data set whose files cannot be read, for one reason.
struct Unreadable(Errno, [Field; 1], AtomicUsize);

impl Dataset for Unreadable {
    fn len(&self) -> usize {
        1000
    }
    fn fields(&self) -> &[Field] {
        &self.1
    }
    fn load(&self, _: usize, _: Option<&mut SampleRng>, _: &mut [Column]) -> Result<(), SampleError> {
        self.2.fetch_add(1, Ordering::SeqCst);
        Err(SampleError::Read(self.0.into()))
    }
    fn describe(&self, index: usize) -> String {
        index.to_string()
    }
}

#[test]
fn during_an_outage_one_other_sample_is_tried() {
    for (error, loads) in [(Errno::IO, 2), (Errno::STALE, 2), (Errno::TIMEDOUT, 2), (Errno::NOENT, 17)] {
        let set = Arc::new(Unreadable(error, [Field::i64("x", [])], AtomicUsize::new(0)));
        let batch = &all(set.clone(), options(1), work(&[&[5]]))[0];
        assert_eq!((batch.bad.len(), batch.weights[0]), (1, 0.0));
        assert_eq!(set.2.load(Ordering::SeqCst), loads, "{error:?}");
    }
}

/// A data set whose `fields` panics: the threads end before they load anything.
struct Hopeless;

impl Dataset for Hopeless {
    fn len(&self) -> usize {
        0
    }
    fn fields(&self) -> &[Field] {
        panic!("no fields")
    }
    fn load(&self, _: usize, _: Option<&mut SampleRng>, _: &mut [Column]) -> Result<(), SampleError> {
        Ok(())
    }
    fn describe(&self, _: usize) -> String {
        String::new()
    }
}

#[test]
fn panicking_threads_do_not_hang_the_loader() {
    let mut loader = Loader::start(Arc::new(Hopeless), options(2), work(&[&[0]]).into_iter()).unwrap();
    assert!(loader.next().unwrap().unwrap_err().to_string().contains("no fields"));
    assert!(loader.next().is_none());
}

#[test]
fn a_sample_whose_partner_is_bad_does_not_count() {
    let set = Groups::pairs(Arc::new(Numbers { bad: Some(8), ..Numbers::default() }));
    let work = MicroBatch { width: 2, ..MicroBatch::of(0, [5, 9, 8, 5, 9, 8]) };
    let batch = &all(Arc::new(set), options(2), vec![work])[0];
    assert_eq!(batch.weights, [1.0, 0.0, 0.0]);
    assert_eq!(batch.unreadable().collect::<Vec<_>>(), [8, 8], "the bad sample, not its partner");
    assert_eq!([batch.bad[0].place, batch.bad[1].place], [1, 2]);
    let names: Vec<_> = batch.fields.iter().map(|field| &*field.name).collect();
    assert_eq!(names, ["image", "label", "pair_image", "pair_label"]);
    let own = batch.column("image").unwrap().as_f32().unwrap();
    let partner = batch.column("pair_image").unwrap().as_f32().unwrap();
    assert_eq!((own[0], partner[0]), (5.0, 9.0));
    // The random change of a sample is the same wherever it stands.
    let alone = &all(Arc::new(Numbers::default()), options(1), work_of(&[9]))[0];
    assert_eq!(partner[..3], images(alone)[..3]);
}

#[test]
fn an_episode_keeps_the_members_beside_a_bad_one() {
    let classes = Packed::write((0..1000).map(|sample| sample / 500)).unwrap();
    let shape = EpisodeShape { ways: 2, shots: 1, queries: 1 };
    let episodes = Episodes::new(shape, 3, &classes).unwrap();
    let set = Groups::episodes(Arc::new(Numbers { bad: Some(8), ..Numbers::default() }), episodes);
    let places = |samples: [u32; 4]| samples.map(Place::first);
    let places = [places([5, 900, 8, 901]), places([8, 900, 7, 8])].concat();
    let batch =
        &all(Arc::new(set), options(2), vec![MicroBatch { places, width: 4, ..MicroBatch::of(0, []) }])[0];
    assert_eq!(batch.weights, [0.0, 0.0]);
    let bad: Vec<_> = batch.bad.iter().map(|bad| (bad.place, bad.sample.index)).collect();
    assert_eq!(bad, [(0, 8), (1, 8), (1, 8)], "each member that cannot be read");
    let numbers = |field: &str| -> Vec<f32> {
        let values = batch.column(field).unwrap().as_f32().unwrap();
        values.iter().copied().step_by(3).collect()
    };
    let (support, query) = (numbers("support_image"), numbers("query_image"));
    assert_eq!((support[0], support[1], query[1]), (5.0, 900.0, 901.0));
    assert_eq!((support[3], query[2]), (900.0, 7.0));
    assert_eq!((support[2], query[3]), (query[0], query[0]), "another sample replaces it, always the same");
    assert_ne!(query[0], 8.0);
}

#[test]
fn an_image_has_other_changes_each_time_that_it_comes() {
    let set = || Groups::pairs(Arc::new(Numbers::default()));
    let place = |sample, repeat| Place { sample, repeat };
    let work = |repeat| MicroBatch {
        places: vec![place(4, 0), place(4, repeat)],
        width: 2,
        ..MicroBatch::of(0, [])
    };
    let noise = |repeat| {
        let batch = &all(Arc::new(set()), options(1), vec![work(repeat)])[0];
        let of = |field: &str| batch.column(field).unwrap().as_f32().unwrap()[1];
        [of("image"), of("pair_image")]
    };
    assert_eq!(noise(0)[0], noise(0)[1]);
    assert_ne!(noise(1)[0], noise(1)[1]);
    assert_eq!(noise(1)[0], noise(0)[0]);
}

fn work_of(indices: &[u32]) -> Vec<MicroBatch> {
    vec![MicroBatch::of(0, indices.to_vec())]
}
