#!/usr/bin/env python3
"""Makes what timm's Mixup does to a small batch, sample by sample, and its losses for the mixed targets.

    pip install -r tests/parity/requirements.txt
    python tests/parity/make_mix.py --out tests/parity/reference

A second run writes the same bytes. README.md describes the files.
"""

import json
import sys

import numpy as np
import timm.data.mixup as mixup
import torch
from safetensors.torch import save_file
from timm.loss import BinaryCrossEntropy, SoftTargetCrossEntropy

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
from opening import begin  # noqa: E402

SAMPLES, CHANNELS, HEIGHT, WIDTH, CLASSES, SMOOTHING = 8, 3, 9, 7, 5, 0.1
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Recorded(mixup.Mixup):
    """timm's Mixup with what it draws."""

    def _params_per_elem(self, batch_size):
        self.shares, self.are_cut = super()._params_per_elem(batch_size)
        return self.shares.copy(), self.are_cut

    def _mix_elem(self, x):
        self.left = super()._mix_elem(x)
        return self.left


def recorded_middles():
    """Returns a list to which timm's rectangles add their middles, as parts of height and width."""
    found, original = [], mixup.rand_bbox

    def rand_bbox(shape, share, margin=0.0, count=None):
        state = np.random.get_state()
        sides = shape[-2:]
        found.append([(np.random.randint(0, side, size=count) + 0.5) / side for side in sides])
        np.random.set_state(state)
        return original(shape, share, margin, count)

    mixup.rand_bbox = rand_bbox
    return found


def main():
    out = begin(__doc__)
    np.random.seed(3)
    generator = torch.Generator().manual_seed(5)
    stored = torch.randint(0, 256, (SAMPLES, CHANNELS, HEIGHT, WIDTH), generator=generator)
    mean, std = (torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (MEAN, STD))
    images = ((stored.double() / 255 - mean) / std).float()
    labels = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
    sets = (torch.rand(SAMPLES, CLASSES, generator=generator) < 0.4).float()
    middles = recorded_middles()
    settings = dict(mixup_alpha=0.8, cutmix_alpha=1.0, mode="elem", label_smoothing=SMOOTHING, num_classes=CLASSES)
    one = Recorded(**settings)
    mixed, targets = one(images.clone(), labels)
    cut = iter(middles)
    samples = [
        {"share": float(share), "middle": next(cut) if is_cut else None, "mixed": image.flatten().tolist()}
        for share, is_cut, image in zip(one.shares, one.are_cut, mixed)
    ]
    case = {"size": [HEIGHT, WIDTH], "stored": stored.flatten(1).tolist(), "samples": samples}
    (out / "mix.json").write_text(json.dumps(case) + "\n")

    logits = (torch.randn(SAMPLES, CLASSES, generator=generator) * 2).double().requires_grad_()
    found = {"labels": labels, "sets": sets, "share": one.left.flatten(), "logits": logits.detach().float()}
    of_sets = mixup.mixup_target(sets, CLASSES, one.left, SMOOTHING, True).double()
    for name, loss in [
        ("classes", SoftTargetCrossEntropy()(logits, targets.double())),
        ("sets", BinaryCrossEntropy(smoothing=0.0)(logits, of_sets)),
    ]:
        (gradient,) = torch.autograd.grad(loss, logits)
        found |= {f"{name}.loss": loss.detach().float().reshape(1), f"{name}.logits": gradient.float()}
    save_file(found, out / "mix.safetensors")


if __name__ == "__main__":
    main()
