//! The settings of `[model]`.

use super::samples::{BINARY, LM, SEGMENT, VIT};
use super::*;

#[test]
fn a_vit_has_its_own_sizes() {
    let recipe = small(&["model.name=vit"]);
    let model = recipe.model;
    assert_eq!(
        (model.width, model.depth, model.heads, model.patch, model.context),
        (Some(192), Some(12), Some(3), Some(16), None)
    );
    let recipe = small(&["model.name=vit", "model.width=48"]);
    assert_eq!((recipe.model.width, recipe.model.depth), (Some(48), Some(12)));
    assert_eq!(small(&["model.name=resnet50"]).model.width, None);
}

#[test]
fn a_task_takes_its_networks() {
    expect_set_error(
        SMALL,
        "model.name=gpt",
        "task = \"classify\" takes \"resnet18\", \"resnet34\", \"resnet50\", \"resnet101\", \"resnet152\", \"vit\", not \
         \"gpt\"",
    );
    expect_set_error(SMALL, "model.name=unet", "task = \"classify\" takes");
    expect_set_error(SEGMENT, "model.name=resnet18", "task = \"segment\" takes \"unet\", not");
    expect_set_error(LM, "model.name=vit", "task = \"lm\" takes \"gpt\", not");
    expect_set_error(SMALL, "model.name=resnet20", "did you mean");
}

#[test]
fn settings_of_other_networks_have_no_effect() {
    for (text, set, part) in [
        (SMALL, "model.width=8", "\"vit\" and \"unet\" and \"gpt\"; the model is \"resnet18\""),
        (SMALL, "model.depth=8", "the model is \"resnet18\""),
        (SMALL, "model.heads=8", "the model is \"resnet18\""),
        (SMALL, "model.patch=8", "it applies to \"vit\""),
        (SMALL, "model.context=8", "it applies to \"gpt\""),
        (LM, "model.loss=mse", "and the task is \"lm\""),
        (SEGMENT, "model.heads=8", "the model is \"unet\""),
        (LM, "model.patch=8", "the model is \"gpt\""),
        (LM, "model.batchnorm=local", "the ResNets and \"unet\"; the model is \"gpt\""),
        (LM, "model.memory_format=contiguous", "the ResNets and \"unet\"; the model is \"gpt\""),
        (LM, "model.cudnn_benchmark=true", "models with convolutions; the model is \"gpt\""),
        (VIT, "model.context=8", "the model is \"vit\""),
        (SMALL, "model.dropout=0.1", "it applies to \"vit\" and \"gpt\"; the model is \"resnet18\""),
        (LM, "model.drop_path=0.1", "it applies to \"vit\"; the model is \"gpt\""),
        (VIT, "model.batchnorm=synced", "the model is \"vit\""),
        (VIT, "model.memory_format=channels-last", "the model is \"vit\""),
    ] {
        expect_set_error(text, set, "this setting has no effect");
        expect_set_error(text, set, part);
    }
    expect_error(VIT, &["model.depth=1"], "model.drop_path", "one block has no stochastic depth");
}

#[test]
fn sizes_must_divide() {
    expect_set_error(
        VIT,
        "model.width=50",
        "a width of 50 is not divisible by 4 heads; set model.width = 52, or model.heads to a divisor of 50",
    );
    expect_error(LM, &["model.heads=5"], "model.width", "a width of 64 is not divisible by 5 heads");
    // The error names the key that the recipe states.
    expect_error(SMALL, &["model.name=vit", "model.heads=5"], "model.heads", "a width of 192");
    expect_set_error(
        VIT,
        "model.patch=7",
        "images of 32 pixels do not divide into patches of 7; set data.image_size = 35, or model.patch to a divisor of 32",
    );
    expect_error(SMALL, &["model.name=vit", "data.image_size=20"], "data.image_size", "patches of 16");
    let folder = "task = \"classify\"\n[data]\nroot = \"/x\"\nresize = \"none\"\n[model]\nname = \"vit\"\n[train]\nsteps = 1";
    expect_error(folder, &[], "data.resize", "\"vit\" needs images of a known size");
}

#[test]
fn a_unet_cannot_halve_a_pixel() {
    expect_set_error(
        SEGMENT,
        "model.depth=9",
        "a U-Net of 9 levels doubles its width 9 times; set model.depth to at most 8",
    );
    expect_set_error(
        SEGMENT,
        "model.depth=8",
        "images of 128 pixels cannot be halved 8 times; set data.image_size to at least 256",
    );
    assert!(parse(SEGMENT, &["model.depth=7"]).is_ok());
    assert!(parse(BINARY, &["model.depth=8"]).is_ok(), "the size of the images is not known yet");
}

#[test]
fn globs_are_texts() {
    for (set, part) in [
        ("model.freeze=[1]", "a list of globs"),
        ("model.freeze=[\"\"]", "a list of globs"),
        ("model.width=0", "from 1 to 65536"),
        ("model.loss=hinge", "\"mse\", \"l1\", \"huber\""),
        ("model.batchnorm=global", "\"local\", \"synced\""),
        ("model.memory_format=nhwc", "\"contiguous\", \"channels-last\""),
        ("model.cudnn_benchmark=1", "\"auto\", true or false"),
        ("model.compile=inductor", "\"off\", \"graph\""),
    ] {
        expect_set_error(SMALL, set, part);
    }
    assert_eq!(small(&["model.freeze=[]"]), small(&[]));
    let one = small(&["model.freeze=conv1.*", "model.frozen.bf16=layer1.*"]);
    assert_eq!(one, small(&["model.freeze=[\"conv1.*\"]", "model.frozen.bf16=[\"layer1.*\"]"]));
}
