//! `model.losses`.

use super::*;
use crate::StepLoss;

pub(super) const LOSSES: &str = r#"
task = "program"
[data]
root = "/data"
[model]
file = "/m/towers.pt2"
state = { queue = "append", centre = "mean" }
losses = [
  { name = "clip" },
  { name = "balance", weight = 0.5 },
]
[train]
effective_batch = 48
steps = 10
"#;

#[test]
fn losses_have_their_settings() {
    let recipe = parse(LOSSES, &["model.losses.0.right=captions"]).unwrap();
    let [StepLoss::Clip(clip), StepLoss::Balance(balance)] = &recipe.model.losses[..] else {
        panic!("{:?}", recipe.model.losses)
    };
    assert_eq!((clip.left.as_str(), clip.right.as_str(), clip.weight), ("image_embeds", "captions", 1.0));
    assert_eq!((balance.gates.as_str(), balance.weight), ("gates", 0.5));
}

#[test]
fn wrong_losses_are_errors_that_name_the_loss() {
    for (list, key, part) in [
        ("[{name=\"clap\"}]", "model.losses[0].name", "\"clip\", \"siglip\", \"supcon\", \"balance\""),
        ("[{name=\"clip\", weight=0}]", "model.losses[0].weight", "a number above 0"),
        ("[{name=\"supcon\", temperature=0}]", "model.losses[0].temperature", "a number above 0"),
        ("[{name=\"clip\", gates=\"g\"}]", "model.losses[0].gates", "takes weight, left, right, scale"),
        ("[{name=\"balance\", top=0}]", "model.losses[0].top", "from 1 to"),
        ("[{name=\"clip\"}, {name=\"clip\", weight=1}]", "model.losses[1]", "the loss is there twice"),
    ] {
        expect_error(LOSSES, &[&format!("model.losses={list}")], key, part);
    }
    let alone = ["train.effective_batch=1"];
    expect_error(
        LOSSES,
        &alone,
        "model.losses[0]",
        "has no other to compare it with; raise train.effective_batch",
    );
    let balance = ["train.effective_batch=1", "model.losses=[{name=\"balance\"}]"];
    parse(LOSSES, &balance).unwrap();
    expect_set_error(LOSSES, "model.compile=graph", "a step with model.losses is not captured");
    expect_error(
        SMALL,
        &["model.losses=[{name=\"clip\"}]"],
        "model.losses",
        "it applies to task = \"program\"",
    );
}
