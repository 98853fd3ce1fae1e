//! Classes of images, from folders or generated: data for several tasks.

use std::path::Path;
use std::sync::Arc;

use dtrain_common::text::counted;
use dtrain_recipe::{Augment, DataKind, Orientation, Recipe, Resize};
use tch::{Kind, TchError, Tensor};

use super::{Loss, SurveyContext, TaskError};
use crate::data::error::MOST_NAMED;
use crate::data::generated_set::Painter;
use crate::data::ignored::EXTENSIONS;
use crate::data::{
    self, CacheBudget, CheckReport, DataError, Dataset, Depth, Generated, GeneratedSet, Ignored, ImageFolder,
    ImageIndex, ImageList, ImageOptions, Marks, Needs, Normalize, Split, cache_bytes,
};

/// Image folders as found by rank 0, without unreadable images: (training, test); None if generated.
pub(super) type Survey = Option<(ImageIndex, ImageIndex)>;

/// The data sets of a run, and the number of classes.
pub(super) struct ImageSets {
    pub(super) train: Arc<dyn Dataset>,
    pub(super) test: Arc<dyn Dataset>,
    pub(super) classes: usize,
    /// Names of the classes in the order of their numbers; empty for generated images.
    pub(super) class_names: Vec<String>,
}

/// Checks the paths of the recipe, and returns the data's.
pub(super) fn checked_root(recipe: &Recipe) -> Result<&Path, TaskError> {
    recipe.check_paths()?;
    Ok(recipe.data.root.as_deref().unwrap_or(Path::new(".")))
}

/// Scans and checks the image folders; None for generated images. One class is an error if `classifies`.
pub(super) fn survey(
    recipe: &Recipe,
    classifies: bool,
    context: &mut SurveyContext<'_>,
) -> Result<Survey, TaskError> {
    let DataKind::Folder = recipe.data.kind else { return Ok(None) };
    let root = checked_root(recipe)?;
    let train = ImageIndex::scan(root, &recipe.data.train, None)?;
    if let ([class], true) = (train.classes.as_slice(), classifies) {
        let (path, class) = (root.join(&train.split), class.clone());
        return Err(DataError::OneClass(path, class).into());
    }
    let train = check_and_filter(&train, recipe, context)?;
    let mut test = ImageIndex::scan(root, &recipe.data.test, Some(&train.classes))?;
    test.size = train.size;
    let test = check_and_filter(&test, recipe, context)?;
    Ok(Some((train, test)))
}

fn check_and_filter(
    list: &ImageIndex,
    recipe: &Recipe,
    context: &mut SurveyContext<'_>,
) -> Result<ImageIndex, TaskError> {
    let report = check_files(list, needs(recipe), &list.split, &list.ignored, context)?;
    Ok(list.without_bad(&report)?)
}

pub(super) fn needs(recipe: &Recipe) -> Needs {
    let data = &recipe.data;
    Needs { channels: data.channels, resize: data.resize, orientation: data.orientation }
}

/// Checks every file of a list. Warns of files that are `ignored` by name and of unreadable files.
pub(super) fn check_files(
    list: &impl ImageList,
    needs: Needs,
    split: &str,
    ignored: &Ignored,
    context: &mut SurveyContext<'_>,
) -> Result<CheckReport, TaskError> {
    if ignored.files() > 0 {
        (context.warn)(format!(
            "ignoring {} in {split}: {ignored}; images end in {}, and are in the class folders if there are any",
            counted(ignored.files(), "file"),
            EXTENSIONS.join(", ")
        ));
    }
    let depth = Depth::for_len(list.count());
    let report =
        data::check(list, needs, depth, context.threads, &mut progress_callback(context.report, split));
    for bad in report.bad.iter().take(MOST_NAMED) {
        (context.warn)(format!("{} cannot be read and is left out: {}", bad.path, bad.reason));
    }
    if !report.bad.is_empty() {
        let (bad, count) = (report.bad.len(), list.count());
        let first = format!("; the first {MOST_NAMED} are listed above");
        let named = if bad > MOST_NAMED { &first } else { "" };
        (context.warn)(format!("{bad} of {count} images in {split} cannot be read and are left out{named}"));
    }
    report_marks(&report.marks, needs.orientation, split, context);
    Ok(report)
}

fn report_marks(marks: &Marks, orientation: Orientation, split: &str, context: &mut SurveyContext<'_>) {
    let turned = counted(marks.turned.files, "file");
    match orientation {
        _ if marks.turned.files == 0 => {}
        Orientation::Stored => (context.warn)(format!(
            "the EXIF orientation of {turned} in {split} is ignored: {}; to turn them as viewers do, set \
             data.orientation = \"exif\"",
            marks.turned
        )),
        Orientation::Exif => {
            (context.report)(format!("turning {turned} in {split} by EXIF orientation: {}", marks.turned))
        }
    }
    if marks.lossy_maps.files > 0 {
        (context.warn)(format!(
            "lossy compression has changed the numbers of {} in {split}: {}; export the maps again as PNG, or as TIFF without JPEG",
            counted(marks.lossy_maps.files, "file"),
            marks.lossy_maps
        ));
    }
}

/// Returns a callback that reports progress through many files.
pub(super) fn progress_callback<'a>(
    report: &'a mut dyn FnMut(String),
    folder: &'a str,
) -> impl FnMut(usize, usize) {
    /// Files between two reports.
    const REPORT_EVERY: usize = 50_000;
    let mut reported = 0;
    move |done, total| {
        if done - reported >= REPORT_EVERY {
            reported = done;
            report(format!("checked {done} of {total} images in {folder}"));
        }
    }
}

/// Returns the preparation of training images (with the recipe's augmentation) and of test images (without).
/// They share the cache for decoded images. `size` is the size of images that are not resized.
pub(super) fn options(
    recipe: &Recipe,
    size: Option<(u32, u32)>,
    local_ranks: usize,
) -> (ImageOptions, ImageOptions) {
    let data = &recipe.data;
    let side = data.image_size as u32;
    let test = ImageOptions {
        channels: data.channels,
        size: size.unwrap_or((side, side)),
        resize: data.resize,
        orientation: data.orientation,
        normalize: Normalize::new(&data.mean, &data.std),
        augment: Augment::None,
        cache: CacheBudget::new(cache_bytes(data.cache, local_ranks)),
    };
    let train = ImageOptions { augment: data.augment, ..test.clone() };
    (train, test)
}

/// Returns width and height of images that keep the size `found`, if they do, and those of the network's input.
pub(super) fn sizes(recipe: &Recipe, found: Option<(u32, u32)>) -> (Option<(u32, u32)>, (usize, usize)) {
    let own = found.filter(|_| recipe.data.resize == Resize::None);
    let square = (recipe.data.image_size, recipe.data.image_size);
    (own, own.map_or(square, |(width, height)| (width as usize, height as usize)))
}

/// Applies the recipe's normalisation and random changes to a generated set.
pub(super) fn prepared<P: Painter>(set: GeneratedSet<P>, recipe: &Recipe) -> GeneratedSet<P> {
    let data = &recipe.data;
    set.with_normalize(Normalize::new(&data.mean, &data.std)).with_augment(data.augment)
}

pub(super) fn sets(recipe: &Recipe, survey: Survey, local_ranks: usize) -> ImageSets {
    let data = &recipe.data;
    let Some((train, test)) = survey else {
        let generated = |samples, split| {
            let set = Generated::new(data.classes, samples, data.image_size, recipe.train.seed, split);
            prepared(set, recipe)
        };
        return ImageSets {
            train: Arc::new(generated(data.train_samples, Split::Train)),
            test: Arc::new(generated(data.test_samples, Split::Test)),
            classes: data.classes,
            class_names: Vec::new(),
        };
    };
    let (classes, class_names) = (train.classes.len(), train.classes.clone());
    let (own, _) = sizes(recipe, train.size);
    let (train_options, test_options) = options(recipe, own, local_ranks);
    let train = Arc::new(ImageFolder::new(train, train_options));
    ImageSets { train, test: Arc::new(ImageFolder::new(test, test_options)), classes, class_names }
}

/// Returns the mean of each sample over all dimensions after the first.
pub(super) fn sample_means(values: &Tensor) -> Result<Tensor, TchError> {
    values.f_flatten(1, -1)?.f_mean_dim([1i64].as_slice(), false, Kind::Float)
}

/// Computes the weighted loss from the loss of each image, N, and, if known, whether each was right, N.
pub(super) fn loss_of(losses: &Tensor, right: Option<Tensor>, weights: &Tensor) -> Result<Loss, TaskError> {
    let sums = match right {
        Some(right) => right.f_mul(weights)?.f_sum(Kind::Double)?.f_view([1])?,
        None => Tensor::f_zeros([0], (Kind::Double, losses.device()))?,
    };
    Ok(Loss { sum: losses.f_mul(weights)?.f_sum(Kind::Float)?, weight: weights.f_sum(Kind::Double)?, sums })
}
