#!/usr/bin/env python3
"""Computes references of losses over all samples of a step, and their derivatives.

    pip install -r tests/parity/requirements.txt
    python tests/parity/make_losses.py --out tests/parity/reference

A second run writes the same bytes. README.md describes the file.
"""

import sys

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
from opening import begin  # noqa: E402

SAMPLES, LENGTH, ROWS, EXPERTS = 7, 5, 2, 3
CLASSES = [4, 0, 4, 4, 1, 0, 4]
LEFT_OUT = 3


def clip(left, right, scale):
    logits = scale * F.normalize(left) @ F.normalize(right).T
    numbers = torch.arange(len(logits))
    return (F.cross_entropy(logits, numbers) + F.cross_entropy(logits.T, numbers)) / 2


def siglip(left, right, scale, bias):
    logits = scale * F.normalize(left) @ F.normalize(right).T + bias
    targets = torch.eye(len(logits), dtype=logits.dtype)
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(logits)


def supcon(left, temperature=0.07):
    vectors = F.normalize(left)
    total = torch.zeros((), dtype=left.dtype)
    classes = [kind for number, kind in enumerate(CLASSES) if number != LEFT_OUT]
    for here, vector in enumerate(vectors):
        others = [there for there in range(len(vectors)) if there != here]
        log = F.log_softmax(torch.stack([vector @ vectors[there] for there in others]) / temperature, dim=0)
        right = [log[at] for at, there in enumerate(others) if classes[there] == classes[here]]
        total = total - torch.stack(right).mean() if right else total
    return total / len(vectors)


def balance(gates):
    rows = gates.reshape(-1, EXPERTS)
    parts = F.one_hot(rows.argmax(dim=1), EXPERTS).to(rows.dtype).mean(dim=0)
    return EXPERTS * (parts * rows.mean(dim=0)).sum()


def main():
    out = begin(__doc__)
    generator = torch.Generator().manual_seed(7)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64).float()
    given = {
        "left": draw(SAMPLES, LENGTH),
        "right": draw(SAMPLES, LENGTH),
        "scale": torch.tensor([3.5]),
        "bias": torch.tensor([-1.25]),
        "gates": draw(SAMPLES, ROWS, EXPERTS).softmax(dim=2),
    }
    found = dict(given)
    kept = [number for number in range(SAMPLES) if number != LEFT_OUT]
    of_losses = {
        clip: ["left", "right", "scale"],
        siglip: ["left", "right", "scale", "bias"],
        supcon: ["left"],
        balance: ["gates"],
    }
    for loss, names in of_losses.items():
        leaves = [given[name].double().requires_grad_() for name in names]
        value = loss(*(leaf[kept] if len(leaf) == SAMPLES else leaf for leaf in leaves))
        value.backward()
        found[f"{loss.__name__}.loss"] = value.detach().float().reshape(1)
        for name, leaf in zip(names, leaves):
            found[f"{loss.__name__}.{name}"] = leaf.grad.float()
    found["classes"] = torch.tensor(CLASSES)
    found["weights"] = torch.tensor([0.0 if number == LEFT_OUT else 1.0 for number in range(SAMPLES)])
    save_file(found, out / "losses.safetensors")


if __name__ == "__main__":
    main()
