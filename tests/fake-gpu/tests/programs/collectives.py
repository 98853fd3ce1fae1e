"""Checks the values of NCCL's collectives between two ranks, and a step of FSDP2."""
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))


def full(size, value):
    return torch.full((size,), float(value), device="cuda")


def check(what, tensor, *expected):
    size = len(tensor) // len(expected)
    parts = [tensor.cpu()[i * size:(i + 1) * size] for i in range(len(expected))]
    assert all(bool((part == value).all()) for part, value in zip(parts, expected)), (what, rank, tensor)


for size in 1, 20_000, 60_000:  # more than one part of a box
    mine, other = full(size, rank + 1), full(size, 0)
    if rank == 0:
        dist.send(mine, 1)
        dist.recv(other, 1)
    else:
        dist.recv(other, 0)
        dist.send(mine, 0)
    check("send", other, 2 - rank)
total = full(1000, rank + 1)
dist.all_reduce(total)
check("all_reduce", total, 3)
total = full(1000, rank + 1).bfloat16()
dist.all_reduce(total, op=dist.ReduceOp.MAX)
check("max", total.float(), 2)
both = full(2000, 0)
dist.all_gather_into_tensor(both, full(1000, rank + 1))
check("all_gather", both, 1, 2)
part = full(1000, 0)
dist.reduce_scatter_tensor(part, both, op=dist.ReduceOp.AVG)
check("reduce_scatter", part, rank + 1)
swapped = full(2000, 0)
dist.all_to_all_single(swapped, full(2000, rank + 1))
check("all_to_all", swapped, 1, 2)
first = full(1000, rank + 1)
dist.broadcast(first, 1)
check("broadcast", first, 2)

model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)]).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(3):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
dist.destroy_process_group()
print("fine")
