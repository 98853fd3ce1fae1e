#!/usr/bin/env python3
"""Trains adapters by PEFT, for the models of tests/tests/fixtures/import/adapted.py.

    pip install -r tests/parity/requirements.txt -r tests/parity/requirements-lora.txt
    python tests/parity/make_lora.py --out tests/parity/reference

A second run writes the same bytes. README.md describes the files.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from torch.nn import functional

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
from formula import state_value, words  # noqa: E402
from opening import begin  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fixtures" / "import"))
import adapted  # noqa: E402

SAMPLES, STEPS = 8, 10


def bytes_of(name, count, most):
    """Returns `count` whole numbers from 0 to most - 1 of the formula's words."""
    return (words(name, count) % np.uint64(most)).astype(np.int64)


def images():
    pixels = torch.from_numpy(bytes_of("lora.images", SAMPLES * 16 * 16 * 3, 256)).view(SAMPLES, 16, 16, 3)
    return (pixels.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5, torch.arange(SAMPLES) % 4


def tokens():
    stream = torch.from_numpy(bytes_of("lora.tokens", SAMPLES * adapted.CONTEXT + 1, adapted.VOCABULARY))
    return stream[:-1].view(SAMPLES, -1), stream[1:].view(SAMPLES, -1)


CASES = {
    "vit": (adapted.Vit, images, LoraConfig(r=4, lora_alpha=6, target_modules=["patch", "c_attn", "c_proj", "fc"], modules_to_save=["head"])),
    "gpt": (adapted.Gpt, tokens, LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn", "out", "lm_head"], fan_in_fan_out=True)),
}


def train(name):
    build, data, config = CASES[name]
    torch.manual_seed(3)
    model = build()
    with torch.no_grad():
        for key, value in model.state_dict().items():
            value.copy_(torch.from_numpy(state_value(f"lora.{key}", tuple(value.shape))))
    base = {key: value.clone() for key, value in model.state_dict().items()}
    peft = get_peft_model(model, config)
    optimizer = torch.optim.AdamW((p for p in peft.parameters() if p.requires_grad), lr=0.002, weight_decay=0.05)
    inputs, targets = data()
    start = {key: value.clone() for key, value in get_peft_model_state_dict(peft).items()}
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = peft(inputs)
        loss = functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    tensors = {f"base.{key}": value for key, value in base.items()}
    tensors |= {f"start.{key}": value for key, value in start.items()}
    tensors |= {f"end.{key}": value for key, value in get_peft_model_state_dict(peft).items()}
    merged = peft.merge_and_unload().state_dict()
    tensors |= {f"merged.{key}": value for key, value in merged.items()}
    tensors["losses"] = torch.tensor(losses)
    return {key: value.detach().contiguous().clone() for key, value in tensors.items()}


def main():
    out = begin(__doc__)
    (out / "lora").mkdir(exist_ok=True)
    for name in CASES:
        save_file(train(name), out / "lora" / f"{name}.safetensors")


if __name__ == "__main__":
    main()
