//! Files of images: their check before a run, and their preparation.

use std::path::Path;

use dtrain_common::text::counted;
use dtrain_recipe::{Interpolation, Orientation, Recipe, Resize, Val};

use super::super::{Checked, SetKind, SurveyContext};
use super::masks;
use super::progress::progress_callback;
use crate::data::error::MOST_NAMED;
use crate::data::generated_set::Painter;
use crate::data::ignored::EXTENSIONS;
use crate::data::{
    self, CacheBudget, Changes, CheckReport, Depth, Filter, GeneratedSet, ImageOptions, Marks, Needs,
    Normalize, Samples, too_many_bad,
};

/// Returns the path of the only source.
pub(super) fn root(recipe: &Recipe) -> &Path {
    recipe.data.root.as_deref().unwrap_or(Path::new("."))
}

fn needs(recipe: &Recipe) -> Needs {
    let data = &recipe.data;
    Needs {
        channels: data.channels,
        resize: data.resize,
        orientation: data.orientation,
        nodata: data.nodata.filter(|_| data.channels != 3),
        fill: data.fill,
    }
}

/// Checks every file of a set. Warns of files that are ignored by name and of unreadable files.
pub(super) fn check(
    samples: &Samples,
    kind: SetKind,
    recipe: &Recipe,
    context: &mut SurveyContext<'_>,
) -> CheckReport {
    let (Samples { set: split, ignored, .. }, needs) = (samples, needs(recipe));
    let depth = Depth::for_len(samples.count());
    if let Some(details) = &mut context.details {
        let progress = &mut details.progress;
        let mut progress = |done, total| progress(split, done, total);
        let report = data::check_in_detail(samples, needs, depth, context.threads, &mut progress);
        details.checks.push(Checked { kind, samples: samples.clone(), report: report.clone() });
        // The report has the other findings.
        ignored.notes().iter().for_each(|note| (context.warn)(note.clone()));
        report_nodata(&report.marks, split, context);
        masks::report_strangers(&report.marks.strangers, samples, context);
        return report;
    }
    if ignored.files() > 0 {
        (context.warn)(format!(
            "ignoring {} in {split}: {ignored}; images end in {}, and are in the class folders if there are any",
            counted(ignored.files(), "file"),
            EXTENSIONS.join(", ")
        ));
    }
    ignored.notes().iter().for_each(|note| (context.warn)(note.clone()));
    let report = data::check(samples, needs, depth, context.threads, &mut progress_callback(split));
    let is_divided = match &recipe.data.val {
        Some(Val::Part(_)) => matches!(kind, SetKind::Training | SetKind::Validation),
        Some(val) if val.of_test().is_some() => matches!(kind, SetKind::Test | SetKind::Validation),
        _ => false,
    };
    // Else an error names them. The limit of divided samples is that of both parts.
    let is_left_out = is_divided || !too_many_bad(report.bad.len(), samples.count());
    for bad in report.bad.iter().take(MOST_NAMED).filter(|_| is_left_out) {
        (context.warn)(format!("{} cannot be read and is left out: {}", bad.path, bad.reason));
    }
    if is_left_out && !report.bad.is_empty() {
        let (bad, count) = (report.bad.len(), samples.count());
        let first = format!("; the first {MOST_NAMED} are listed above");
        let named = if bad > MOST_NAMED { &first } else { "" };
        (context.warn)(format!("{bad} of {count} images in {split} cannot be read and are left out{named}"));
    }
    report_marks(&report.marks, needs.orientation, split, context);
    report_nodata(&report.marks, split, context);
    masks::report_strangers(&report.marks.strangers, samples, context);
    report
}

/// Reports the classes without a sample in the test set.
pub(super) fn report_untested(test: &Samples, context: &mut SurveyContext<'_>) {
    let (unused, all) = (test.unused_classes(), test.classes().0.len());
    if !unused.is_empty() {
        let named = unused[..unused.len().min(MOST_NAMED)].join(", ");
        let more = if unused.len() > MOST_NAMED { ", ..." } else { "" };
        let (count, set) = (unused.len(), &test.set);
        (context.report)(format!("{count} of {all} classes have no sample in {set}: {named}{more}"));
    }
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

fn report_nodata(marks: &Marks, split: &str, context: &mut SurveyContext<'_>) {
    if marks.with_nodata.files > 0 {
        (context.warn)(format!(
            "{} in {split} state a value without data (GDAL's tag), and it is used as a number: {}; to leave its pixels out, set \
             data.nodata = \"file\"",
            counted(marks.with_nodata.files, "file"),
            marks.with_nodata
        ));
    }
}

/// Returns the preparation of training images (with the recipe's random changes) and of test images (without).
/// They share the cache for decoded images. `size` is the size of images that are not resized.
pub(super) fn options(
    recipe: &Recipe,
    size: Option<(u32, u32)>,
    cache: CacheBudget,
    context: usize,
) -> (ImageOptions, ImageOptions) {
    let data = &recipe.data;
    let side = data.image_size as u32;
    let test = ImageOptions {
        channels: data.channels,
        size: size.unwrap_or((side, side)),
        resize: data.resize,
        crop_fraction: data.crop_fraction,
        filter: match data.interpolation {
            Interpolation::Bilinear => Filter::Bilinear,
            Interpolation::Bicubic => Filter::Bicubic,
        },
        orientation: data.orientation,
        context,
        decode: data.decode,
        nodata: data.nodata.filter(|_| data.channels != 3),
        fill: data.fill,
        normalize: Normalize::new(&data.mean, &data.std),
        changes: Changes::default(),
        cache,
    };
    let train = ImageOptions { changes: Changes::new(&recipe.changes()), ..test.clone() };
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
    set.with_normalize(Normalize::new(&data.mean, &data.std)).with_changes(Changes::new(&recipe.changes()))
}
