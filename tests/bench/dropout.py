#!/usr/bin/env python3
"""Measures what dropout adds to a step of a vision transformer: dtrain's, which draws by sample, beside PyTorch's.

    python dropout.py --dtrain target/release/dtrain --rounds 5

Each round runs both with and without dropout, one after the other. Prints the median milliseconds of a step and the ratios
of the medians.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch
from torch import nn

SIDE, PATCH, WIDTH, DEPTH, HEADS, BATCH, STEPS, THREADS = 96, 8, 192, 6, 3, 16, 8, 2

RECIPE = f"""
task = "classify"
[data]
kind = "generated"
image_size = {SIDE}
classes = 10
train_samples = 1024
test_samples = 16
[model]
name = "vit"
patch = {PATCH}
width = {WIDTH}
depth = {DEPTH}
heads = {HEADS}
[train]
effective_batch = {BATCH}
steps = {STEPS}
[optim]
name = "adamw"
lr = 1e-4
[log]
every_steps = 1
"""


class Block(nn.Module):
    """Dropout where dtrain's `vit` has it."""

    def __init__(self, p):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(p), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(p)
        )
        self.drop = nn.Dropout(p)

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = (part.view(n, t, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(WIDTH, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, WIDTH)
        x = x + self.drop(self.proj(y))
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.position = nn.Parameter(torch.randn((SIDE // PATCH) ** 2, WIDTH) * 0.02)
        self.drop, self.blocks = nn.Dropout(p), nn.Sequential(*(Block(p) for _ in range(DEPTH)))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, image):
        x = self.drop(self.patches(image).flatten(2).transpose(1, 2) + self.position)
        return self.head(self.blocks(x).mean(1))


def of_pytorch(p):
    torch.manual_seed(1)
    model = Vit(p)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    times = []
    for _ in range(STEPS):
        image, label = torch.rand(BATCH, 3, SIDE, SIDE), torch.randint(0, 10, (BATCH,))
        begun = time.perf_counter()
        nn.functional.cross_entropy(model(image), label).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times[2:])


def of_dtrain(dtrain, folder, p):
    run = pathlib.Path(tempfile.mkdtemp(dir=folder)) / "run"
    sets = ["--set", f"model.dropout={p}"] if p else []
    command = [dtrain, "launch", folder / "recipe.toml", "--nproc", "1", "--run-dir", run, *sets]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return statistics.median([line["step_ms"] for line in lines if "step_ms" in line][2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtrain", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "recipe.toml").write_text(RECIPE)
        for _ in range(args.rounds):
            for p in (0.0, 0.1):
                found.setdefault(("dtrain", p), []).append(of_dtrain(args.dtrain, folder, p))
                found.setdefault(("PyTorch", p), []).append(of_pytorch(p))
    for trainer in ("dtrain", "PyTorch"):
        without, dropped = (statistics.median(found[trainer, p]) for p in (0.0, 0.1))
        print(f"{trainer}: {without:.1f} ms without, {dropped:.1f} ms with dropout: {dropped / without - 1:+.1%}")


if __name__ == "__main__":
    main()
