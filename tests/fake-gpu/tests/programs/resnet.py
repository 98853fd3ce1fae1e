"""Trains a ResNet-18 on one GPU, or by DDP with torchrun: resnet.py STEPS."""
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(o)
        self.short = None
        if stride != 1 or i != o:
            self.short = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + (self.short(x) if self.short else x))


def resnet18():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    i = 64
    for o, stride in (64, 1), (128, 2), (256, 2), (512, 2):
        layers += [Block(i, o, stride), Block(o, o, 1)]
        i = o
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


distributed = "RANK" in os.environ
if distributed:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl")
model = resnet18().cuda()
if distributed:
    model = nn.parallel.DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
images, labels = torch.randn(32, 3, 32, 32).pin_memory(), torch.randint(10, (32,)).pin_memory()
for _ in range(int(sys.argv[1])):
    x, y = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss.item()
# Without the group's end, so that the last step is the last one counted.
