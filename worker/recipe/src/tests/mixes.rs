//! `data.mix`, and samples that stand several times in an epoch.

use super::samples::{LM, MIXED, PROGRAM, REGRESS, SEGMENT};
use super::*;
use crate::mixes::{Cutmix, Mixup, shares};
use crate::{Mix, MixBy, Sampler};

#[test]
fn mixes_have_their_defaults_and_divide_the_samples() {
    let recipe = parse(MIXED, &[]).unwrap();
    let (mixup, cutmix) = (Mixup { alpha: 0.8, share: None }, Cutmix { alpha: 1.0, share: Some(0.25) });
    assert_eq!(recipe.data.mix, [Mix::Mixup(mixup), Mix::Cutmix(cutmix)]);
    assert_eq!(
        (recipe.data.mix_by, recipe.data.sampler, recipe.data.copies),
        (MixBy::Step, Sampler::Repeated, 2)
    );
    assert_eq!(shares(&recipe.data.mix), [0.75, 0.25]);
    let both = small(&["data.mix=[{name=\"mixup\"}, {name=\"cutmix\"}]"]);
    assert_eq!((shares(&both.data.mix), both.data.mix_by), (vec![0.5, 0.5], MixBy::Sample));
    assert_eq!(shares(&small(&["data.mix=[{name=\"cutmix\", share=0.1}]"]).data.mix), [0.1]);
    assert_eq!(small(&[]).data.mix, []);
    let [(key, ..)] = &both.differences(&small(&[]))[..] else { panic!("one difference") };
    assert_eq!(key, "data.mix");
    // An older recipe keeps the order of its samples.
    assert_eq!(small(&["data.sampler=repeated"]).data.copies, 3);
    parse(SMALL, &["task=regress", "model.file=/m.pt2", "data.mix=[{name=\"mixup\"}]"]).unwrap();
}

#[test]
fn wrong_mixes_are_errors() {
    for (list, key, part) in [
        ("[{name=\"mix\"}]", "data.mix[0].name", "\"mixup\", \"cutmix\""),
        ("[{name=\"mixup\", alpha=0}]", "data.mix[0].alpha", "a number above 0"),
        ("[{name=\"mixup\", alpha=-1}]", "data.mix[0].alpha", "a number above 0"),
        ("[{name=\"mixup\", share=0}]", "data.mix[0].share", "above 0"),
        ("[{name=\"mixup\", lambda=1}]", "data.mix[0].lambda", "takes alpha, share"),
        ("[{name=\"mixup\"}, {name=\"mixup\"}]", "data.mix[1]", "the mix is there twice"),
        (
            "[{name=\"mixup\", share=0.6}, {name=\"cutmix\", share=0.5}]",
            "data.mix[1]",
            "mix 1.1 of the samples",
        ),
        (
            "[{name=\"mixup\", share=1}, {name=\"cutmix\"}]",
            "data.mix[1]",
            "the other entries mix all samples",
        ),
        ("{name=\"mixup\"}", "data.mix", "expected a list such as"),
    ] {
        expect_error(SMALL, &[&format!("data.mix={list}")], key, part);
    }
    let mix = "data.mix=[{name=\"mixup\"}]";
    expect_set_error(SMALL, "data.mix_by=step", "there is no data.mix");
    expect_error(
        SMALL,
        &[mix, "train.effective_batch=1"],
        "data.mix",
        "a step of one sample has no other to mix with it",
    );
    for (set, part) in [
        ("model.loss={ program = \"x.pt2\" }", "a loss of your own cannot be mixed"),
        (
            "data.changes=[{ name = \"program\", program = \"x.pt2\" }]",
            "a change of your own comes after the mixing",
        ),
    ] {
        expect_error(SMALL, &[mix, set], "data.mix", part);
    }
    for text in [LM, SEGMENT] {
        expect_error(
            text,
            &[mix],
            "data.mix",
            "it applies to task = \"classify\" and \"regress\" and \"program\"",
        );
    }
    expect_error(REGRESS, &[mix], "data.mix", "a number of each pixel cannot be mixed");
    let with = |more: &[&str], part| {
        let sets = [&["task=program", "model.file=/m.pt2", mix], more].concat();
        expect_error(SMALL, &sets, "data.mix", part);
    };
    with(&["data.pairs=true"], "data.pairs gives each sample a partner too");
    with(&["data.episodes.n_way=3"], "data.episodes decides the images of a sample");
    with(&["model.losses=[{name=\"supcon\"}]"], "a loss over all samples of a step cannot be mixed");
    let heads =
        "model.loss=[{ name = \"cross-entropy\" }, { name = \"focal\", output = \"a\", target = \"label\" }]";
    expect_error(
        SMALL,
        &["model.file=/m.pt2", mix, heads],
        "data.mix",
        "losses of several outputs cannot be mixed",
    );
    expect_error(PROGRAM, &[mix], "data.mix", "it applies to images");
}

#[test]
fn any_images_can_be_repeated_and_texts_cannot() {
    assert!(parse(SEGMENT, &["data.sampler=repeated"]).is_ok());
    expect_set_error(SMALL, "data.copies=2", "it applies to data.sampler = \"repeated\"");
    expect_error(SMALL, &["data.sampler=repeated", "data.copies=1"], "data.copies", "from 2");
    expect_error(LM, &["data.sampler=repeated"], "data.sampler", "it applies to classes");
    let lines = ["data.sampler=repeated", "data.documents=lines"];
    expect_error(LM, &lines, "data.sampler", "documents have no random changes");
}
