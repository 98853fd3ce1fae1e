"""Counts the operations and waits of a PyTorch training step on a CPU.

The counterpart of the test `a_gpu_step_waits_once_after_queueing_all_work`: ResNet-18 on images of
32 pixels in a batch of 8, fused AdamW, clipping by norm. As there, views and new memory do not count. Prints
a line of JSON for a step that reads its loss, and another for a step that also uses a GradScaler.
"""

import json

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.models import resnet18

FREE = ("aten::empty", "aten::new_empty", "aten::resize", "aten::set_", "aten::detach")


class Counting(TorchDispatchMode):
    """Counts the operations that reach the kernels."""

    def __init__(self):
        super().__init__()
        self.kernels = self.reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        schema = func._schema
        views = bool(schema.returns) and all(
            result.alias_info is not None and not result.alias_info.is_write for result in schema.returns
        )
        if schema.name in ("aten::_local_scalar_dense", "aten::equal"):
            self.reads += 1
        elif not views and not schema.name.startswith(FREE):
            self.kernels += 1
        return func(*args, **(kwargs or {}))


def step(scaled):
    torch.manual_seed(1)
    model = resnet18(num_classes=100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    images, labels = torch.zeros(8, 3, 32, 32), torch.zeros(8, dtype=torch.int64)
    for _ in range(3):
        with Counting() as counting:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            loss.item()
    return {"kernels": counting.kernels, "reads": counting.reads}


for scaled in (False, True):
    print(json.dumps({"scaled": scaled, **step(scaled)}))
