"""Trains some steps in PyTorch on fake GPUs, which count each step's kernels, copies and host waits.

    FAKE_GPU_COUNTS=counts cargo xtask fake-gpu -- python3.11 tests/bench/gpu_operations.py resnet18

The counterpart of dtrain with `precision.amp=bf16`, fused AdamW and `optim.clip=1.0`: autocast, clipping by norm, and one
wait, for the loss. Under torch.distributed.run it wraps the network in DistributedDataParallel.
"""

import argparse
import os

import torch
import torch.nn.functional as F
from torch import nn

import gpu

MODELS = ["resnet18", "vit-b16", "gpt2"]


def build(name):
    if name != "resnet18":
        return gpu.build(name)[:2]
    import torchvision

    # dtrain's default layout.
    return torchvision.models.resnet18(num_classes=10), gpu.images(32, False)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", choices=MODELS)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--steps", type=int, default=6)
arguments = parser.parse_args()
ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
net, draw = build(arguments.model)
model = net.to(device)
if ranks > 1:
    torch.distributed.init_process_group("nccl", device_id=device)
    model = nn.parallel.DistributedDataParallel(net, device_ids=[device], gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
inputs, targets = (tensor.pin_memory() for tensor in draw(arguments.batch))
for _ in range(arguments.steps):
    x, y = inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    loss.item()
if ranks > 1:
    torch.distributed.destroy_process_group()
