//! `data.changes`, its words, and how images are scaled.

use super::*;
use crate::changes::{Crop, Flip, ResizedCrop};
use crate::{Augment, Change, Episodes, Sampler};

/// Class folders with every setting of how images are scaled, changed and ordered.
pub(super) const CHANGES: &str = r#"
task = "classify"
[data]
root = "/data/c"
crop_fraction = 0.875
interpolation = "bicubic"
sampler = "balanced"
changes = [
    { name = "resized-crop", area = [0.3, 1], ratio = [1.0, 2.0] },
    { name = "crop" },
    { name = "flip", share = 0.25 },
    { name = "brightness", strength = 0.2 },
    { name = "vertical-flip", share = 1 },
    { name = "rot90" },
    { name = "rotation", degrees = 30, filter = "nearest" },
    { name = "affine", degrees = 0, translate = 0, scale = [0.5, 2], shear = 8 },
    { name = "perspective", distortion = 0.2 },
    { name = "jitter", hue = 0 },
    { name = "grayscale", share = 0.2 },
    { name = "blur", kernel = 5, sigma = [0.5, 0.5] },
    { name = "solarize", threshold = 0.7 },
    { name = "posterize", bits = 3 },
    { name = "equalize" },
    { name = "autocontrast" },
    { name = "sharpness", factor = 0 },
    { name = "invert", share = 0.1 },
    { name = "lighting", strength = 0.05 },
    { name = "erasing", area = [0.1, 0.2] },
    { name = "randaugment", operations = 3, magnitude = 0 },
    { name = "trivialaugment", filter = "bilinear" },
    { name = "autoaugment" },
]
[train]
epochs = 3
"#;

#[test]
fn a_list_has_the_defaults_of_each_change() {
    let recipe = parse(CHANGES, &[]).unwrap();
    let [first, second, third, ..] = &recipe.changes()[..] else { panic!("four changes") };
    let crop = ResizedCrop { area: [0.3, 1.0], ratio: [1.0, 2.0] };
    assert_eq!(*first, Change::ResizedCrop(crop));
    assert_eq!(*second, Change::Crop(Crop { padding: 0.125 }));
    assert_eq!(*third, Change::Flip(Flip { share: 0.25 }));
    assert_eq!(recipe.data.sampler, Sampler::Balanced);
    round_trip(&recipe);
    let other = parse(CHANGES, &["data.changes.[2].share=0.3"]);
    assert!(other.is_err(), "a member of a list cannot be set");
    let other = parse(CHANGES, &["data.changes=[{name=\"flip\"}]"]).unwrap();
    assert_eq!(other.changes(), Augment::Flip.changes());
    let [(key, ..)] = &recipe.differences(&other)[..] else { panic!("one difference") };
    assert_eq!(key, "data.changes");
}

#[test]
fn words_stand_for_lists_with_the_usual_settings() {
    let of = |word: &str| parse(SMALL, &[&format!("data.augment={word}")]).unwrap().changes();
    let flip = Change::Flip(Flip { share: 0.5 });
    let crop = Change::Crop(Crop { padding: 0.125 });
    let resized = Change::ResizedCrop(ResizedCrop { area: [0.08, 1.0], ratio: [0.75, 4.0 / 3.0] });
    assert_eq!(of("none"), []);
    assert_eq!(of("flip"), std::slice::from_ref(&flip));
    assert_eq!(of("crop-flip"), [crop, flip.clone()]);
    assert_eq!(of("resized-crop-flip"), [resized, flip]);
}

#[test]
fn wrong_lists_are_errors_that_name_the_change() {
    for (list, key, part) in [
        ("3", "data.changes", "expected a list such as [{ name = \"resized-crop\" }], got"),
        ("[\"flip\"]", "data.changes", "expected a list such as"),
        (
            "[{name=\"crop\", share=0.5}]",
            "data.changes[0].share",
            "unknown key; [[data.changes]] takes padding",
        ),
        ("[{name=\"flop\"}]", "data.changes[0].name", "\"flop\""),
        (
            "[{name=\"flop\"}]",
            "data.changes[0].name",
            "\"resized-crop\", \"random-crop\", \"crop\", \"flip\", \"brightness\"",
        ),
        ("[{share=0.5}]", "data.changes[0].name", "missing; "),
        ("[{name=\"flip\", padding=0.5}]", "data.changes[0].padding", "takes share"),
        ("[{name=\"flip\", share=1.5}]", "data.changes[0].share", "a number above 0 and below 1"),
        ("[{name=\"crop\"}, {name=\"crop\"}]", "data.changes[1]", "the change is there twice"),
        ("[{name=\"flip\"}, {name=\"resized-crop\"}]", "data.changes[1]", "put it first"),
        ("[{name=\"resized-crop\", area=[0.5, 0.2]}]", "data.changes[0]", "put the smaller number first"),
        ("[{name=\"resized-crop\", area=[0.5, 1.2]}]", "data.changes[0]", "no larger part than 1"),
    ] {
        expect_error(SMALL, &[&format!("data.changes={list}")], key, part);
    }
    for (change, key, part) in [
        ("jitter\", hue=0.6", "", "lower it to at most 0.5"),
        ("jitter\", hue=-0.1", ".hue", "a number of at least 0"),
        (
            "jitter\", brightness=0, contrast=0, saturation=0, hue=0",
            "",
            "it changes nothing, since all settings are 0",
        ),
        ("grayscale\", share=0", ".share", "a number above 0 and up to 1"),
        ("blur\", kernel=4", "", "set kernel to an odd number"),
        ("blur\", kernel=1", ".kernel", "a whole number from 3 to 255"),
        ("blur\", sigma=[2, 1]", "", "put the smaller number first"),
        ("solarize\", threshold=2", ".threshold", "a number above 0 and up to 1"),
        ("posterize\", bits=8", ".bits", "a whole number from 1 to 7"),
        ("sharpness\", factor=1", "", "it changes nothing, since factor is 1"),
        ("erasing\", area=[0.3, 0.2]", "", "put the smaller number first"),
        ("erasing\", ratio=[3, 2]", "", "put the smaller number first"),
        ("erasing\", area=[0.3, 2]", "", "no larger part than 1"),
        ("rotation\", degrees=181", "", "lower it to at most 180"),
        ("rotation\", filter=\"cubic\"", ".filter", "\"bilinear\", \"nearest\""),
        ("affine\", degrees=200", "", "lower it to at most 180"),
        ("affine\", shear=90", "", "less than 90 degrees"),
        ("affine\", scale=[2, 1]", "", "put the smaller number first"),
        (
            "affine\", degrees=0, translate=0, scale=[1, 1]",
            "",
            "it changes nothing, since all settings are neutral",
        ),
        ("perspective\", distortion=0", ".distortion", "a number above 0 and up to 1"),
        ("randaugment\", magnitude=31", ".magnitude", "a whole number from 0 to 30"),
    ] {
        let key = format!("data.changes[0]{key}");
        expect_error(SMALL, &[&format!("data.changes=[{{name=\"{change}}}]")], &key, part);
    }
    let grey =
        ["data.kind=folder", "data.root=/data/c", "data.channels=1", "data.mean=[0.5]", "data.std=[0.2]"];
    for (change, fits) in [
        ("jitter\"", false),
        ("jitter\", saturation=0, hue=0", true),
        ("grayscale\"", false),
        ("lighting\"", false),
        ("autoaugment\"", false),
        ("equalize\"", true),
        ("rot90\"", true),
    ] {
        let changes = format!("data.changes=[{{name=\"{change}}}]");
        let sets = [&grey[..], &[&changes]].concat();
        match fits {
            true => drop(parse(SMALL, &sets).unwrap()),
            false => expect_error(SMALL, &sets, "data.changes[0]", "it applies to data.channels = 3"),
        }
    }
    let both = ["data.augment=flip", "data.changes=[{name=\"flip\"}]"];
    expect_error(SMALL, &both, "data.augment", "remove one of the two settings");
    let text = samples::LM;
    expect_error(text, &["data.changes=[{name=\"flip\"}]"], "data.changes", "it applies to images");
    let folder = "task = \"classify\"\n[data]\nroot = \"/d\"\n[train]\nsteps = 1\n";
    let own = ["data.resize=none", "data.crop_fraction=0.9"];
    expect_error(folder, &own, "data.crop_fraction", "data.resize = \"crop\" or \"stretch\"");
    let part = "data.changes=[{name=\"random-crop\"}]";
    let fraction = "data.crop_fraction=0.9";
    let both = "data.changes=[{name=\"resized-crop\"}, {name=\"random-crop\"}]";
    let late = "data.changes=[{name=\"flip\"}, {name=\"random-crop\"}]";
    for (sets, at, remedy) in [
        (&[part][..], 0, "set data.crop_fraction to that part of a side"),
        (&[part, "data.resize=none"], 0, "set data.resize = \"crop\" or \"stretch\""),
        (&[fraction, both], 1, "remove one of the two"),
        (&[fraction, late], 1, "so put it first"),
    ] {
        expect_error(folder, sets, &format!("data.changes[{at}]"), remedy);
    }
    expect_error(SMALL, &[part], "data.changes[0]", "generated data has no files");
    round_trip(&parse(folder, &[fraction, part, "data.resize=stretch"]).unwrap());
    expect_set_error(SMALL, "data.interpolation=bicubic", "generated data has no files");
    expect_set_error(samples::SEGMENT, "data.sampler=balanced", "it applies to classes");
    expect_set_error(SMALL, "data.pairs=true", "only a program in model.file has an input for a partner");
    let program = ["model.file=/m.pt2", "data.pairs=true", "train.effective_batch=1"];
    expect_error(SMALL, &program, "data.pairs", "a step of one sample has no partner");
}

#[test]
fn episodes_are_for_programs_and_decide_all_members() {
    let set = |more: &[&str]| parse(SMALL, &[&["task=program", "model.file=/m.pt2"], more].concat());
    let recipe = set(&["data.episodes.n_way=3"]).unwrap();
    let episodes = Episodes { n_way: 3, k_shot: 1, n_query: 15, train: 200, test: 600, val: None };
    assert_eq!(recipe.data.episodes, Some(episodes));
    round_trip(&recipe);
    let plain = set(&[]).unwrap();
    assert_eq!(plain.data.episodes, None);
    let [(key, ..)] = &recipe.differences(&plain)[..] else { panic!("one difference") };
    assert_eq!(key, "data.episodes");
    let episodes = "data.episodes.k_shot=2";
    for (other, key, part) in [
        ("data.pairs=true", "data.pairs", "remove one of the two settings"),
        ("data.sampler=balanced", "data.sampler", "remove one of the two settings"),
        ("data.target=vector", "data.episodes", "it applies to classes"),
        ("data.episodes.n_query=0", "data.episodes.n_query", "a whole number from 1"),
        ("data.episodes.shots=1", "data.episodes.shots", "n_way"),
    ] {
        expect_error(SMALL, &["task=program", "model.file=/m.pt2", episodes, other], key, part);
    }
    expect_error(SMALL, &[episodes], "data.episodes", "it applies to task = \"program\"");
}

/// An editor gets the settings of each change.
#[test]
fn the_json_schema_has_the_settings_of_each_change() {
    let schema = Recipe::schema(None).unwrap();
    let members = &schema["properties"]["data"]["properties"]["changes"]["items"]["oneOf"];
    let of = |name: &str| {
        let has = |member: &&serde_json::Value| member["properties"]["name"]["const"] == name;
        members.as_array().unwrap().iter().find(has).unwrap().clone()
    };
    assert!(of("flip")["properties"]["share"].is_object() && of("crop")["properties"]["share"].is_null());
    assert_eq!(of("flip")["required"], serde_json::json!(["name"]));
    assert_eq!(of("flip")["additionalProperties"], false);
}
