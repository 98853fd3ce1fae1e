//! Sizes of images, networks, batches and trainings, by the data and the machine.

use super::draft::{Draft, Network, setting};
use super::machine::Machine;
use super::report::Found;

/// A GPU of this size takes the larger networks.
const LARGE_GPU: u64 = 7 << 30;
/// The least side of an image.
const LEAST_SIDE: u32 = 16;

/// Fills in the sizes.
pub(super) fn choose(draft: &mut Draft, found: &Found, machine: &Machine) {
    if draft.is_of_images() {
        images(draft, found, machine);
    }
    network(draft, found, machine);
    train(draft, found, machine);
    optim(draft);
}

fn is_large(machine: &Machine) -> bool {
    machine.bytes() >= LARGE_GPU
}

fn images(draft: &mut Draft, found: &Found, machine: &Machine) {
    // An imported model states the size of its images.
    if draft.file().is_none() {
        let size = side(draft, found, machine);
        let about = match found.size {
            Some(size)
                if size.different == 1
                    && size.median.0 == size.median.1
                    && size.median.0 == side(draft, found, machine) =>
            {
                "the size of the images"
            }
            _ => "images are brought to this width and height",
        };
        draft.data.push(setting("image_size", i64::from(size), about));
        if draft.task.name == "segment" && !draft.is_generated() {
            draft.data.push(setting("resize", "stretch", "the whole image, not its middle"));
        }
        let rounded = |part: fn(&(f64, f64)) -> f64| {
            let values = found.channels.iter().map(|channel| (part(channel) * 1e4).round() / 1e4);
            values.map(|value| toml::Value::from(value.max(1e-4))).collect::<Vec<_>>()
        };
        if draft.has("channels") && !found.channels.is_empty() {
            draft.data.push(setting(
                "mean",
                rounded(|(mean, _)| *mean),
                "of the training images, by channel",
            ));
            draft.data.push(setting("std", rounded(|(_, deviation)| *deviation), ""));
        }
    }
    if draft.task.name == "regress" && !draft.is_generated() {
        draft.data.push(setting("normalize_targets", true, "the model learns (target - mean) / deviation"));
    }
    let flips = matches!(draft.task.name, "classify" | "segment") && !draft.is_generated();
    if flips {
        let (word, about) = match draft.task.name == "classify" && is_large(machine) && found.train >= 5000 {
            true => ("resized-crop-flip", "random parts, mirrored; \"none\" for letters and digits"),
            false => ("flip", "half are mirrored; \"none\" where left is not right, as for letters"),
        };
        draft.data.push(setting("augment", word, about));
    }
}

/// Returns width and height of the network's input.
fn side(draft: &Draft, found: &Found, machine: &Machine) -> u32 {
    let most = match (machine.has_gpus(), draft.task.name) {
        (true, "segment") => 256,
        (true, _) => 224,
        (false, "segment") => 128,
        (false, _) => 96,
    };
    let Some(size) = found.size else { return if draft.task.name == "segment" { 64 } else { 32 } };
    let shorter = size.median.0.min(size.median.1);
    // Small images keep their size, others have one that networks like.
    let side = match shorter {
        0..=64 => shorter.max(LEAST_SIDE),
        _ => shorter.min(most) / 32 * 32,
    };
    if is_vit(draft) { side.next_multiple_of(patch(side)) } else { side }
}

fn is_vit(draft: &Draft) -> bool {
    matches!(&draft.network, Network::Named(name) if name == "vit")
}

/// Returns the side of a vit's patches: of small images, the usual patch would leave a handful.
fn patch(side: u32) -> u32 {
    match side {
        0..=32 => 4,
        33..=64 => 8,
        _ => 16,
    }
}

fn network(draft: &mut Draft, found: &Found, machine: &Machine) {
    let large = is_large(machine);
    let with = match (&draft.network, draft.task.name) {
        (Network::File { path, is_pretrained }, _) => {
            let about =
                if *is_pretrained { "pretrained; made by dtrain import" } else { "made by dtrain import" };
            vec![setting("file", path.to_string_lossy().as_ref(), about)]
        }
        (Network::Named(name), _) if is_vit(draft) => {
            let patch = patch(side(draft, found, machine));
            vec![setting("name", name.as_str(), ""), setting("patch", i64::from(patch), "side of a patch")]
        }
        (Network::Named(name), _) => vec![setting("name", name.as_str(), "")],
        (Network::Usual, "segment") => {
            let side = side(draft, found, machine);
            // A U-Net halves the image with every level.
            let depth = if side >= 64 { 4 } else { 2 };
            let width = if large { 32 } else { 16 };
            vec![
                setting("name", "unet", ""),
                setting("width", width, "channels of the first level; they double with every level"),
                setting("depth", depth, "times that the image is halved"),
            ]
        }
        (Network::Usual, "lm") => {
            let [width, depth, heads] = if large { [384, 6, 6] } else { [128, 4, 4] };
            vec![
                setting("name", "gpt", ""),
                setting("width", width, ""),
                setting("depth", depth, "blocks"),
                setting("heads", heads, "of the attention"),
                setting("context", context(draft, found, large), "tokens that the model sees at once"),
            ]
        }
        (Network::Usual, _) if large && found.size.is_some_and(|size| size.median.0 > 64) => {
            vec![setting("name", "resnet50", "or resnet18, which is smaller and faster")]
        }
        (Network::Usual, _) => vec![setting("name", "resnet18", "or resnet50, which is larger and slower")],
    };
    drop(draft.model.splice(0..0, with));
    if draft.file().is_some() && draft.task.name == "lm"
        || draft.has("tokenizer") && draft.task.name == "program"
    {
        let states = draft.model.iter().any(|setting| setting.key == "context");
        if !states && draft.is("kind", "text") {
            draft.model.push(setting("context", 64, "tokens of a sample"));
        }
    }
}

/// Returns the tokens of a sample. A short text must fill some.
fn context(draft: &Draft, found: &Found, large: bool) -> i64 {
    let most = if large { 256 } else { 128 };
    let is_short = !draft.is_generated() && found.tokens > 0 && found.tokens < 40 * most;
    let of_text = (found.tokens / 40).next_power_of_two() / 2;
    i64::try_from(if is_short { of_text.clamp(4, most) } else { most }).unwrap_or(128)
}

fn train(draft: &mut Draft, found: &Found, machine: &Machine) {
    let gpus = machine.has_gpus();
    let usual = match (draft.task.name, gpus) {
        ("segment", true) => 16,
        ("segment", false) => 8,
        ("lm", _) => 32,
        (_, true) => 128,
        (_, false) => 32,
    };
    let train = if draft.is_generated() { 400 } else { found.train };
    // Some steps in an epoch, and a sample for each rank.
    let most = if train == 0 { usual } else { (train / 8).next_power_of_two() / 2 };
    let least = (2 * machine.ranks()).max(4);
    let batch = usual.min(most).max(least).min(train.max(machine.ranks()));
    let rest = train % batch;
    let is_lonely = draft.is_of_images() && rest > 0 && rest < 2 * machine.ranks();
    let batch = i64::try_from(batch).unwrap_or(32);
    draft.train.push(setting(
        "effective_batch",
        batch,
        "samples of one optimizer step, on all processes together",
    ));
    if draft.task.name == "lm" && (found.train == 0 || !draft.has("fields")) {
        draft.train.push(setting("steps", if gpus { 5000 } else { 1000 }, "optimizer steps"));
    } else {
        let wanted = if gpus { 1_000_000 } else { 40_000 };
        let epochs = (wanted / train.max(1)).clamp(5, if gpus { 100 } else { 30 });
        draft.train.push(setting(
            "epochs",
            i64::try_from(epochs).unwrap_or(10),
            "passes over the training samples",
        ));
    }
    if is_lonely {
        let about = "the last samples of an epoch are too few for BatchNorm";
        draft.train.push(setting("last_batch", "drop", about));
    }
    draft.train.push(setting("seed", 1, ""));
}

fn optim(draft: &mut Draft) {
    let lr = match draft.network {
        Network::File { is_pretrained: true, .. } => 1e-4,
        Network::File { .. } => 3e-4,
        Network::Usual | Network::Named(_) => 1e-3,
    };
    let steps = draft.train.iter().any(|setting| setting.key == "steps");
    draft.optim = vec![
        setting("name", "adamw", ""),
        setting("lr", lr, "`dtrain profile RECIPE --lr-range 1e-6:1` suggests one"),
        setting("weight_decay", 0.05, ""),
        setting("clip", 1.0, "largest norm of the gradient"),
    ];
    let schedule = toml::Table::from_iter([
        ("name".to_owned(), "cosine".into()),
        ("warmup".to_owned(), if steps { "100 steps" } else { "1 epoch" }.into()),
    ]);
    draft.optim.push(setting("schedule", schedule, ""));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::report::Sizes;
    use super::*;
    use crate::tasks::TASKS;

    fn chosen(train: usize, side: u32) -> Draft {
        let mut draft = Draft::new(&TASKS[0], Network::Usual);
        let size = Some(Sizes { median: (side, side), different: 1 });
        choose(&mut draft, &Found { train, size, ..Found::default() }, &Machine::default());
        draft
    }

    fn value(draft: &Draft, key: &str) -> Option<String> {
        let all = draft.data.iter().chain(&draft.train);
        all.into_iter().find(|setting| setting.key == key).map(|setting| setting.value.clone())
    }

    #[test]
    fn small_images_keep_their_size_and_large_ones_are_made_smaller() {
        for (side, size) in [(28, "28"), (64, "64"), (500, "96"), (8, "16")] {
            assert_eq!(value(&chosen(1000, side), "image_size").unwrap(), size);
        }
    }

    #[test]
    fn the_patches_of_a_vit_fit_the_image() {
        for (side, size, patch) in [(28, 28, 4), (30, 32, 4), (50, 56, 8), (500, 96, 16)] {
            let mut draft = Draft::new(&TASKS[0], Network::Named("vit".to_owned()));
            let sizes = Some(Sizes { median: (side, side), different: 1 });
            choose(&mut draft, &Found { train: 1000, size: sizes, ..Found::default() }, &Machine::default());
            assert_eq!(value(&draft, "image_size"), Some(size.to_string()), "{side}");
            let mut model = draft.model.iter().map(|setting| format!("{}={}", setting.key, setting.value));
            assert!(model.any(|setting| setting == format!("patch={patch}")), "{side}");
        }
    }

    #[test]
    fn an_epoch_has_several_steps_and_no_sample_alone() {
        for (train, batch, last) in
            [(97, "8", Some("\"drop\"")), (96, "8", None), (4000, "32", None), (5, "4", Some("\"drop\""))]
        {
            let draft = chosen(train, 32);
            assert_eq!(value(&draft, "effective_batch").unwrap(), batch, "{train}");
            assert_eq!(value(&draft, "last_batch").as_deref(), last, "{train}");
        }
    }
}
