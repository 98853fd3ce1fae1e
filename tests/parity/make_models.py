#!/usr/bin/env python3
"""Computes references of ViT, GPT, U-Net and ResNet-50 with PyTorch.

    pip install -r tests/parity/requirements.txt
    python tests/parity/make_models.py --out tests/parity/reference

A second run writes the same bytes. README.md describes every file. The vision transformer,
the U-Net and the GPT are written here, from their papers, with the names of the usual modules; ResNets are
torchvision's.
"""

import sys

import torch
import torchvision
from torch import nn
from torch.nn import functional as F

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
import formula  # noqa: E402
from make_reference import PROBES, with_formula, write  # noqa: E402
from opening import begin, version  # noqa: E402


class Attention(nn.Module):
    """Self-attention in plain matrix products; `names` are those of the two layers."""

    def __init__(self, width, heads, causal, names):
        super().__init__()
        self.heads, self.causal, self.names = heads, causal, names
        self.add_module(names[0], nn.Linear(width, 3 * width))
        self.add_module(names[1], nn.Linear(width, width))

    def forward(self, x):
        batch, length, width = x.shape
        features = width // self.heads
        q, k, v = (
            part.reshape(batch, length, self.heads, features).transpose(1, 2)
            for part in getattr(self, self.names[0])(x).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-2, -1) / features**0.5
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        return getattr(self, self.names[1])(y)


class Mlp(nn.Module):
    def __init__(self, width, gelu, names):
        super().__init__()
        self.gelu, self.names = gelu, names
        self.add_module(names[0], nn.Linear(width, 4 * width))
        self.add_module(names[1], nn.Linear(4 * width, width))

    def forward(self, x):
        widen, narrow = (getattr(self, name) for name in self.names)
        return narrow(F.gelu(widen(x), approximate=self.gelu))


class Block(nn.Module):
    def __init__(self, width, heads, causal, eps, gelu, norms, attention, mlp):
        super().__init__()
        self.norms = norms
        self.add_module(norms[0], nn.LayerNorm(width, eps=eps))
        self.attn = Attention(width, heads, causal, attention)
        self.add_module(norms[1], nn.LayerNorm(width, eps=eps))
        self.mlp = Mlp(width, gelu, mlp)

    def forward(self, x):
        x = x + self.attn(getattr(self, self.norms[0])(x))
        return x + self.mlp(getattr(self, self.norms[1])(x))


class Vit(nn.Module):
    def __init__(self, image_size, channels, patch, width, depth, heads, classes):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, (image_size // patch) ** 2 + 1, width))
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(channels, width, patch, stride=patch)
        names = (("norm1", "norm2"), ("qkv", "proj"), ("fc1", "fc2"))
        self.blocks = nn.ModuleList(Block(width, heads, False, 1e-6, "none", *names) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.patch_embed.proj(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class Gpt(nn.Module):
    def __init__(self, vocabulary, context, width, depth, heads):
        super().__init__()
        names = (("ln_1", "ln_2"), ("c_attn", "c_proj"), ("c_fc", "c_proj"))
        self.transformer = nn.Module()
        self.transformer.wte = nn.Embedding(vocabulary, width)
        self.transformer.wpe = nn.Embedding(context, width)
        self.transformer.h = nn.ModuleList(Block(width, heads, True, 1e-5, "tanh", *names) for _ in range(depth))
        self.transformer.ln_f = nn.LayerNorm(width, eps=1e-5)

    def forward(self, tokens):
        x = self.transformer.wte(tokens) + self.transformer.wpe(torch.arange(tokens.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        return F.linear(self.transformer.ln_f(x), self.transformer.wte.weight)


class DoubleConv(nn.Module):
    def __init__(self, given, made):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(given, made, 3, padding=1, bias=False), nn.BatchNorm2d(made), nn.ReLU(),
            nn.Conv2d(made, made, 3, padding=1, bias=False), nn.BatchNorm2d(made), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x):
        return self.double_conv(x)


class Unet(nn.Module):
    def __init__(self, channels, classes, width, depth):
        super().__init__()
        self.depth = depth
        self.inc = DoubleConv(channels, width)
        for level in range(1, depth + 1):
            down = nn.Module()
            down.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(width << (level - 1), width << level))
            self.add_module(f"down{level}", down)
        for level in range(1, depth + 1):
            here = width << (depth - level)
            up = nn.Module()
            up.up = nn.ConvTranspose2d(2 * here, here, 2, stride=2)
            up.conv = DoubleConv(2 * here, here)
            self.add_module(f"up{level}", up)
        self.outc = nn.Module()
        self.outc.conv = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        maps = [self.inc(x)]
        for level in range(1, self.depth + 1):
            maps.append(getattr(self, f"down{level}").maxpool_conv(maps[-1]))
        x = maps.pop()
        for level in range(1, self.depth + 1):
            up, skip = getattr(self, f"up{level}"), maps.pop()
            x = up.up(x)
            x = F.pad(x, (0, skip.shape[3] - x.shape[3], 0, skip.shape[2] - x.shape[2]))
            x = up.conv(torch.cat([skip, x], dim=1))
        return self.outc.conv(x)


def cases():
    """Returns name -> (builder, settings, input shape, number of classes or tokens, gradients kept whole)."""
    vit = {"image_size": 24, "channels": 4, "patch": 8, "width": 48, "depth": 3, "heads": 4, "classes": 10}
    gpt = {"vocabulary": 31, "context": 20, "width": 48, "depth": 3, "heads": 4}
    unet = {"channels": 2, "classes": 3, "width": 8, "depth": 3}
    block = "layer3.0"
    return {
        "vit": (Vit, vit, [3, 4, 24, 24], 10, ["cls_token", "head.weight", "blocks.1.attn.qkv.bias", "blocks.2.mlp.fc1.bias"]),
        "gpt": (Gpt, gpt, [3, 17], 31, ["transformer.wte.weight", "transformer.h.1.attn.c_attn.bias", "transformer.ln_f.bias"]),
        "unet": (Unet, unet, [3, 2, 14, 19], 3, ["inc.double_conv.0.weight", "up1.up.bias", "outc.conv.weight"]),
        "resnet50": (
            lambda classes: torchvision.models.resnet50(weights=None, num_classes=classes),
            {"classes": 20},
            [4, 3, 64, 64],
            20,
            ["bn1.weight", f"{block}.downsample.1.bias", f"{block}.bn3.weight", "fc.bias"],
        ),
    }


def inputs(case, shape, classes, dtype):
    """Returns images or tokens, and their targets: a class per image, per pixel or per token."""
    count = torch.Size(shape).numel()
    if case == "gpt":
        tokens = formula.words("gpt.input", count) % classes
        given = torch.from_numpy(tokens.astype("int64")).reshape(shape)
    else:
        images = 1.5 * formula.unit(f"{case}.input", count)
        given = torch.from_numpy(images.astype("float32")).to(dtype).reshape(shape)
    wanted = {"gpt": shape, "unet": [shape[0], *shape[2:]]}.get(case, shape[:1])
    classes = formula.words(f"{case}.target", torch.Size(wanted).numel()) % classes
    return given, torch.from_numpy(classes.astype("int64")).reshape(wanted)


def loss_of(case, logits, target):
    return F.cross_entropy(logits.transpose(1, 2) if case == "gpt" else logits, target)


def run(case, dtype):
    """Runs one evaluation and one training pass (forward and backward) from the same weights."""
    build, settings, shape, classes, whole = cases()[case]
    given, target = inputs(case, shape, classes, dtype)
    model = with_formula(build(**settings), dtype).eval()
    out = {}
    with torch.no_grad():
        out["eval.logits"] = model(given)
    model.train()
    logits = model(given)
    loss = loss_of(case, logits, target)
    loss.backward()
    out["train.logits"], out["train.loss"] = logits.detach(), loss.detach()
    named = dict(model.named_parameters())
    norms, probes = [], []
    for name, parameter in named.items():
        flat = parameter.grad.double().flatten()
        norms.append(flat.norm())
        directions = (torch.from_numpy(formula.unit(f"probe.{k}.{name}", flat.numel())) for k in range(PROBES))
        probes.append(torch.stack([flat @ direction for direction in directions]))
    out["grad.norms"], out["grad.probes"] = torch.stack(norms), torch.stack(probes)
    for name in whole:
        out[f"grad.{name}"] = named[name].grad
    # The means of every batch norm's statistics, which detect a wrong statistic.
    for name, buffer in model.named_buffers():
        if "running" in name:
            out[f"state.{name}"] = buffer.double().mean()
    return out


def digest(model):
    """Returns a hash of the names, shapes and types of a model's state, in its order."""
    kind = {torch.int64: "int64", torch.float32: "float32"}
    rows = (f"{name} {list(t.shape)} {kind[t.dtype]}\n" for name, t in model.state_dict().items())
    return f"{formula.name_hash(''.join(rows)):016x}"


def case_reference(case, out):
    exact, single = run(case, torch.float64), run(case, torch.float32)
    logits = max(float((exact[k] - single[k].double()).abs().max()) for k in ("eval.logits", "train.logits"))
    apart = (exact["grad.probes"] - single["grad.probes"]).square().mean(dim=1).mul(3).sqrt()
    gradient = float((apart / exact["grad.norms"]).max())
    print(f"{case}: float32 against float64: logits {logits:.1e}, gradients {gradient:.1e}")
    # Deep networks with normalisation over few images amplify rounding errors: compared only in float64.
    conditioned = logits < 3e-5 and gradient < 3e-4
    if conditioned == (case == "resnet50"):
        sys.exit(f"{case} has float32 errors outside of the expected range")
    keep = lambda name, t: t if name in ("grad.norms", "grad.probes") or name.startswith("state.") else t.float()  # noqa: E731
    tensors = {name: keep(name, tensor).contiguous() for name, tensor in exact.items()}
    build, settings, shape, classes, _ = cases()[case]
    state = build(**settings)
    about = {
        "settings": settings,
        "input": shape,
        "classes": classes,
        "parameters": sum(parameter.numel() for parameter in state.parameters()),
        "state": digest(state),
        "probes": PROBES,
        "types": ["float32", "float64"] if conditioned else ["float64"],
        "torch": version("torch"),
    }
    if case == "resnet50":
        about["states_of_1000_classes"] = {
            name: digest(getattr(torchvision.models, name)(weights=None)) for name in ("resnet50", "resnet101", "resnet152")
        }
        about["torchvision"] = version("torchvision")
    write(out / f"{case}.safetensors", tensors, about)


def main():
    out = begin(__doc__, "torchvision")
    for case in cases():
        case_reference(case, out)
        path = out / f"{case}.safetensors"
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
