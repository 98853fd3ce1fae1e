#!/usr/bin/env python3
"""Writes examples.safetensors: outputs of the networks of timm, torchvision and transformers that docs/examples writes anew.

    pip install -r tests/parity/requirements.txt
    python tests/parity/make_examples.py --out tests/parity/reference

A second run writes the same bytes. README.md describes the file.
"""

import sys
import zlib

import timm
import torch
import torchvision
import transformers
from safetensors.torch import save_file
from timm.models import senet, tiny_vit

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
import formula  # noqa: E402
from opening import begin  # noqa: E402


def filled(model):
    """Gives each entry of the state its value of the formula, in float64."""
    model.double().eval()
    state = {name: torch.from_numpy(formula.state_value(name, tuple(value.shape))) for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    return model


def image(size):
    return torch.from_numpy(formula.images(size, 1))


def some(output):
    """About 500 values of an output, evenly spaced."""
    values = output.flatten()
    return values[:: max(1, len(values) // 500)].clone()


def edgenext():
    return filled(timm.create_model("edgenext_xx_small")).forward_intermediates(image(64), intermediates_only=True)


def vit():
    return [filled(timm.models.VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=7))(image(32))]


def squeeze_and_excitation():
    settings = {"inplanes": 128, "input_3x3": True, "downsample_kernel_size": 3, "downsample_padding": 1}
    network = filled(senet.SENet(senet.SEBottleneck, (1, 2, 1, 1), groups=64, reduction=16, **settings))
    x = network.layer0[:6](image(64))
    outputs = [x]
    x = torch.nn.functional.max_pool2d(network.layer0[6:](x), 3, 2, ceil_mode=True)
    for layer in (network.layer1, network.layer2, network.layer3, network.layer4):
        x = layer(x)
        outputs.append(x)
    return outputs


def tiny():
    network = tiny_vit.TinyVit(
        num_classes=0, embed_dims=(16, 32, 48, 64), depths=(1, 1, 1, 1), num_heads=(1, 2, 3, 4), window_sizes=(7, 7, 14, 7)
    )
    # The last merging of SAM's encoder keeps the size.
    network.stages[3].downsample.conv2.conv.stride = (1, 1)
    return [filled(network).forward_features(image(96))]


def resnet():
    network = filled(torchvision.models.resnet18())
    trunk = torch.nn.Sequential(*list(network.children())[:-2])
    return [trunk(image(64)).flatten(1)]


def mistral():
    config = transformers.MistralConfig(
        vocab_size=31, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        rms_norm_eps=1e-5, rope_theta=1e4, sliding_window=None, attn_implementation="eager",
    )  # fmt: skip
    network = filled(transformers.MistralForCausalLM(config))
    return [network(input_ids=torch.from_numpy(formula.labels(20, 30, 20))[None]).logits]


def names(model):
    """The CRC of the names and shapes of the state."""
    lines = sorted(f"{name} {list(value.shape)}\n" for name, value in model.state_dict().items())
    return torch.tensor(zlib.crc32("".join(lines).encode()))


def large():
    """Returns the networks at their published sizes, without values."""
    with torch.device("meta"):
        networks = {name: timm.create_model(name) for name in ("edgenext_base", "vit_base_patch16_224", "legacy_senet154")}
        return networks | {"resnet34": torchvision.models.resnet34()}


NETWORKS = {"edgenext": edgenext, "vit": vit, "senet": squeeze_and_excitation, "tinyvit": tiny, "resnet": resnet, "mistral": mistral}


def main():
    out = begin(__doc__, "torchvision")
    with torch.no_grad():
        outputs = {
            f"{name}.{number}": some(output).float()
            for name, make in NETWORKS.items()
            for number, output in enumerate(make())
        }
    outputs |= {name: names(model) for name, model in large().items()}
    save_file(outputs, out / "examples.safetensors")


if __name__ == "__main__":
    main()
