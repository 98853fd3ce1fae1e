#![allow(clippy::unwrap_used)]

use super::*;

/// Returns the bytes of the slots of this many chunks.
fn places<T>(chunks: usize) -> u64 {
    (chunks * (size_of::<OnceLock<Box<Chunk<T>>>>() + size_of::<Chunk<T>>() + OVERHEAD_BYTES)) as u64
}

#[test]
fn a_large_set_takes_memory_only_for_what_is_kept() {
    let budget = CacheBudget::new(40 << 20);
    let cache = Cache::new(10_000_000, budget.clone());
    assert!(budget.used() < 3 << 20);
    cache.insert_with(5_000_000, 1000, || 7);
    assert_eq!(cache.get(5_000_000), Some(&7));
    assert!(budget.used() < 3 << 20);
}

#[test]
fn the_first_samples_are_kept_within_the_bound() {
    let places = places::<u32>(1);
    let each = 1000 + (size_of::<u32>() + OVERHEAD_BYTES) as u64;
    let budget = CacheBudget::new(places + 3 * each + 5);
    let cache = Cache::new(10, budget.clone());
    for index in 0..10u32 {
        assert_eq!(cache.get(index as usize), None);
        cache.insert_with(index as usize, 1000, || index);
    }
    // A small one still fits.
    cache.insert_with(7, 0, || panic!("an entry that has no room is not made"));
    let found: Vec<Option<&u32>> = (0..10).map(|index| cache.get(index)).collect();
    assert_eq!(found[..3], [Some(&0), Some(&1), Some(&2)]);
    assert!(found[3..].iter().all(Option::is_none));
    assert_eq!(budget.used(), places + 3 * each);
    // A kept entry is not replaced.
    cache.insert_with(0, 1000, || 99);
    assert_eq!(cache.get(0), Some(&0));
    drop(cache);
    assert_eq!(budget.used(), 0);
}

#[test]
fn without_memory_nothing_is_kept_or_counted() {
    let budget = CacheBudget::default();
    let cache = Cache::new(5, budget.clone());
    cache.insert_with(0, 0, || 1);
    assert_eq!(cache.get(0), None);
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
                    assert!(cache.get(index).is_none_or(|&kept| kept == index));
                }
            });
        }
    });
    let kept = (0..200).filter(|&index| cache.get(index).is_some()).count() as u64;
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
