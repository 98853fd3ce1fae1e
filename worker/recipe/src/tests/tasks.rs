//! The tasks: their defaults, their kinds of data and the settings of `[data]`.

use super::samples::{BINARY, CUSTOM, LM, LM_GENERATED, SEGMENT};
use super::*;

fn read(text: &str) -> Recipe {
    parse(text, &[]).unwrap()
}

#[test]
fn a_segmentation_has_its_own_defaults() {
    let recipe = read("task = \"segment\"\n[data]\nroot = \"/s\"\nclasses = 3\n[train]\nepochs = 1\n");
    assert_eq!(recipe.model.name, Some(ModelName::Unet));
    assert_eq!((recipe.model.width, recipe.model.depth), (Some(32), Some(4)));
    assert_eq!((recipe.model.heads, recipe.model.patch), (None, None));
    let data = &recipe.data;
    assert_eq!((data.kind, data.masks, data.ignore), (DataKind::Folder, Masks::Index, Some(255)));
    assert_eq!([&data.train_masks, &data.test_masks], ["train_masks", "test_masks"]);
    assert_eq!(data.classes, 3);
    assert_eq!(read(BINARY).data.classes, 2, "binary masks");
    let generated = parse(SMALL, &["task=segment"]).unwrap();
    assert_eq!((generated.data.classes, generated.data.kind), (10, DataKind::Generated));
}

#[test]
fn a_language_model_has_its_own_defaults() {
    let recipe = read("task = \"lm\"\n[data]\nroot = \"/t\"\n[train]\nepochs = 1\n");
    let data = &recipe.data;
    assert_eq!((data.kind, data.augment), (DataKind::Text, Augment::Shift));
    assert_eq!((data.tokenizer.clone(), data.test_fraction), (Tokenizer::Chars, 0.1));
    let model = &recipe.model;
    assert_eq!(model.name, Some(ModelName::Gpt));
    assert_eq!(
        (model.width, model.depth, model.heads, model.context, model.patch),
        (Some(384), Some(6), Some(6), Some(256), None)
    );
}

#[test]
fn torchscript_is_gone() {
    for (text, key, word) in [(SMALL, "task", "torchscript"), (CUSTOM, "model.loss", "module")] {
        expect_error(text, &[&format!("{key}={word}")], key, "by `dtrain import MODEL -o FILE.pt2`");
    }
    expect_set_error(SMALL, "model.name=torchscript", "expected one of");
}

#[test]
fn a_custom_task_takes_any_settings() {
    let recipe = read(CUSTOM);
    assert_eq!(recipe.data.mean, [0.5]);
    assert_eq!((recipe.data.image_size, recipe.data.resize), (7, Resize::None));
    assert_eq!((recipe.model.heads, recipe.model.patch), (Some(7), Some(5)));
    assert_eq!(recipe.custom["noise"].as_float(), Some(0.5));
    assert_eq!(recipe.custom["inner"]["list"][1]["b"].as_float(), Some(2.0));
    // JSON has no dates, so dates are read as texts.
    assert_eq!(recipe.custom["seen"].as_str(), Some("2024-02-29"));
    recipe.check_paths().unwrap();

    let alone = read("task = \"custom\"\n[train]\nsteps = 2\n[custom]\n");
    assert_eq!((&alone.data, &alone.model, alone.custom.len()), (&Data::default(), &Model::default(), 0));
    // The engine's settings are checked for every task.
    expect_set_error(CUSTOM, "data.image_size=0", "a whole number");
    expect_set_error(CUSTOM, "model.wdth=3", "did you mean `width`?");
    expect_set_error(CUSTOM, "optim.momentum=0.9", "has no effect");
    expect_set_error(CUSTOM, "custom=3", "expected a section with the settings of your trainer");
    expect_error(
        CUSTOM,
        &["custom.a.b=[1, nan]"],
        "custom",
        "NaN cannot be saved with a run; use finite numbers",
    );
    expect_error(
        SMALL,
        &["custom.a=3"],
        "custom",
        "it applies to task = \"custom\", and the task is \"classify\"",
    );
    expect_error("task = \"lm\"\n[train]\nsteps = 1", &[], "data", "missing");
}

#[test]
fn a_task_takes_its_kinds_of_data() {
    expect_set_error(
        SMALL,
        "data.kind=text",
        "takes the kinds \"folder\", \"generated\", \"table\", \"cub\", \"json-list\", \"shards\", \"parquet\", not \"text\"",
    );
    expect_set_error(SEGMENT, "data.kind=text", "task = \"segment\" takes");
    let kinds = "takes the kinds \"generated\", \"text\", \"tokens\", \"table\", \"shards\", \"parquet\", not \"folder\"";
    expect_set_error(LM, "data.kind=folder", kinds);
    // A wrong pairing is reported before the settings that it makes useless.
    let text =
        "task = \"classify\"\n[data]\nimage_size = 32\nkind = \"text\"\nroot = \"/x\"\n[train]\nepochs = 1\n";
    expect_error(text, &[], "data.kind", "takes the kinds");
}

#[test]
fn a_task_takes_its_augmentations() {
    expect_set_error(
        SMALL,
        "data.augment=shift",
        "takes \"none\", \"flip\", \"crop-flip\", \"resized-crop-flip\", not \"shift\"",
    );
    expect_set_error(LM, "data.augment=flip", "takes \"none\", \"shift\", not \"flip\"");
    assert_eq!(parse(LM, &["data.augment=none"]).unwrap().data.augment, Augment::None);
}

#[test]
fn settings_of_other_data_have_no_effect() {
    let folder = "task = \"classify\"\n[data]\nroot = \"/x\"\n[train]\nepochs = 1\n";
    for (text, set, part) in [
        (LM, "data.image_size=32", "images"),
        (LM, "data.resize=crop", "images"),
        (LM, "data.channels=3", "images"),
        (LM, "data.mean=[0, 0, 0]", "images"),
        (LM, "data.std=[1, 1, 1]", "images"),
        (LM, "data.cache=auto", "images"),
        (LM, "data.train=a", "images"),
        (LM, "data.test=a", "images"),
        (LM, "data.classes=5", "the tokens of its text"),
        (LM, "data.train_samples=5", "data.kind is \"text\""),
        (LM, "data.masks=index", "masks"),
        (LM_GENERATED, "data.root=/x", "generated"),
        (LM_GENERATED, "data.test_fraction=0.5", "data.test_samples"),
        (SMALL, "data.tokenizer=chars", "texts"),
        (SMALL, "data.test_fraction=0.5", "texts"),
        (SMALL, "data.cache=auto", "generated"),
        (SMALL, "data.resize=crop", "have the size data.image_size"),
        (folder, "data.masks=index", "it applies to masks, and the task is \"classify\""),
        (folder, "data.train_masks=a", "masks"),
        (folder, "data.test_masks=a", "masks"),
        (folder, "data.ignore=3", "masks"),
        (folder, "data.classes=3", "the class folders determine it"),
        (SEGMENT, "data.train_samples=3", "data.kind is \"folder\""),
        (BINARY, "data.image_size=32", "data.resize is \"none\""),
    ] {
        expect_set_error(text, set, "this setting has no effect");
        expect_set_error(text, set, part);
    }
    for key in ["train_masks", "test_masks", "masks"] {
        let (value, key) = (if key == "masks" { "index" } else { "a" }, format!("data.{key}"));
        let set = format!("{key}={value}");
        expect_error(SMALL, &["task=segment", &set], &key, "generated data has no files");
    }
    // Pixels of one generated class can be left out of the loss.
    assert_eq!(parse(SMALL, &["task=segment", "data.ignore=0"]).unwrap().data.ignore, Some(0));
}

#[test]
fn data_needs_a_location() {
    let without_root = |text: &str| text.replace("root = ", "# ");
    expect_error(&without_root(LM), &[], "data.root", "name a text file (.txt) or a folder of them");
    expect_error(&without_root(SEGMENT), &[], "data.root", "the train and test folders");
}

#[test]
fn means_match_the_channels() {
    let one = "the list has 1 numbers, but data.channels is 3; give one number for each channel, or set data.channels = 1";
    expect_error(FULL, &["data.channels=1"], "data.mean", "the list has 3 numbers, but data.channels is 1");
    expect_set_error(SMALL, "data.mean=[0.5]", one);
    expect_set_error(SMALL, "data.std=[0.5]", one);
    expect_set_error(SMALL, "data.channels=1", "generated images have 3 channels, not 1");
    let recipe =
        parse(FULL, &["data.channels=4", "data.mean=[0, 0, 0, 0]", "data.std=[1, 2, 3, 4]"]).unwrap();
    assert_eq!((recipe.data.mean, recipe.data.std), (vec![0.0; 4], vec![1.0, 2.0, 3.0, 4.0]));
}

#[test]
fn masks_have_classes_and_separate_folders() {
    let unknown = SEGMENT.replace("classes = 7", "");
    expect_error(&unknown, &[], "data.classes", "missing; state the number of classes in the masks");
    expect_set_error(BINARY, "data.classes=3", "binary masks have 2 classes, not 3");
    assert!(parse(BINARY, &["data.classes=2"]).is_ok());
    expect_set_error(SEGMENT, "data.train_masks=image", "\"image\" is the folder of the images");
    expect_set_error(SEGMENT, "data.test_masks=image_test", "the folder of the images");
    for (set, part) in [
        ("data.ignore=65536", "from 0 to 65535"),
        ("data.ignore=-1", "from 0 to 65535"),
        ("data.channels=65", "from 1 to 64"),
        ("data.channels=0", "from 1 to 64"),
        ("data.masks=png", "\"index\", \"binary\""),
        ("data.resize=fit", "\"crop\", \"stretch\", \"none\""),
        ("data.train_masks=../up", "the name of a folder below data.root"),
        ("data.cache=4 apples", "\"auto\", \"off\" or a size such as \"4 GiB\""),
        ("data.cache=-1", "\"auto\", \"off\" or a size"),
        ("data.cache=9e99 PiB", "\"auto\", \"off\" or a size"),
    ] {
        expect_set_error(SEGMENT, set, part);
    }
    expect_set_error(LM, "data.test_fraction=0", "above 0 and below 1");
    expect_set_error(LM, "data.test_fraction=1", "above 0 and below 1");
}

#[test]
fn the_cache_is_a_word_or_a_size() {
    for (value, cache) in [
        ("auto", Cache::Auto),
        ("off", Cache::Off),
        ("4 GiB", Cache::Size(ByteSize(4 << 30))),
        ("1000", Cache::Size(ByteSize(1000))),
    ] {
        let recipe = parse(SEGMENT, &[&format!("data.cache={value}")]).unwrap();
        assert_eq!(recipe.data.cache, cache);
        round_trip(&recipe);
    }
}
