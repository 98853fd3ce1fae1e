#!/usr/bin/env python3
"""Makes small TorchScript modules and their results after PyTorch trained them.

    pip install -r tests/parity/requirements.txt
    python tests/parity/make_torchscript.py --out tests/parity/reference

A second run writes the same bytes. README.md describes every file.
"""

import io
import json
import os
import sys
import warnings
import zipfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
import formula  # noqa: E402
from opening import begin, version  # noqa: E402

CLASSES, SIZE, SAMPLES, STEPS = 4, 16, 8, 10
SGD = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}


class Net(nn.Module):
    """Convolutions, a batch normalisation and a classifier."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, image):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(image))), 2)
        x = F.relu(self.conv2(x))
        return self.fc(x.mean(dim=[2, 3]))


class WithLoss(nn.Module):
    """A network that computes each sample's loss itself."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, image, label):
        logits = self.net(image)
        return F.cross_entropy(logits, label, reduction="none", label_smoothing=0.1)


class Autoencoder(nn.Module):
    """Returns images; has a dropout, a weight with two names and a bool buffer."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Conv2d(3, 4, 1)
        self.dropout = nn.Dropout(0.5)
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.decode = nn.Conv2d(4, 3, 1)
        self.register_buffer("keep", torch.tensor([True, True, False, True]))

    def forward(self, image):
        x = self.dropout(self.encode(image)).permute(0, 2, 3, 1)
        x = self.second(F.relu(self.first(x))) * self.keep
        return self.decode(x.permute(0, 3, 1, 2))


class Doubled(nn.Module):
    """A module without parameters."""

    def forward(self, image):
        return 2 * image


class Two(nn.Module):
    """Returns more than one tensor."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, image):
        return image * self.scale, image


class Moody(nn.Module):
    """Differs between training and evaluation: a batch normalisation and a dropout."""

    def __init__(self):
        super().__init__()
        self.net = Net()
        self.dropout = nn.Dropout(0.5)

    def forward(self, image):
        return self.net(self.dropout(image))


class Within(nn.Module):
    """A script that contains a trace."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, image):
        return self.inner(image)


class Plain(nn.Module):
    """Does not differ between modes: normalisations without running statistics, a dropout with p = 0."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm1 = nn.InstanceNorm2d(8)
        self.norm2 = nn.GroupNorm(2, 8)
        self.dropout = nn.Dropout(0.0)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, image):
        x = self.norm2(F.relu(self.norm1(self.conv1(image))))
        return self.fc(self.dropout(x).mean(dim=[2, 3]))


class Attention(nn.Module):
    """Uses other operations in evaluation: an encoder layer, and attention alone."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, image):
        x = self.layer(image.flatten(2).mean(dim=1).unflatten(1, (64, 4)))
        x = self.attention(x, x, x, need_weights=False)[0]
        return self.fc(x.mean(dim=1))


class Scale(nn.Module):
    """A parameter without use; `always_dropping` adds the forward."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


def always_dropping():
    """Returns a script with a dropout in both modes, on purpose."""
    module = torch.jit.script(Scale())
    module.define("def forward(self, image: Tensor):\n    return torch.dropout(image * self.scale, 0.5, True)\n")
    return module


def traced(model, training):
    """Returns the torch.jit.trace of a model in training or evaluation mode."""
    model.train(training)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warnings concern the behaviour that these files demonstrate
        with torch.set_grad_enabled(training):
            return torch.jit.trace(model, torch.zeros(2, 3, SIZE, SIZE), check_trace=False)


def with_formula(model):
    state = {}
    for name, tensor in model.state_dict().items():
        if tensor.dtype == torch.bool:
            state[name] = tensor
        else:
            value = torch.from_numpy(np.asarray(formula.state_value(name, tuple(tensor.shape))))
            state[name] = value.to(tensor.dtype)
    model.load_state_dict(state, strict=True)
    return model


def saved(model, path, change=None, debug=False):
    """Writes a module, scripted if needed, without dates and without this script's paths in debug data."""
    buffer = io.BytesIO()
    module = model if isinstance(model, torch.jit.ScriptModule) else torch.jit.script(model)
    torch.jit.save(module, buffer)
    with zipfile.ZipFile(buffer) as whole, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as out:
        for name in sorted(whole.namelist()):
            if name.endswith("serialization_id") or (name.endswith(".debug_pkl") and not debug):
                continue
            content = whole.read(name)
            # The first part of every name is the name of the saved file.
            inner = name.split("/", 1)[1]
            entry = zipfile.ZipInfo(f"{path.stem}/{inner}")
            out.writestr(entry, change(inner, content) if change else content)


def as_from_cuda(name, content):
    """Changes a module's pickle as if its tensors had been on a GPU when it was saved."""
    if not name.endswith("data.pkl"):
        return content
    text = {device: b"X" + len(device).to_bytes(4, "little") + device for device in (b"cpu", b"cuda:0")}
    if text[b"cpu"] not in content:
        sys.exit("the pickle of a module names the device in an unknown form")
    return content.replace(text[b"cpu"], text[b"cuda:0"])


def losses(model, loss):
    """Returns the loss of every step of SGD on one batch, and the final state."""
    images = torch.from_numpy(formula.images(SIZE, SAMPLES).astype(np.float32))
    labels = torch.from_numpy(formula.labels(SIZE, CLASSES, SAMPLES))
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), **SGD)
    seen = []
    for _ in range(STEPS):
        value = loss(model, images, labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        seen.append(value.item())
    return seen, model.state_dict()


def main():
    # TorchScript orders a class's constants as a set of strings, which differs between Python processes.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    out = begin(__doc__)
    torch.manual_seed(1)
    saved(with_formula(Net()), out / "net.pt")
    saved(with_formula(Net()), out / "net-from-cuda.pt", as_from_cuda)
    saved(with_formula(WithLoss()), out / "with-loss.pt")
    saved(with_formula(Autoencoder()), out / "autoencoder.pt")
    saved(Doubled(), out / "no-parameters.pt")
    saved(Two(), out / "two-outputs.pt")
    saved(traced(with_formula(Moody()), True), out / "traced-training.pt")
    saved(traced(with_formula(Moody()), False), out / "traced-evaluation.pt")
    saved(Within(traced(with_formula(Moody()), False)), out / "traced-within.pt")
    saved(traced(with_formula(Plain()), True), out / "traced-plain.pt")
    saved(traced(with_formula(Attention()), False), out / "traced-attention.pt")
    saved(with_formula(Attention()), out / "attention.pt")
    # Its source is a string in this script: its debug data has no path.
    saved(always_dropping(), out / "always-dropping.pt", debug=True)

    cases = {}
    for case, model, loss in (
        ("net", Net(), lambda model, x, y: F.cross_entropy(model(x), y)),
        ("net-mse", Net(), lambda model, x, y: F.mse_loss(model(x), F.one_hot(y, CLASSES).float())),
        ("with-loss", WithLoss(), lambda model, x, y: model(x, y).mean()),
    ):
        # Eager PyTorch: the intended results of the module, independent of TorchScript.
        seen, state = losses(with_formula(model), loss)
        statistics = {name: value.double().mean().item() for name, value in state.items() if "running" in name}
        cases[case] = {"losses": seen, "statistics": statistics}
    about = {
        "classes": CLASSES,
        "image_size": SIZE,
        "samples": SAMPLES,
        "sgd": SGD,
        "torch": version("torch"),
        "cases": cases,
    }
    (out / "torchscript.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
