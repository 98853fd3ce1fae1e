#![allow(clippy::unwrap_used)]

use serde::Deserialize;

use super::super::error::SampleError;
use super::super::normalize::Normalize;
use super::super::plane::Placement;
use super::super::raster::{Values, View};
use super::super::sampler::Place;
use super::super::tests::images::reference;
use super::super::{Batch, Loader, LoaderOptions, MicroBatch};
use super::*;

/// timm's Mixup of a few images: `tests/parity/make_mix.py` makes it.
#[derive(Debug, Deserialize)]
struct Case {
    /// Height and width.
    size: [usize; 2],
    /// 8-bit images in planes.
    stored: Vec<Vec<u8>>,
    samples: Vec<Expected>,
}

#[derive(Debug, Deserialize)]
struct Expected {
    share: f64,
    middle: Option<[f64; 2]>,
    mixed: Vec<f32>,
}

fn case() -> Case {
    serde_json::from_slice(&std::fs::read(reference("mix.json")).unwrap()).unwrap()
}

impl Expected {
    fn blend(&self) -> Blend {
        Blend { share: self.share, form: self.middle.map_or(Form::Mean, Form::Rectangle) }
    }
}

/// The images of the case with their numbers as labels, stored by 8 bits or normalised; one may be unreadable.
struct Images {
    case: Case,
    fields: [Field; 2],
    unreadable: Option<usize>,
}

impl Images {
    fn new(is_stored: bool) -> Self {
        let case = case();
        let shape = [3, case.size[0], case.size[1]];
        let image = match is_stored {
            true => Field::image("image", shape, Normalize::default()),
            false => Field::f32("image", shape),
        };
        Self { case, fields: [image, Field::i64("label", [])], unreadable: None }
    }

    fn normalised(&self, index: usize) -> Vec<f32> {
        let mut values = Vec::new();
        Normalize::default().look_up(&self.case.stored[index], self.case.size.iter().product(), &mut values);
        values
    }
}

impl Dataset for Images {
    fn len(&self) -> usize {
        self.case.stored.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn load(&self, index: usize, _random: Option<&mut SampleRng>, out: &mut [Column]) -> Result<()> {
        let [height, width] = self.case.size;
        let stored = &self.case.stored[index];
        let interleaved = (0..stored.len()).map(|at| stored[at % 3 * height * width + at / 3]).collect();
        match &mut out[0] {
            Column::F32(values) => values.copy_from_slice(&self.normalised(index)),
            other => other
                .pixels()
                .write(View::whole(&Values::U8(interleaved), width, height, 3), Placement::default()),
        }
        out[1].i64()[0] = index as i64;
        if self.unreadable == Some(index) { Err(SampleError::Empty) } else { Ok(()) }
    }

    fn describe(&self, index: usize) -> String {
        format!("image {index}")
    }
}

/// Requests each image with the one at the other end, as timm does.
fn requested(blends: Vec<Option<Blend>>) -> MicroBatch {
    let last = blends.len() as u32 - 1;
    let places = (0..=last).flat_map(|at| [Place::first(at), Place::first(last - at)]).collect();
    MicroBatch { places, width: 2, blends, ..MicroBatch::of(0, []) }
}

fn loaded(images: Images, work: Vec<MicroBatch>) -> Vec<Batch> {
    let options = LoaderOptions { threads: 2, prefetch_batches: 2, seed: 1, augment: true };
    Loader::start(Arc::new(Mixed::new(Arc::new(images))), options, work.into_iter())
        .unwrap()
        .map(Result::unwrap)
        .collect()
}

fn numbers(batch: &Batch, name: &str) -> Vec<f32> {
    batch.column(name).unwrap().as_f32().unwrap().into_owned()
}

fn labels(batch: &Batch, name: &str) -> Vec<i64> {
    batch.column(name).unwrap().as_i64().unwrap().to_vec()
}

#[test]
fn mixed_images_are_those_of_timm() {
    let samples = case().samples;
    let work = requested(samples.iter().map(|one| Some(one.blend())).collect());
    for is_stored in [true, false] {
        let batch = &loaded(Images::new(is_stored), vec![work.clone()])[0];
        let expected: Vec<f32> = samples.iter().flat_map(|one| one.mixed.iter().copied()).collect();
        let found = numbers(batch, "image");
        assert_eq!(found.len(), expected.len());
        let far = found.iter().zip(&expected).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
        assert!(far < 1e-5, "{far}");
        assert_eq!(labels(batch, "label"), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(labels(batch, "mix_label"), [7, 6, 5, 4, 3, 2, 1, 0]);
        for (one, found) in samples.iter().zip(numbers(batch, SHARE)) {
            // The share of an image with a rectangle is that of the pixels left, not the drawn one.
            assert_eq!((f64::from(found) - one.share).abs() < 1e-6, one.middle.is_none(), "{one:?} {found}");
        }
    }
}

/// Images that a rectangle alone changes still are bytes, which go to a GPU as they are.
#[test]
fn rectangles_leave_bytes() {
    let images = Images::new(true);
    let rows = images.case.size[0];
    let plain = images.case.stored[2].clone();
    let blend = Blend { share: 0.5, form: Form::Rectangle([0.999, 0.5]) };
    let batch =
        &loaded(images, vec![requested([vec![None; 2], vec![Some(blend)], vec![None; 5]].concat())])[0];
    let Some(Column::Pixels(pixels)) = batch.column("image") else { panic!("images") };
    let Values::U8(values) = pixels.values() else { panic!("bytes") };
    let own = &values[2 * plain.len()..3 * plain.len()];
    assert_ne!(own, plain);
    assert_eq!(own[..rows], plain[..rows], "the first rows");
}

#[test]
fn samples_that_are_not_mixed_are_as_they_were() {
    let images = Images::new(true);
    let expected: Vec<f32> = (0..8).flat_map(|at| images.normalised(at)).collect();
    let batch = &loaded(images, vec![requested(vec![None; 8])])[0];
    assert_eq!(numbers(batch, "image"), expected);
    assert_eq!(numbers(batch, SHARE), [1.0; 8]);
    assert_eq!(labels(batch, "mix_label"), labels(batch, "label"));
    // As in evaluations, where the number alone is given; memory of a mixed batch is used again.
    let mean = Blend { share: 0.25, form: Form::Mean };
    let work = vec![requested(vec![Some(mean); 8]), MicroBatch::of(0, 0..8)];
    let batch = &loaded(Images::new(true), work)[1];
    assert_eq!(numbers(batch, "image"), expected);
    assert_eq!(numbers(batch, SHARE), [1.0; 8]);
    let set = Mixed::new(Arc::new(Images::new(true)));
    let alone = super::super::load_one(&set, 5, None).unwrap();
    assert_eq!(alone[0].as_f32().unwrap()[..], expected[5 * 189..6 * 189]);
    assert_eq!((alone[2].as_i64().unwrap(), &*alone[3].as_f32().unwrap()), (&[5][..], &[1.0][..]));
}

/// A partner that is not needed is not loaded.
#[test]
fn a_mixed_sample_needs_its_partner_and_another_does_not() {
    let mean = Some(Blend { share: 0.5, form: Form::Mean });
    let work = || requested(vec![mean, None, mean, mean, mean, mean, None, mean]);
    let weights = |unreadable| {
        loaded(Images { unreadable: Some(unreadable), ..Images::new(true) }, vec![work()])[0].weights.clone()
    };
    assert_eq!(weights(0), [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]);
    assert_eq!(weights(1), [1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
}
