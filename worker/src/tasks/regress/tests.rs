#![allow(clippy::unwrap_used)]

use super::*;

/// A coloured image of one pixel, as PNG.
const COLOURED: &[u8] =
    b"\x89\x50\x4e\x47\x0d\x0a\x1a\x0a\x00\x00\x00\x0d\x49\x48\x44\x52\x00\x00\x00\x01\x00\x00\x00\x01\
    \x08\x02\x00\x00\x00\x90\x77\x53\xde\x00\x00\x00\x0c\x49\x44\x41\x54\x78\x9c\x63\xf8\xcf\xc0\x00\
    \x00\x03\x01\x01\x00\xc9\xfe\x92\xef\x00\x00\x00\x00\x49\x45\x4e\x44\xae\x42\x60\x82";

#[test]
fn coloured_maps_alone_are_named_as_unreadable() {
    let root = tempfile::tempdir().unwrap();
    for folder in ["train", "train_masks", "test", "test_masks"] {
        std::fs::create_dir(root.path().join(folder)).unwrap();
        std::fs::write(root.path().join(folder).join("1.png"), COLOURED).unwrap();
    }
    std::fs::write(root.path().join("m.pt2"), "").unwrap();
    let text = format!(
        "task = \"regress\"\n[data]\nroot = {:?}\ntarget = \"map\"\ntrain = \"train\"\ntrain_masks = \"train_masks\"\n\
         test = \"test\"\ntest_masks = \"test_masks\"\n[model]\nfile = {:?}\n[train]\nsteps = 1\n",
        root.path(),
        root.path().join("m.pt2")
    );
    let recipe = dtrain_recipe::Recipe::parse("test", &text, &[]).unwrap();
    let error = SurveyContext::with_log(|context| Regress::survey(&recipe, context))
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(error.contains("this image has 3 channels"), "{error}");
}
