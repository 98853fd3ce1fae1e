"""Runs one rank of a training in PyTorch.

The counterpart of `dtrain launch` in `cargo xtask bench`. With --world, DistributedDataParallel reduces gradients;
without it, the rank trains alone. The benchmark sets the variables of torchrun (RANK, OMP_NUM_THREADS=1). Writes one
JSON object with the duration of every step.
"""

import argparse
import json
import os
import pathlib
import re
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import models

# Batches created before the training and used in turn.
BATCHES = 4

# In /proc/self/smaps: the first line of a mapping, and the names of GPU libraries.
MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")
GPU_LIBRARY = re.compile(r"/lib(torch_cuda|c10_cuda|cu|nv|nccl|triton)[^/]*\.so")


def peak_bytes():
    """Returns the peak resident memory of this process in bytes, read as dtrain reads its own."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/status has no VmHWM")


def gpu_library_bytes():
    """Returns the resident bytes of GPU library files, which the usual wheel loads also without a GPU.

    PyTorch's CPU wheel has no such files, and dtrain loads them only to use a GPU.
    """
    total, counted = 0, False
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        if MAPPING.match(line):
            counted = GPU_LIBRARY.search(line) is not None
        elif counted and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", type=int, required=True, help="samples per step on this rank")
    parser.add_argument("--context", type=int, default=256, help="tokens per sample of the GPT")
    parser.add_argument("--steps", type=int, required=True, help="optimizer steps")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON file of the results")
    parser.add_argument("--world", type=int, default=1, help="number of DDP ranks")
    parser.add_argument("--meet", type=pathlib.Path, help="file for the rendezvous of the ranks")
    args = parser.parse_args()

    rank = int(os.environ["RANK"])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(1 + rank)
    model, draw, counted = models.build(args.model, args.context)
    batches = [draw(args.batch) for _ in range(BATCHES)]
    if args.world > 1:
        dist.init_process_group(
            "gloo",
            init_method=args.meet.resolve().as_uri(),
            rank=rank,
            world_size=args.world,
            timeout=timedelta(seconds=60),
        )
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)

    step_ms = []
    for step in range(args.steps):
        begun = time.perf_counter()
        inputs, targets = batches[step % BATCHES]
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step_ms.append(1e3 * (time.perf_counter() - begun))
    # Read now, before later code allocates memory.
    peak, gpu_libraries = peak_bytes(), gpu_library_bytes()
    loss = loss.item()
    if not loss == loss:
        raise RuntimeError("the loss is not finite")

    result = {
        "rank": rank,
        "samples": args.batch,
        "per_sample": counted,
        "step_ms": step_ms,
        "peak_bytes": peak,
        "gpu_library_bytes": gpu_libraries,
        "loss": loss,
        "parameters": sum(p.numel() for p in model.parameters()),
        "torch": torch.__version__,
    }
    args.out.write_text(json.dumps(result))
    if args.world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
