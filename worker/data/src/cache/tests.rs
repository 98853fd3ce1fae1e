#![allow(clippy::unwrap_used)]

use super::*;
use crate::cache::part::Part;
use crate::decode::Extent;
use crate::inspector::Decoded;
use crate::pixel_target::PixelTarget;
use crate::raster::{Labels, Raster, Values};

macro_rules! stored {
    ($($number:ty),*) => {$(
        impl Stored for $number {
            const HEAD_BYTES: usize = size_of::<Self>();

            fn store(&self, put: &mut dyn FnMut(&[&[u8]])) {
                put(&[&self.to_ne_bytes()]);
            }

            fn load(&mut self, block: &Block<'_>) -> bool {
                let mut bytes = [0; size_of::<Self>()];
                let is_read = block.copy(0, &mut bytes);
                *self = Self::from_ne_bytes(bytes);
                is_read
            }
        }
    )*};
}
stored!(u32, usize);

/// Returns the bytes of the slots of this many chunks.
fn places<T>(chunks: usize) -> u64 {
    (chunks * (size_of::<OnceLock<Box<Chunk<T>>>>() + size_of::<Chunk<T>>() + OVERHEAD_BYTES)) as u64
}

#[test]
fn a_large_set_takes_memory_only_for_what_is_kept() {
    let budget = CacheBudget::new(40 << 20);
    let cache = Cache::new(10_000_000, budget.clone());
    assert!(budget.used() < 3 << 20);
    cache.insert_with(5_000_000, 1000, || 7u32);
    assert_eq!(cache.get(5_000_000, &mut 0), Some(&7));
    assert!(budget.used() < 3 << 20);
}

#[test]
fn the_first_samples_are_kept_within_the_bound() {
    let places = places::<u32>(1);
    let each = 1000 + (size_of::<u32>() + OVERHEAD_BYTES) as u64;
    let budget = CacheBudget::new(places + 3 * each + 5);
    let cache = Cache::new(10, budget.clone());
    for index in 0..10u32 {
        assert_eq!(cache.get(index as usize, &mut 0), None);
        cache.insert_with(index as usize, 1000, || index);
    }
    // A small one still fits.
    cache.insert_with(7, 0, || panic!("an entry that has no room is not made"));
    let found: Vec<Option<u32>> = (0..10).map(|index| cache.get(index, &mut 0).copied()).collect();
    assert_eq!(found[..3], [Some(0), Some(1), Some(2)]);
    assert!(found[3..].iter().all(Option::is_none));
    assert_eq!(budget.used(), places + 3 * each);
    // A kept entry is not replaced.
    cache.insert_with(0, 1000, || 99);
    assert_eq!(cache.get(0, &mut 0), Some(&0));
    drop(cache);
    assert_eq!(budget.used(), 0);
}

#[test]
fn without_memory_nothing_is_kept_or_counted() {
    let budget = CacheBudget::default();
    let cache = Cache::new(5, budget.clone());
    cache.insert_with(0, 0, || 1u32);
    assert_eq!(cache.get(0, &mut 0), None);
    assert_eq!(budget.used(), 0);
}

#[test]
fn threads_agree_and_the_bound_holds() {
    let each = 100 + (size_of::<usize>() + OVERHEAD_BYTES) as u64;
    let budget = CacheBudget::new(20_000);
    let cache = Cache::new(200, budget.clone());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                for round in 0..200 {
                    let index = (round * (thread + 1)) % 200;
                    cache.insert_with(index, 100, || index);
                    assert!(cache.get(index, &mut 0).is_none_or(|&kept| kept == index));
                }
            });
        }
    });
    let kept = (0..200).filter(|&index| cache.get(index, &mut 0).is_some()).count() as u64;
    let chunks = cache.chunks.iter().filter(|chunk| chunk.get().is_some()).count();
    let unused = (cache.chunks.len() - chunks) * (size_of::<Chunk<usize>>() + OVERHEAD_BYTES);
    assert_eq!(budget.used(), places::<usize>(cache.chunks.len()) - unused as u64 + kept * each);
    assert!(kept > 50 && budget.used() <= 20_000);
}

#[test]
fn sizes_become_bytes() {
    assert_eq!(cache_bytes(recipe::Cache::Off, 2), 0);
    assert_eq!(cache_bytes(recipe::Cache::Size(recipe::ByteSize(77)), 2), 77);
    let [one, four] = [1, 4].map(|ranks| cache_bytes(recipe::Cache::Auto, ranks));
    if cfg!(target_os = "linux") {
        assert!(one > 0 && four < one / 2, "{one} {four}");
    }
}

/// Two ranks with two data sets each: what one has decoded, both find.
#[test]
fn ranks_share_what_each_has_decoded() {
    let budgets = [CacheBudget::new(4000), CacheBudget::new(4000)];
    let sets =
        budgets.each_ref().map(|budget| [4, 3].map(|samples| Cache::<u32>::new(samples, budget.clone())));
    let ticket = budgets[0].create_pool(2).unwrap().unwrap();
    budgets[1].open_pool(ticket).unwrap();
    sets[0][0].insert_with(3, 0, || 30);
    sets[1][1].insert_with(0, 0, || 40);
    sets[1][0].insert_with(3, 0, || 99);
    for [train, test] in &sets {
        let found = |set: &Cache<u32>, at| set.get(at, &mut 0).copied();
        assert_eq!((found(train, 3), found(test, 0), found(train, 0)), (Some(30), Some(40), None));
    }
    let pool = budgets[1].0.pool.get().unwrap();
    assert!(pool.used_bytes() < 8000 && !sets[0][0].has_room(3, 10) && sets[0][0].has_room(0, 7000));
    assert!(!sets[0][0].has_room(0, 8000), "a budget for each rank");
}

#[test]
fn no_pool_is_made_without_room_or_files() {
    let (small, none) = (CacheBudget::new(10), CacheBudget::new(10_000));
    let _kept = Cache::<u32>::new(5, small.clone());
    assert_eq!(small.create_pool(3).unwrap(), None);
    assert!(!none.has_places() && none.create_pool(3).unwrap().is_none());
}

#[test]
fn files_come_back_from_shared_memory_as_they_were() {
    let (own, other) = (CacheBudget::new(10_000), CacheBudget::new(10_000));
    let caches = [own.clone(), other.clone()].map(|budget| Cache::<Part>::new(9, budget));
    other.open_pool(own.create_pool(2).unwrap().unwrap()).unwrap();
    let found = Decoded { size: (9, 8), extent: Extent { denominator: 2, part: None }, is_scalable: true };
    let image = |values| Part::Image(Raster { width: 2, height: 1, channels: 2, values }, found);
    let parts = [
        image(Values::U8(vec![1, 2, 3, 255])),
        image(Values::F32(vec![0.5, -1.0, f32::MAX, 0.0])),
        Part::Target(PixelTarget::Classes(Labels { width: 1, height: 2, values: vec![7, 65535] })),
        Part::Target(PixelTarget::Numbers(Labels { width: 2, height: 1, values: vec![1.5, -7.0] })),
    ];
    let mut memory = Part::default();
    for (at, part) in parts.iter().enumerate() {
        let words = format!("{part:?}");
        let again = match part {
            Part::Image(image, found) => Part::Image(image.clone(), *found),
            Part::Target(target) => Part::Target(target.clone()),
        };
        caches[0].insert_with(at, 16, || again);
        // The memory holds another kind of file before.
        let kept = caches[1].get(at, &mut memory).unwrap();
        assert_eq!(format!("{kept:?}"), words);
    }
}
