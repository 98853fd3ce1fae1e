#!/usr/bin/env python3
"""Computes reference trainings with PyTorch's DistributedDataParallel on two processes.

    pip install -r tests/parity/requirements.txt
    python tests/parity/make_ddp.py --out tests/parity/reference

README.md describes the file. Each case is also trained in float64. A case is an error if its float32 losses are not
well within the test's tolerance of the float64 losses: rounding alone must not decide the comparison.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torchvision
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
import formula  # noqa: E402
from make_models import Gpt  # noqa: E402
from make_reference import with_formula  # noqa: E402
from opening import begin, version  # noqa: E402

RANKS = 2
WARMUP = 10


class Branches(nn.Module):
    """Linear layers: one for no sample, two for some samples. `Branches` in training-rank is the same."""

    def __init__(self):
        super().__init__()
        self.trunk, self.never = nn.Linear(6, 8), nn.Linear(8, 8)
        self.some, self.few, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x, numbers):
        rows = []
        for row, number in zip(torch.tanh(self.trunk(x)), numbers, strict=True):
            for branch, one_in in (("some", 8), ("few", 32)):
                if int(formula.words(f"branches.{branch}.{number}", 1)[0]) % one_in == 0:
                    row = row + torch.tanh(getattr(self, branch)(row))
            rows.append(self.head(row))
        return torch.stack(rows)


def resnet18():
    # The last norm of every block begins at zero, as in dtrain's ResNets.
    return torchvision.models.resnet18(weights=None, num_classes=10, zero_init_residual=True)


# The settings of the test's recipe. With eps = 1e-8, AdamW takes full steps for gradients of rounding noise;
# a ResNet with zero-initialised residual branches has such gradients. Hence its eps = 1e-5 and warm-up.
CASES = {
    "resnet18": {"batch": 16, "steps": 30, "lr": 1e-3, "eps": 1e-5, "weight_decay": 0.05, "types": ["float32", "float64"]},
    "gpt": {"batch": 8, "steps": 30, "lr": 3e-3, "eps": 1e-8, "weight_decay": 0.1, "types": ["float32", "float64"]},
    "branches": {"batch": 8, "steps": 20, "lr": 1e-2, "eps": 1e-8, "weight_decay": 0.1, "types": ["float64"]},
}
PERIODS = {"resnet18": 64, "gpt": 48, "branches": 2**62}
CLASSES = {"resnet18": 10, "gpt": 31, "branches": 4}
SHAPES = {"resnet18": (3, 32, 32), "branches": (6,)}


def build(case, dtype):
    model = {
        "resnet18": resnet18,
        "gpt": lambda: Gpt(vocabulary=31, context=20, width=48, depth=3, heads=4),
        "branches": Branches,
    }[case]()
    for name, tensor in with_formula(model, dtype).state_dict().items():
        if name.endswith("bn2.weight"):
            tensor.zero_()
    return model.train()


def sample(case, number):
    """Returns input and target of a sample."""
    content, classes = number % PERIODS[case], CLASSES[case]
    if case == "gpt":
        tokens = torch.from_numpy((formula.words(f"gpt.tokens.{content}", 17) % classes).astype("int64"))
        return tokens[:-1], tokens[1:]
    shape = SHAPES[case]
    image = (1.5 * formula.unit(f"{case}.image.{content}", torch.Size(shape).numel())).astype("float32")
    label = int(formula.words(f"{case}.label.{content}", 1)[0]) % classes
    return torch.from_numpy(image).reshape(shape), torch.tensor(label)


def train(rank, case, dtype, folder):
    """Runs one process of a case; rank 0 writes each step's mean loss, and few enough final weights."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    settings = CASES[case]
    dtype = getattr(torch, dtype)
    ddp = DistributedDataParallel(build(case, dtype), find_unused_parameters=case == "branches")
    optimizer = torch.optim.AdamW(
        ddp.parameters(), lr=settings["lr"], eps=settings["eps"], weight_decay=settings["weight_decay"], foreach=False
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARMUP))
    own = settings["batch"] // RANKS
    losses = []
    for step in range(settings["steps"]):
        first = step * settings["batch"] + rank * own
        numbers = list(range(first, first + own))
        inputs, targets = (torch.stack(parts) for parts in zip(*(sample(case, number) for number in numbers), strict=True))
        inputs = inputs if case == "gpt" else inputs.to(dtype)
        logits = ddp(inputs, numbers) if case == "branches" else ddp(inputs)
        loss = F.cross_entropy(logits.transpose(1, 2) if case == "gpt" else logits, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        mean = loss.detach().double() / RANKS
        distributed.all_reduce(mean)
        losses.append(mean.item())
    if rank == 0:
        out = {"losses": losses}
        if case == "branches":
            out["weights"] = {name: tensor.flatten().tolist() for name, tensor in ddp.module.state_dict().items()}
        Path(folder, "out.json").write_text(json.dumps(out))
    distributed.barrier()
    # Gloo's threads and Python's finalization can deadlock; nothing needs cleanup.
    os._exit(0)


def result(case, dtype):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, args=(case, dtype, folder), nprocs=RANKS)
        return json.loads(Path(folder, "out.json").read_text())


def main():
    out = begin(__doc__, "torchvision")
    cases = {}
    for case, settings in CASES.items():
        cases[case] = {"settings": {**settings, "ranks": RANKS, "warmup": WARMUP}}
        for dtype in settings["types"]:
            cases[case][dtype] = result(case, dtype)
        exact = cases[case]["float64"]["losses"]
        print(f"{case}: the loss goes from {exact[0]:.4f} to {exact[-1]:.4f}")
        if "float32" in cases[case]:
            apart = max(abs(a / b - 1) for a, b in zip(cases[case]["float32"]["losses"], exact, strict=True))
            print(f"{case}: float32 against float64: losses {apart:.1e}")
            if apart > 2e-5:
                sys.exit(f"{case} amplifies rounding too much for a comparison in float32")
    path = out / "ddp.json"
    path.write_text(json.dumps({"torch": version("torch"), "cases": cases}, indent=1) + "\n")
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
