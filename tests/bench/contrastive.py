#!/usr/bin/env python3
"""Trains two towers by CLIP's loss in micro-batches, as OpenCLIP's `--accum-freq` does, beside dtrain's `model.losses`.

    dtrain import contrastive.py:towers -o towers.pt2
    python contrastive.py --batch 48 --micro-batch 16 --steps 12

Features of all micro-batches are computed without a graph. Then each micro-batch runs again with one, its features take the
place of the old ones, and the loss of the whole batch goes backward. Prints milliseconds of a step (median without the
first two) and the peak of the process's memory. `--whole` takes the batch at once.
"""

import argparse
import json
import resource
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

SIDE, WIDTH, DEPTH, LENGTH = 64, 192, 6, 128


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, 8)
        self.position = nn.Parameter(torch.randn((SIDE // 8) ** 2, WIDTH) * 0.02)
        block = lambda: nn.TransformerEncoderLayer(WIDTH, 3, 4 * WIDTH, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList(block() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, LENGTH)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return F.normalize(self.head(x.mean(1)), dim=1)


class Towers(nn.Module):
    """The second tower sees the mirror image."""

    def __init__(self):
        super().__init__()
        self.left, self.right = Tower(), Tower()
        self.log_scale = nn.Parameter(torch.tensor(2.6593))

    def forward(self, image):
        left, right = self.left(image), self.right(image.flip(3))
        return {"image_embeds": left, "text_embeds": right, "logit_scale": self.log_scale.exp()}


def towers():
    return Towers(), {"image": torch.randn(2, 3, SIDE, SIDE)}


def loss_of(left, right, scale):
    logits = scale * left @ right.t()
    numbers = torch.arange(len(logits))
    return (F.cross_entropy(logits, numbers) + F.cross_entropy(logits.t(), numbers)) / 2


def accumulate(model, image, size):
    parts = image.split(size)
    with torch.no_grad():
        features = [model(part) for part in parts]
    for at, part in enumerate(parts):
        found = model(part)
        joined = {
            name: torch.cat([found[name] if other == at else old[name] for other, old in enumerate(features)])
            for name in ("image_embeds", "text_embeds")
        }
        loss = loss_of(joined["image_embeds"], joined["text_embeds"], found["logit_scale"])
        loss.backward()
    return loss


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--whole", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    model = Towers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    times = []
    for _ in range(args.steps):
        image = torch.rand(args.batch, 3, SIDE, SIDE)
        begun = time.perf_counter()
        accumulate(model, image, args.batch if args.whole else args.micro_batch)
        optimizer.step()
        optimizer.zero_grad()
        times.append((time.perf_counter() - begun) * 1e3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"step_ms": statistics.median(times[2:]), "peak_mib": peak}))


if __name__ == "__main__":
    main()
