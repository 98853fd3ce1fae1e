#!/usr/bin/env python3
"""Computes references of ResNets, optimizers and schedules with PyTorch.

    pip install -r tests/parity/requirements.txt
    python tests/parity/make_reference.py --out tests/parity/reference

A second run writes the same bytes. README.md describes every file.
"""

import json
import sys

import numpy as np
import torch
from timm.optim import Lion
import torchvision
from safetensors.torch import save_file

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
import formula  # noqa: E402
from opening import begin, version  # noqa: E402

CLASSES = 100
# Image size -> number of images. At 32x32, the last feature maps have one pixel: batch norm sees one value per
# image and channel. With 4 images, rounding errors would exceed the tests' tolerances.
IMAGES = {64: 4, 32: 16}
PROBES = 4
STEPS = 20
ELEMENTS = 33
EMA_DECAY = 0.9


def model_names():
    return {"resnet18": torchvision.models.resnet18, "resnet34": torchvision.models.resnet34}


def write(path, tensors, about):
    # Only one metadata key: with several, their order in the file would change between runs.
    save_file(tensors, path, metadata={"about": json.dumps(about, sort_keys=True)})


def state_list(architecture, build):
    """Returns names, shapes and dtypes of state_dict(), in its order, with torchvision's 1000 classes."""
    model = build(weights=None, num_classes=1000)
    rows = [[name, list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in model.state_dict().items()]
    trainable = [name for name, _ in model.named_parameters()]
    head = {
        "architecture": architecture,
        "classes": 1000,
        "parameters": sum(p.numel() for p in model.parameters()),
        "parameter_tensors": len(trainable),
    }
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    return json.dumps(head)[:-1] + ', "state": [\n' + lines + "\n]}\n"


def with_formula(model, dtype):
    """Returns a model with the formula's weights, rounded to float32 first as in the trainer."""
    state = {
        name: torch.from_numpy(formula.state_value(name, tuple(tensor.shape))).to(tensor.dtype)
        for name, tensor in model.state_dict().items()
    }
    model.load_state_dict(state, strict=True)
    return model.to(dtype)


def run(build, size, dtype):
    """Runs one evaluation and one training pass (forward and backward) from the same weights."""
    images = torch.from_numpy(formula.images(size, IMAGES[size]).astype(np.float32)).to(dtype)
    labels = torch.from_numpy(formula.labels(size, CLASSES, IMAGES[size]))
    out = {}

    model = with_formula(build(weights=None, num_classes=CLASSES), dtype).eval()
    with torch.no_grad():
        out["eval.logits"] = model(images)
    out["eval.loss"] = torch.nn.functional.cross_entropy(out["eval.logits"], labels)

    model.train()
    logits = model(images)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    loss.backward()
    out["train.logits"] = logits.detach()
    out["train.loss"] = loss.detach()

    norms, probes = [], []
    for name, parameter in model.named_parameters():
        grad = parameter.grad.double()
        norms.append(grad.norm())
        flat = grad.flatten()
        probes.append(
            torch.stack([flat @ torch.from_numpy(formula.unit(f"probe.{k}.{name}", flat.numel())) for k in range(PROBES)])
        )
    out["grad.norms"] = torch.stack(norms)
    out["grad.probes"] = torch.stack(probes)

    named = dict(model.named_parameters())
    buffers = dict(model.named_buffers())
    last = f"layer4.{len(model.layer4) - 1}"
    for name in ("bn1.weight", "bn1.bias", "layer2.0.downsample.1.weight", f"{last}.bn2.weight", "fc.bias"):
        out[f"grad.{name}"] = named[name].grad
    for layer in ("bn1", "layer2.0.downsample.1", f"{last}.bn2"):
        for what in ("running_mean", "running_var", "num_batches_tracked"):
            out[f"state.{layer}.{what}"] = buffers[f"{layer}.{what}"]
    return out


def conditioning(exact, single):
    """Returns how far float32 logits differ from float64: the tests' tolerance must be well above this."""
    return max(float((exact[k] - single[k].double()).abs().max()) for k in ("eval.logits", "train.logits"))


def model_reference(architecture, build, out):
    tensors = {}
    for size in IMAGES:
        exact, single = run(build, size, torch.float64), run(build, size, torch.float32)
        logits = conditioning(exact, single)
        print(f"{architecture} {size}x{size}: float32 against float64: logits {logits:.1e}")
        if logits > 3e-5:
            sys.exit(f"{architecture} at {size}x{size} is too ill-conditioned for a comparison in float32")
        for name, tensor in exact.items():
            keep = tensor if tensor.dtype == torch.int64 or name in ("grad.norms", "grad.probes") else tensor.float()
            tensors[f"{size}.{name}"] = keep.contiguous()
    about = {
        "architecture": architecture,
        "classes": CLASSES,
        "images": IMAGES,
        "probes": PROBES,
        "torch": version("torch"),
        "torchvision": version("torchvision"),
    }
    write(out / f"{architecture}.safetensors", tensors, about)
    (out / f"{architecture}.json").write_text(state_list(architecture, build), encoding="utf-8")


def optimizer_cases():
    """Returns name -> (optimizer, settings). Other settings have PyTorch's defaults."""
    return {
        "adamw": ("adamw", {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}),
        "adamw_fast": ("adamw", {"lr": 2e-2, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1}),
        "adamw_no_decay": ("adamw", {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0}),
        "adam": ("adam", {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}),
        "adam_decay": ("adam", {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}),
        "adam_fast": ("adam", {"lr": 2e-2, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1}),
        "sgd": ("sgd", {"lr": 1e-2, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}),
        "sgd_decay": ("sgd", {"lr": 1e-2, "momentum": 0.0, "nesterov": False, "weight_decay": 5e-2}),
        "sgd_momentum": ("sgd", {"lr": 1e-2, "momentum": 0.9, "nesterov": False, "weight_decay": 5e-4}),
        "sgd_nesterov": ("sgd", {"lr": 1e-2, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}),
        "adam_amsgrad": ("adam", {"lr": 2e-2, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1, "amsgrad": True}),
        "adamw_amsgrad": ("adamw", {"lr": 2e-2, "betas": (0.8, 0.9), "eps": 1e-8, "weight_decay": 0.1, "amsgrad": True}),
        "lion": ("lion", {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.1}),
        "rmsprop": ("rmsprop", {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0, "centered": False}),
        "rmsprop_momentum": ("rmsprop", {"lr": 1e-3, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.1, "momentum": 0.9, "centered": False}),
        "rmsprop_centered": ("rmsprop", {"lr": 1e-3, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.1, "momentum": 0.0, "centered": True}),
        "rmsprop_both": ("rmsprop", {"lr": 1e-3, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.1, "momentum": 0.5, "centered": True}),
        "sgd_nesterov_plain": ("sgd", {"lr": 2e-2, "momentum": 0.5, "nesterov": True, "weight_decay": 0.0}),
    }


def trajectory(kind, settings, dtype):
    """Returns the parameter vector after each of STEPS steps, STEPS x ELEMENTS."""
    start = torch.from_numpy(formula.unit("optimizer.parameter", ELEMENTS)).to(dtype)
    parameter = torch.nn.Parameter(start)
    build = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "rmsprop": torch.optim.RMSprop, "lion": Lion}[kind]
    forms = {"lion": {"foreach": False}, "rmsprop": {"foreach": False}}.get(kind, {"foreach": False, "fused": False})
    optimizer = build([parameter], **forms, **settings)
    rows = []
    for step in range(STEPS):
        parameter.grad = torch.from_numpy(formula.gradient("optimizer.gradient", step, ELEMENTS)).to(dtype)
        optimizer.step()
        rows.append(parameter.detach().clone())
    return torch.stack(rows)


def averages(rows, decay):
    """Returns AveragedModel's values after each row of a trajectory; it copies the first row."""
    model = torch.nn.Module()
    model.parameter = torch.nn.Parameter(rows[0].clone())
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay)
    )
    seen = []
    for row in rows:
        with torch.no_grad():
            model.parameter.copy_(row)
        averaged.update_parameters(model)
        seen.append(averaged.module.parameter.detach().clone())
    return torch.stack(seen)


def learning_rates(lr, min_lr, warmup, total):
    """Returns rates of SequentialLR of LinearLR and CosineAnnealingLR; asserts the closed form."""
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=lr)
    schedulers = torch.optim.lr_scheduler
    linear = schedulers.LinearLR(optimizer, start_factor=1.0 / warmup, end_factor=1.0, total_iters=warmup - 1)
    cosine = schedulers.CosineAnnealingLR(optimizer, T_max=total - warmup, eta_min=min_lr)
    schedule = schedulers.SequentialLR(optimizer, [linear, cosine], milestones=[warmup])
    rates = []
    for _ in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    t = np.arange(total)
    falling = min_lr + (lr - min_lr) * (1.0 + np.cos(np.pi * (t - warmup) / (total - warmup))) / 2.0
    closed = np.where(t < warmup, lr * (t + 1) / warmup, falling)
    worst = np.max(np.abs(np.array(rates) - closed) / closed)
    if worst > 1e-12:
        sys.exit(f"SequentialLR differs by {worst:.1e} from the definition of the learning rate")
    return torch.tensor(rates, dtype=torch.float64)


def optimizer_reference(out):
    gradients = np.stack([formula.gradient("optimizer.gradient", step, ELEMENTS) for step in range(STEPS)])
    tensors = {
        "parameter": torch.from_numpy(formula.unit("optimizer.parameter", ELEMENTS)),
        "gradients": torch.from_numpy(gradients),
    }
    about = {"steps": STEPS, "elements": ELEMENTS, "torch": version("torch"), "cases": {}}
    for case, (kind, settings) in optimizer_cases().items():
        about["cases"][case] = {"optimizer": kind, **settings}
        for dtype, suffix in ((torch.float32, "f32"), (torch.float64, "f64")):
            tensors[f"{case}.{suffix}"] = trajectory(kind, settings, dtype)
    about["ema"] = {"case": "adamw_fast", "decay": EMA_DECAY}
    for suffix in ("f32", "f64"):
        tensors[f"ema.{suffix}"] = averages(tensors[f"adamw_fast.{suffix}"], EMA_DECAY)
    schedule = {"lr": 3e-3, "min_lr": 1e-5, "warmup": 10, "total": 100}
    about["warmup_cosine"] = schedule
    tensors["warmup_cosine"] = learning_rates(**schedule)
    write(out / "optimizers.safetensors", tensors, about)


def main():
    out = begin(__doc__, "torchvision")
    for architecture, build in model_names().items():
        model_reference(architecture, build, out)
    optimizer_reference(out)
    for path in sorted(out.iterdir()):
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
