//! Samples of several single samples: pairs and episodes.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::dataset::{Column, Dataset, Field, LABEL, Members, columns_for};
use super::error::Result;
use super::mixing::Blend;
use super::rng::SampleRng;
use super::sampler::episodes::{EpisodeShape, Episodes};
use super::sampler::pairs::partners;

/// Samples that are made of several single samples, their members. The sampler decides the members of a training sample;
/// those of an evaluation never change.
pub struct Groups {
    fields: Vec<Field>,
    parts: Vec<Part>,
    singles: Arc<dyn Dataset>,
    members: Numbers,
}

/// The members of a sample whose number alone is given, as in evaluations: the same in every run.
enum Numbers {
    /// Itself and its partner. Training does not need the list.
    Pairs(OnceLock<Vec<u32>>),
    Episodes(Episodes),
    /// These support samples, class by class, and one of the first `queries` samples as every query.
    Asked {
        support: Vec<u32>,
        queries: usize,
    },
}

/// Members that stand next to each other, and their fields.
#[derive(Debug)]
struct Part {
    /// The beginning of the name of a member's field.
    prefix: &'static str,
    members: usize,
    /// In an episode, how many members in turn are of one class. None: the part is one member, whose fields keep their shape.
    of_class: Option<usize>,
}

impl Groups {
    /// Makes pairs of the samples of a set: the fields of a sample, and those of its partner with names that begin with
    /// `pair_`.
    pub fn pairs(singles: Arc<dyn Dataset>) -> Self {
        let part = |prefix| Part { prefix, members: 1, of_class: None };
        Self::new(singles, vec![part(""), part("pair_")], Numbers::Pairs(OnceLock::new()))
    }

    /// Makes episodes of the samples of a set, class by class: the fields of `support` samples have names that begin with
    /// `support_`, those of `query` samples begin with `query_`, both with the samples as their first dimension. The field
    /// `label` numbers the classes of the episode.
    pub fn episodes(singles: Arc<dyn Dataset>, episodes: Episodes) -> Self {
        Self::new(singles, parts(episodes.shape), Numbers::Episodes(episodes))
    }

    /// Makes episodes of the same `support` samples, class by class, which ask for the classes of the first `queries` samples.
    pub fn asked(
        singles: Arc<dyn Dataset>,
        shape: EpisodeShape,
        (support, queries): (Vec<u32>, usize),
    ) -> Self {
        Self::new(singles, parts(shape), Numbers::Asked { support, queries })
    }

    fn new(singles: Arc<dyn Dataset>, parts: Vec<Part>, members: Numbers) -> Self {
        let field = |part: &Part, field: &Field| Field {
            name: Cow::Owned(format!("{}{}", part.prefix, field.name)),
            shape: part
                .of_class
                .map(|_| part.members)
                .into_iter()
                .chain(field.shape.iter().copied())
                .collect(),
            ..field.clone()
        };
        let fields =
            parts.iter().flat_map(|part| singles.fields().iter().map(|one| field(part, one))).collect();
        Self { fields, parts, singles, members }
    }
}

/// Returns the parts of an episode.
fn parts(shape: EpisodeShape) -> Vec<Part> {
    let part = |prefix, of_class| Part { prefix, members: shape.ways * of_class, of_class: Some(of_class) };
    vec![part("support_", shape.shots), part("query_", shape.queries)]
}

impl Members for Groups {
    fn singles(&self) -> &dyn Dataset {
        &*self.singles
    }

    fn width(&self) -> usize {
        self.parts.iter().map(|part| part.members).sum()
    }

    fn of(&self, index: usize) -> Vec<u32> {
        assert!(index < self.len(), "sample {index} of {}", self.len());
        match &self.members {
            Numbers::Episodes(episodes) => episodes.fixed(index),
            Numbers::Asked { support, .. } => {
                let queries = self.width() - support.len();
                support.iter().copied().chain(std::iter::repeat_n(index as u32, queries)).collect()
            }
            Numbers::Pairs(all) => {
                let own = || (0..self.singles.len() as u32).collect::<Vec<_>>();
                vec![index as u32, all.get_or_init(|| partners(&own(), 0, 0))[index]]
            }
        }
    }

    fn put(&self, member: usize, single: &[Column], _blend: Option<&Blend>, out: &mut [Column]) {
        let fields = self.singles.fields();
        let (mut first, mut columns) = (0, out.chunks_mut(fields.len()));
        for part in &self.parts {
            let Some(columns) = columns.next() else { return };
            let Some(row) = member.checked_sub(first).filter(|row| *row < part.members) else {
                first += part.members;
                continue;
            };
            for ((field, from), column) in fields.iter().zip(single).zip(columns) {
                let range: Range<usize> = row * from.len()..(row + 1) * from.len();
                match part.of_class {
                    Some(of_class) if field.name == LABEL => {
                        column.i64()[range].fill((row / of_class) as i64)
                    }
                    _ => column.copy(range, from),
                }
            }
            return;
        }
    }
}

impl Dataset for Groups {
    fn len(&self) -> usize {
        match &self.members {
            Numbers::Pairs(_) => self.singles.len(),
            Numbers::Episodes(episodes) => episodes.count,
            Numbers::Asked { queries, .. } => *queries,
        }
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn load(&self, index: usize, mut random: Option<&mut SampleRng>, out: &mut [Column]) -> Result<()> {
        let mut single = columns_for(self.singles.fields(), 1);
        for (at, member) in self.of(index).into_iter().enumerate() {
            self.singles.load(member as usize, random.as_deref_mut(), &mut single)?;
            self.put(at, &single, None, out);
        }
        Ok(())
    }

    fn describe(&self, index: usize) -> String {
        self.singles.describe(self.of(index)[0] as usize)
    }

    fn groups(&self) -> Option<&dyn Members> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::packed::Packed;
    use super::super::sampler::Sampler as _;
    use super::super::{EpisodeShape, Generated, Loader, LoaderOptions, MicroBatch, Place, Split, load_one};
    use super::*;

    #[test]
    fn an_episode_holds_its_members_class_by_class() {
        let singles = Arc::new(Generated::new(5, 40, 4, 1, Split::Train));
        let classes = Packed::write((0..40).map(|sample| sample % 5)).unwrap();
        let shape = EpisodeShape { ways: 3, shots: 1, queries: 2 };
        let episodes = Episodes::new(shape, 7, &classes).unwrap();
        let set = Groups::episodes(singles.clone(), episodes.clone());
        assert_eq!((set.len(), set.width(), set.singles().len()), (7, 9, 40));
        let named: Vec<_> = set.fields().iter().map(|field| (&*field.name, &*field.shape)).collect();
        let expected: [(&str, &[usize]); 4] = [
            ("support_image", &[3, 3, 4, 4]),
            ("support_label", &[3]),
            ("query_image", &[6, 3, 4, 4]),
            ("query_label", &[6]),
        ];
        assert_eq!(named, expected);

        let members = episodes.epoch(3, 1);
        let options = LoaderOptions { threads: 2, prefetch_batches: 1, seed: 3, augment: true };
        let places = members[9..27].iter().map(|&sample| Place::first(sample)).collect();
        let work = MicroBatch { places, width: 9, ..MicroBatch::of(1, []) };
        let set = Arc::new(set);
        let batch = Loader::start(set.clone(), options, [work].into_iter()).unwrap().next().unwrap().unwrap();
        assert_eq!(batch.column("support_label").unwrap().as_i64().unwrap(), [0, 1, 2, 0, 1, 2]);
        assert_eq!(batch.column("query_label").unwrap().as_i64().unwrap()[..6], [0, 0, 1, 1, 2, 2]);
        let images = |name: &str| batch.column(name).unwrap().as_f32().unwrap().into_owned();
        let alone = |sample: u32| {
            let one = load_one(singles.as_ref(), sample as usize, None).unwrap();
            one[0].as_f32().unwrap().into_owned()
        };
        let pixels = 3 * 4 * 4;
        for (name, first, each) in [("support_image", 0, 3), ("query_image", 3, 6)] {
            for episode in 0..2 {
                for member in 0..each {
                    let at = (episode * each + member) * pixels;
                    let sample = members[9 * (1 + episode) + first + member];
                    assert_eq!(images(name)[at..at + pixels], alone(sample), "{name} {episode} {member}");
                }
            }
        }
        // By itself, as in an evaluation, an episode has its own members.
        let fixed = load_one(set.as_ref(), 2, None).unwrap();
        assert_eq!(fixed[0].as_f32().unwrap()[..pixels], alone(set.of(2)[0]));
        assert_eq!(set.of(2), episodes.epoch(0, 0)[18..27]);
    }
}
