mod images;
mod maps;
mod masks;

use dtrain_recipe::Augment;

use super::super::cache::CacheBudget;
use super::super::changes::Changes;
use super::super::normalize::Normalize;
use super::ImageOptions;

/// Options for squares whose values stay unchanged, from 0 to 1, with a cache of `bytes`.
fn options(side: u32, augment: Augment, bytes: u64) -> ImageOptions {
    ImageOptions {
        normalize: Normalize::new(&[0.0; 3], &[1.0; 3]),
        changes: Changes::new(&augment.changes()),
        cache: CacheBudget::new(bytes),
        ..ImageOptions::square(side)
    }
}
