//! Checks of `data.changes` that concern several settings.

use crate::changes::{Change, Program};
use crate::sample_losses::not_imported;
use crate::{Data, DataKind, Resize};

/// Returns why the list of changes cannot be applied to the images, with the number of the change.
pub(super) fn problem(data: &Data) -> Option<(usize, &'static str)> {
    let (changes, channels) = (&data.changes, data.channels);
    changes.iter().enumerate().find_map(|(at, change)| {
        let same = |other: &Change| std::mem::discriminant(other) == std::mem::discriminant(change);
        let problem = match change {
            _ if changes[..at].iter().any(same) => "the change is there twice; remove one of the two",
            Change::Program(Program { program: None }) => {
                "`program` needs the file of the change; set program = \"FILE.pt2\""
            }
            Change::Program(_) if at + 1 < changes.len() => "it changes finished images, so put it last",
            Change::Program(Program { program: Some(file) }) => not_imported(file)?,
            Change::ResizedCrop(_) | Change::RandomCrop(_) if changes[..at].iter().any(takes_part) => {
                "`resized-crop` and `random-crop` both take a part of the file; remove one of the two"
            }
            Change::RandomCrop(_) if data.kind == DataKind::Generated => {
                "it takes a part of a scaled file, and generated data has no files; remove it"
            }
            Change::RandomCrop(_) if data.resize == Resize::None => {
                "it takes a part of the scaled image; set data.resize = \"crop\" or \"stretch\""
            }
            Change::RandomCrop(_) if data.crop_fraction == 1.0 => {
                "it takes a part of the scaled image; set data.crop_fraction to that part of a side, such as 0.875"
            }
            change if takes_part(change) && at > 0 => "it takes a part of the file, so put it first",
            _ if channels != 3 && needs_colours(change) => {
                "it changes colours, so it applies to data.channels = 3; remove it"
            }
            _ => of_settings(change)?,
        };
        Some((at, problem))
    })
}

/// Returns whether a change takes a part of the file.
fn takes_part(change: &Change) -> bool {
    matches!(change, Change::ResizedCrop(_) | Change::RandomCrop(_))
}

/// Returns whether a change mixes red, green and blue.
fn needs_colours(change: &Change) -> bool {
    match change {
        Change::Jitter(jitter) => jitter.saturation > 0.0 || jitter.hue > 0.0,
        Change::Grayscale(_)
        | Change::Lighting(_)
        | Change::Randaugment(_)
        | Change::Trivialaugment(_)
        | Change::Autoaugment(_) => true,
        _ => false,
    }
}

/// Returns why the settings of a change do not fit each other.
fn of_settings(change: &Change) -> Option<&'static str> {
    let rising = |[least, most]: [f64; 2]| least <= most;
    Some(match change {
        Change::ResizedCrop(crop) if !rising(crop.area) || !rising(crop.ratio) => {
            "area and ratio are the least and the largest value; put the smaller number first"
        }
        Change::ResizedCrop(crop) if crop.area[1] > 1.0 => "an image has no larger part than 1; lower area",
        Change::Jitter(jitter) if jitter.hue > 0.5 => {
            "hue is the part of the colour circle in either direction; lower it to at most 0.5"
        }
        Change::Jitter(jitter)
            if [jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue] == [0.0; 4] =>
        {
            "it changes nothing, since all settings are 0; remove it"
        }
        Change::Blur(blur) if blur.kernel % 2 == 0 => {
            "the kernel needs a pixel in its middle; set kernel to an odd number"
        }
        Change::Blur(blur) if !rising(blur.sigma) => {
            "sigma is the least and the largest value; put the smaller number first"
        }
        Change::Sharpness(sharpness) if sharpness.factor == 1.0 => {
            "it changes nothing, since factor is 1; remove it"
        }
        Change::Erasing(erasing) if !rising(erasing.area) || !rising(erasing.ratio) => {
            "area and ratio are the least and the largest value; put the smaller number first"
        }
        Change::Erasing(erasing) if erasing.area[1] > 1.0 => "an image has no larger part than 1; lower area",
        Change::Rotation(rotation) if rotation.degrees > 180.0 => {
            "degrees is the angle in either direction; lower it to at most 180"
        }
        Change::Affine(affine) if affine.degrees > 180.0 => {
            "degrees is the angle in either direction; lower it to at most 180"
        }
        Change::Affine(affine) if affine.shear >= 90.0 => "a shear has less than 90 degrees; lower shear",
        Change::Affine(affine) if !rising(affine.scale) => {
            "scale is the least and the largest value; put the smaller number first"
        }
        Change::Affine(affine)
            if [affine.degrees, affine.translate, affine.shear] == [0.0; 3] && affine.scale == [1.0; 2] =>
        {
            "it changes nothing, since all settings are neutral; remove it"
        }
        _ => return None,
    })
}
