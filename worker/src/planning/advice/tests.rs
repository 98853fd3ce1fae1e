#![allow(clippy::unwrap_used)]

use super::*;
use crate::planning::tests::{MIB, Machine};

const RESNET: &str = "task = \"classify\"\n[data]\nkind = \"generated\"\nimage_size = 224\n[model]\nname = \"resnet50\"\n\
                      [train]\nepochs = 1\n[ema]\ndecay = 0.99\n";

fn recipe(text: &str) -> Recipe {
    Recipe::parse("test", text, &[]).unwrap()
}

fn what(advice: &[Advice]) -> Vec<(&str, u64)> {
    advice.iter().map(|one| (one.what.as_str(), one.saves / MIB)).collect()
}

#[test]
fn advice_lines_have_their_effect() {
    let mut machine = Machine {
        overridden: vec![("image_size=192", 75), ("model.freeze", 40), ("model.name=resnet34", 60)],
        ..Machine::default()
    };
    let base = machine.prediction(&Machine::cut(2, 8, 0));
    let subject = machine.about();
    let advice = advise(&recipe(RESNET), &mut Solver::new(&subject, &mut machine), &base, Amp::Bf16);
    assert_eq!(
        what(&advice),
        [
            ("recompute all 4 segments in backward", 6144),
            ("progressive unfreezing: first train only layer4 and fc", 4915),
            ("half the micro-batch: 4 instead of 8", 4096),
            ("matrix products and convolutions in bf16; changes rounding", 4096),
            ("a smaller backbone; another experiment", 3276),
            ("images of 192 instead of 224 pixels; another experiment", 2048),
            ("shard the optimizer's state over 2 ranks", 100),
            ("no moving average: remove [ema]", 100),
        ]
    );
    assert_eq!(advice[1].setting.as_deref(), Some("model.freeze=[\"conv1.*\",\"bn1.*\",\"layer[1-3].*\"]"));
    assert!((advice[0].relative_time - 4.0 / 3.0).abs() < 1e-9);
    assert!((advice[2].relative_time - 1.125 / 1.0625).abs() < 1e-9);
    for one in &advice {
        assert_eq!(one.peak + one.saves, base.peak);
    }
    // A recipe accepts each setting.
    for setting in advice.iter().filter_map(|one| one.setting.clone()) {
        Recipe::parse("test", RESNET, std::slice::from_ref(&setting))
            .unwrap_or_else(|error| panic!("{setting}: {error}"));
    }
}

#[test]
fn advice_without_effect_is_omitted() {
    let mut machine = Machine { segments: 0, ema: false, ..Machine::default() };
    let smallest = Cut { amp: Amp::Bf16, ..Machine::cut(1, 1, 0) };
    let base = machine.prediction(&smallest);
    let subject = machine.about();
    // Overrides have no effect on this machine.
    let advice = advise(&recipe(RESNET), &mut Solver::new(&subject, &mut machine), &base, Amp::Bf16);
    assert_eq!(what(&advice), []);
}

#[test]
fn images_shrink_by_patches_or_strides() {
    let sized = |text: &str| smaller_image(&recipe(text));
    assert_eq!(sized(RESNET), Some(192));
    let vit = RESNET.replace("resnet50", "vit\"\npatch = 14 #").replace(" #\"", "");
    assert_eq!(sized(&vit), Some(210));
    assert_eq!(sized(&RESNET.replace("224", "32")), None);
    let lm = "task = \"lm\"\n[data]\nroot = \"/x\"\n[train]\nepochs = 1\n";
    assert_eq!(sized(lm), None);
}

#[test]
fn globs_name_the_first_blocks() {
    assert_eq!(below("b", 1), ["b.0.*"]);
    assert_eq!(below("b", 9), ["b.[0-8].*"]);
    assert_eq!(below("b", 24), ["b.[0-9].*", "b.1[0-9].*", "b.2[0-3].*"]);
    assert_eq!(below("b", 11), ["b.[0-9].*", "b.10.*"]);
    let unet = "task = \"segment\"\n[data]\nkind = \"generated\"\n[train]\nepochs = 1\n";
    let (words, globs) = all_but_the_last(&recipe(unet)).unwrap();
    assert_eq!(words, "the decoder");
    assert_eq!(globs, ["inc.*", "down*"]);
}
