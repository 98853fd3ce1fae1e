#!/usr/bin/env python3
"""Computes references of Muon and of adaptive gradient clipping.

    pip install -r tests/parity/requirements.txt
    python tests/parity/make_muon.py --out tests/parity/reference

A second run writes the same bytes on the same processor. README.md describes the file.
"""

import json
import sys

import torch
from safetensors.torch import save_file
from timm.utils.agc import adaptive_clip_grad

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
import formula  # noqa: E402
from opening import begin, version  # noqa: E402

STEPS = 10
SHAPES = {"tall": (12, 5), "wide": (4, 9), "square": (6, 6)}
CASES = {
    "default": {"lr": 1e-3},
    "fast": {"lr": 2e-2, "momentum": 0.8, "weight_decay": 0.3},
    "plain": {"lr": 5e-3, "nesterov": False, "weight_decay": 0.0},
    "like_adamw": {"lr": 1e-3, "adjust_lr_fn": "match_rms_adamw"},
}
BIAS = 5
UNITS = {"convolution": (4, 3, 3, 2), "matrix": (6, 5), "vector": (7,)}


def values(name, shape, dtype):
    count = torch.Size(shape).numel()
    return torch.from_numpy(formula.unit(name, count)).reshape(shape).to(dtype)


def gradient(name, step, shape, dtype):
    count = torch.Size(shape).numel()
    return torch.from_numpy(formula.gradient(f"muon.gradient.{name}", step, count)).reshape(shape).to(dtype)


def trajectory(settings, dtype):
    """Returns name -> values after each step of the matrices by Muon and of a bias by AdamW."""
    shapes = {**SHAPES, "bias": (BIAS,)}
    parameters = {name: torch.nn.Parameter(values(f"muon.{name}", shape, dtype)) for name, shape in shapes.items()}
    muon = torch.optim.Muon([parameters[name] for name in SHAPES], **settings)
    adamw = torch.optim.AdamW([parameters["bias"]], lr=1e-3, weight_decay=0.01, foreach=False, fused=False)
    rows = {name: [] for name in parameters}
    for step in range(STEPS):
        for name, parameter in parameters.items():
            parameter.grad = gradient(name, step, shapes[name], dtype)
        muon.step()
        adamw.step()
        for name, parameter in parameters.items():
            rows[name].append(parameter.detach().clone())
    return {name: torch.stack(all) for name, all in rows.items()}


class FullPrecision:
    """Makes torch.optim.Muon multiply in the precision of the parameters."""

    def __enter__(self):
        self.before = torch.Tensor.bfloat16
        torch.Tensor.bfloat16 = lambda tensor: tensor.clone()

    def __exit__(self, *_):
        torch.Tensor.bfloat16 = self.before


def clipped(name, shape, dtype, scale):
    parameter = torch.nn.Parameter(values(f"agc.{name}", shape, dtype))
    with torch.no_grad():
        # A unit of weights below the least norm, and one of zeros.
        parameter[0] *= 1e-5
        parameter[1] = 0
    parameter.grad = scale * gradient(name, 0, shape, dtype)
    # A gradient of zeros, and a small one.
    parameter.grad[2] = 0
    parameter.grad[3] *= 1e-4
    adaptive_clip_grad([parameter], clip_factor=0.01)
    return parameter.grad


def main():
    out = begin(__doc__, "torchvision")
    tensors = {}
    for case, settings in CASES.items():
        found = {f"{case}.bf16.{name}": rows for name, rows in trajectory(settings, torch.float32).items()}
        with FullPrecision():
            for suffix, dtype in (("f32", torch.float32), ("f64", torch.float64)):
                found |= {f"{case}.{suffix}.{name}": rows for name, rows in trajectory(settings, dtype).items()}
        tensors |= found
    for name, shape in UNITS.items():
        for suffix, dtype in (("f32", torch.float32), ("f64", torch.float64)):
            for size, scale in (("small", 1e-3), ("large", 1.0)):
                tensors[f"agc.{size}.{suffix}.{name}"] = clipped(name, shape, dtype, scale)
    about = {"steps": STEPS, "cases": CASES, "torch": version("torch"), "timm": version("timm")}
    path = out / "muon.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in sorted(tensors.items())}, path, {"about": json.dumps(about)})
    print(f"{path.name}: {path.stat().st_size} bytes")


main()
