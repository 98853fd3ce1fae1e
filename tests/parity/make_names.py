"""Writes names.json: tensor names and shapes of several libraries.

Compares dtrain's models with the same models in torchvision, timm and transformers. Needs the packages of
requirements.txt and requirements-names.txt.
"""

import argparse
import json
import pathlib

import timm
import torchvision
import transformers

import make_models

RESNETS = {"resnet18": ("basic", [2, 2, 2, 2]), "resnet50": ("bottleneck", [3, 4, 6, 3])}
CLASSES = 7
VIT = {"image_size": 16, "patch": 4, "width": 24, "depth": 2, "heads": 3}
GPT = {"vocabulary": 11, "context": 8, "width": 12, "depth": 2, "heads": 3}


def shapes(model):
    return {name: list(tensor.shape) for name, tensor in sorted(model.state_dict().items())}


def huggingface_resnet(name):
    kind, depths = RESNETS[name]
    inner = [64, 128, 256, 512]
    config = transformers.ResNetConfig(
        embedding_size=64,
        hidden_sizes=inner if kind == "basic" else [4 * size for size in inner],
        depths=depths,
        layer_type=kind,
        num_labels=CLASSES,
    )
    return transformers.ResNetForImageClassification(config)


def huggingface_vit():
    config = transformers.ViTConfig(
        hidden_size=VIT["width"],
        num_hidden_layers=VIT["depth"],
        num_attention_heads=VIT["heads"],
        intermediate_size=4 * VIT["width"],
        image_size=VIT["image_size"],
        patch_size=VIT["patch"],
        layer_norm_eps=1e-6,
        num_labels=CLASSES,
    )
    return transformers.ViTForImageClassification(config)


def huggingface_gpt():
    config = transformers.GPT2Config(
        vocab_size=GPT["vocabulary"],
        n_positions=GPT["context"],
        n_embd=GPT["width"],
        n_layer=GPT["depth"],
        n_head=GPT["heads"],
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.GPT2LMHeadModel(config)


def torchvision_vit():
    return torchvision.models.VisionTransformer(
        VIT["image_size"], VIT["patch"], VIT["depth"], VIT["heads"], VIT["width"], 4 * VIT["width"], num_classes=CLASSES
    )


def timm_vit():
    return timm.models.VisionTransformer(
        img_size=VIT["image_size"],
        patch_size=VIT["patch"],
        embed_dim=VIT["width"],
        depth=VIT["depth"],
        num_heads=VIT["heads"],
        num_classes=CLASSES,
    )


def models():
    """Returns models by dtrain's name and by library."""
    made = {}
    for name in RESNETS:
        own = torchvision.models.get_model(name, num_classes=CLASSES)
        made[name] = {
            "pytorch": own,
            "torchvision": own,
            "timm": timm.create_model(name, num_classes=CLASSES),
            "huggingface": huggingface_resnet(name),
        }
    own = make_models.Vit(channels=3, classes=CLASSES, **VIT)
    made["vit"] = {"pytorch": own, "timm": timm_vit(), "torchvision": torchvision_vit(), "huggingface": huggingface_vit()}
    made["gpt"] = {"pytorch": make_models.Gpt(**GPT), "huggingface": huggingface_gpt()}
    return made


def main():
    parser = argparse.ArgumentParser(description="Writes names.json: tensor names and shapes of several libraries.")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of names.json")
    out = parser.parse_args().out
    lists = {name: {whose: shapes(model) for whose, model in by.items()} for name, by in models().items()}
    # The head shares the token table; a checkpoint stores it once.
    lists["gpt"]["pytorch"].pop("lm_head.weight", None)
    versions = {module.__name__: module.__version__.split("+")[0] for module in (torchvision, timm, transformers)}
    text = json.dumps({"versions": versions, "models": lists}, separators=(",", ":"))
    # One model per line: a line per tensor would make the file long, and diffs still show the changed model.
    (out / "names.json").write_text(text.replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main()
