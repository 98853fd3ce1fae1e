"""Trains a small model with DistributedDataParallel, written for torchrun.

`cargo xtask torchrun` starts it with torchrun and with `dtrain launch`. Every rank prints one JSON object: the last
loss, and a checksum of the parameters, which must be the same on all ranks.
"""

import argparse
import hashlib
import json
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def checksum(model):
    """Returns a checksum of the parameters' bytes: equal if every bit is equal."""
    sum = hashlib.sha256()
    for parameter in model.parameters():
        sum.update(parameter.detach().numpy().tobytes())
    return sum.hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    draw = torch.Generator().manual_seed(100 + rank)
    for _ in range(args.steps):
        inputs = torch.randn(32, 16, generator=draw)
        loss = F.cross_entropy(model(inputs), inputs[:, :4].argmax(dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    answer = {
        "rank": rank,
        "world": world,
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "steps": args.steps,
        "loss": loss.item(),
        "parameters": checksum(model),
    }
    # Writes the line at once: neither the launcher nor the other rank can interrupt it.
    print(json.dumps(answer) + "\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
