#!/usr/bin/env python3
"""Makes small exported programs, and what PyTorch computes with their models in one step.

    pip install -r tests/parity/requirements.txt
    python tests/parity/make_exported.py --out tests/parity/reference

A second run writes the same bytes. README.md describes every file.
"""

import io
import json
import re
import sys
import zipfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
from opening import begin  # noqa: E402

IMPORT = Path(__file__).resolve().parents[2] / "launcher/src/import/python"
PARTS = ("base", "blame", "model", "inputs", "programs", "check", "archive")
BATCH, SEED = 5, 7


class Block(nn.Module):
    """Two convolutions around a normalisation."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return self.conv2(F.relu(self.bn(self.conv1(x)), inplace=True))


class Classifier(nn.Module):
    """Changes the result of each block in place; normalises maps of 1 x 1."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.bn = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.0)
        self.fc = nn.Linear(4, 3)
        self.aux = nn.Linear(4, 2)

    def forward(self, image):
        x = self.stem(image)
        for block in self.blocks:
            x = F.relu_(block(x))
        x = self.bn(F.adaptive_avg_pool2d(x, 1)).flatten(1)
        return {"logits": self.fc(self.dropout(x)), "aux": self.aux(x)}


class Layer(nn.Module):
    """A block of a transformer."""

    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, 2, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Text(nn.Module):
    """A transformer whose head has the weight of the embedding, with a constant causal mask."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(Layer(8) for _ in range(3))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(6, 6, dtype=torch.bool).tril(), persistent=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.head(self.norm(x))


class Numbers(nn.Module):
    """Two inputs, a frozen parameter, buffers of every kind; two counters with equal values and different updates."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 4, bias=False)
        self.frozen = nn.Parameter(torch.randn(8), requires_grad=False)
        self.norm = nn.BatchNorm1d(8, eps=1e-3, momentum=0.3, affine=False)
        self.fc = nn.Linear(8, 4)
        self.register_buffer("keep", torch.tensor([True, False, True, True, True, True, False, True]))
        self.register_buffer("scale", torch.linspace(0.5, 2, 8), persistent=False)
        self.register_buffer("wide", torch.linspace(0, 1, 4, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("first", torch.zeros(1), persistent=False)
        self.register_buffer("second", torch.zeros(1), persistent=False)

    def forward(self, image, numbers):
        if self.training:
            self.first.add_(1)
            self.second.mul_(0.5).add_(3)
            self.count[0].add_(2)
        x = torch.cat([self.conv(image).flatten(1), numbers], 1)
        x = self.norm(x * self.frozen * self.scale) * self.keep
        x = self.fc(x) + self.first - 0.25 * self.second + self.count.sum()
        return x, (x.double() @ self.wide).float()


class Pair(nn.Module):
    """Returns two tensors."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return torch.tanh(self.a(x)), torch.sigmoid(self.b(x))


class Twice(nn.Module):
    """A module that is called twice."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x):
        return x + torch.tanh(self.norm(self.fc(x)))


class Regions(nn.Module):
    """Regions, numbers, lists of tensors, infinities."""

    def __init__(self):
        super().__init__()
        self.pairs = nn.ModuleList(Pair() for _ in range(2))
        self.twice = Twice()
        self.fc = nn.Linear(6, 3)
        self.register_buffer("columns", torch.tensor([4, 0, 2, 5]), persistent=False)

    def forward(self, x):
        for pair in self.pairs:
            a, b = pair(x)
            x = a * b
        x = self.twice(self.twice(x))
        with torch.no_grad():
            base = x.mean(1, keepdim=True)
        with torch.autocast("cpu", enabled=False):
            y = self.fc(x - base)
        half = y.shape[0] * 2 // 2
        rows = torch.cat([y, y * 2]).reshape(half, 2, 3)[:, 0]
        first, _, last = x.chunk(3, 1)
        pieces = x.split([1, 2, 3], 1)
        chosen = x[:, self.columns]
        chosen = torch.softmax(chosen.masked_fill(chosen > 0.5, float("-inf")), 1)
        chosen = torch.where(chosen.isnan(), torch.zeros_like(chosen), chosen)
        return rows, torch.cat([first, last, *pieces[::2], chosen], 1)


class Counted(nn.Module):
    """A normalisation, and a buffer that takes a new tensor."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 3)
        self.register_buffer("mean", torch.ones(4))

    def forward(self, image):
        x = F.relu(self.bn(self.conv(image))).mean([2, 3])
        y = x * self.mean
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.fc(y)


class Moving(nn.Module):
    """Changes a buffer through a view, also in evaluation, and reads it; turns pairs of numbers by complex ones."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros(2, 3))
        self.register_buffer("turns", torch.polar(torch.ones(3), torch.linspace(0.1, 1, 3)))
        self.register_buffer("wide_turns", torch.polar(torch.ones(3), torch.linspace(0.1, 1, 3)).to(torch.complex128), persistent=False)

    def forward(self, x):
        x = self.fc(x)
        self.seen.ravel().mul_(0.5)
        self.seen.mT.add_(x.detach().mean(0).reshape(3, 2))
        x = x - self.seen.flatten()
        x.float().mul_(2)
        pairs = torch.view_as_complex(x.reshape(-1, 3, 2)) * self.turns * self.wide_turns
        return torch.view_as_real(pairs).flatten(1).float()


class Changed(nn.Module):
    """Changes a tensor through a view of it, before blocks that change their buffers."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.blocks = nn.ModuleList(Moving() for _ in range(2))

    def forward(self, image):
        x = self.conv(image)
        x.view(x.shape[0], -1).mul_(0.5)
        x = x.mean([2, 3])
        for block in self.blocks:
            x = block(x)
        return x


class Plain(nn.Module):
    """Normalisations of every kind, also one of a weight, and a dropout; returns a number too."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.gain = nn.Parameter(torch.ones(4, 1, 1))
        self.bn = nn.BatchNorm2d(4)
        self.without = nn.BatchNorm2d(4, track_running_stats=False)
        self.instance = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(4, 3)

    def forward(self, image):
        weight = self.conv.weight
        weight = F.batch_norm(
            weight.reshape(1, 4, -1), None, None, weight=(self.gain * 0.5).view(-1), training=True, momentum=0.0
        ).reshape_as(weight)
        x = self.bn(F.conv2d(image, weight, self.conv.bias))
        x = self.instance(torch.tanh(self.without(x) + x))
        return self.fc(self.dropout(F.gelu(x).mean([2, 3]))), image.shape[0] + 1


def scripts():
    """Returns the functions of `dtrain import`."""
    space = {"__name__": "dtrain_import"}
    for part in PARTS:
        exec(compile((IMPORT / f"{part}.py").read_text(), part, "exec"), space)
    space["check_torch"]()
    return space


def place(trace):
    """Returns the innermost frame of a stack trace, with a short path."""
    frame = re.split(r"(?m)^(?=  File )", trace)[-1]
    return re.sub(r'File "[^"]*?(torch/nn/[^"]*|[^"/]*)"', r'File "\1"', frame)


def cleaned(value, places):
    """Returns a program's JSON without what dtrain does not read."""
    if isinstance(value, list):
        return [cleaned(part, places) for part in value]
    if not isinstance(value, dict):
        return value
    value = dict(value)
    if "target" in value and "metadata" in value:
        metadata = value["metadata"] if places else {}
        value["metadata"] = {key: metadata[key] for key in ("nn_module_stack",) if key in metadata}
        if "stack_trace" in metadata:
            value["metadata"]["stack_trace"] = place(metadata["stack_trace"])
    for key in ("kind", "is_hop_single_tensor_return", "sym_int_values", "sym_bool_values", "sym_float_values"):
        value.pop(key, None)
    if "dtype" in value and "sizes" in value:
        value = {key: value[key] for key in ("dtype", "sizes")}
    if "module_call_graph" in value:
        value["module_call_graph"] = [call for call in value["module_call_graph"] if not call["fqn"]]
    return {key: part if key == "metadata" else cleaned(part, places) for key, part in value.items()}


def write_clean(data, path):
    """Writes an archive without dates, sample inputs and paths."""
    with zipfile.ZipFile(io.BytesIO(data)) as whole, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as out:
        for name in sorted(whole.namelist()):
            inner, content = name.split("/", 1)[1], whole.read(name)
            if inner.startswith("data/sample_inputs/") or inner.endswith("serialization_id"):
                continue
            if inner in ("models/model.json", "extra/evaluation.json"):
                document = cleaned(json.loads(content), inner.startswith("models"))
                content = json.dumps(document, separators=(",", ":")).encode()
            out.writestr(zipfile.ZipInfo(f"{path.stem}/{inner}"), content)


def tensors_of(outputs):
    """Returns the named tensors of a result."""
    if isinstance(outputs, dict):
        return outputs
    if isinstance(outputs, torch.Tensor):
        return {"output": outputs}
    return {f"output_{index}": value for index, value in enumerate(outputs) if isinstance(value, torch.Tensor)}


def step(model, inputs):
    """Returns what a training step and an evaluation after it give."""
    model.train()
    torch.manual_seed(SEED)
    found = {f"input.{name}": tensor.clone() for name, tensor in inputs.items()}
    outputs = tensors_of(model(**inputs))
    loss = sum(value.square().mean() for value in outputs.values())
    loss.backward()
    found["loss"] = loss.detach()
    found |= {f"output.{name}": value.detach() for name, value in outputs.items()}
    found |= {f"grad.{name}": value.grad for name, value in model.named_parameters() if value.grad is not None}
    found |= {f"buffer.{name}": value.clone() for name, value in model.state_dict().items() if name in dict(model.named_buffers())}
    model.eval()
    with torch.no_grad():
        found |= {f"evaluation.{name}": value for name, value in tensors_of(model(**inputs)).items()}
    return {name: (torch.view_as_real(value) if value.is_complex() else value).contiguous() for name, value in found.items()}


def imported(space, model, examples):
    """Returns the archive of `dtrain import`."""
    named = space["Named"](model, space["named_inputs"](model, examples))
    state = space["State"](model)
    programs = []
    for training in (True, False):
        programs.append(named.export(training))
        state.restore()
    about = {"format": 1, "inputs": named.inputs.names, "outputs": named.names[True], "evaluation_outputs": named.names[False]}
    del model.forward
    file = io.BytesIO()
    space["write_archive"](file, *programs, about)
    return file.getvalue()


def exported(model, examples, decompose):
    """Returns the archive of `torch.export.save`."""
    dynamic = torch.export.Dim.DYNAMIC
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    program = torch.export.export(
        model.train(), tuple(examples.values()), dynamic_shapes=tuple({0: dynamic} for _ in examples), strict=False
    )
    model.load_state_dict(state)
    file = io.BytesIO()
    torch.export.save(program.run_decompositions() if decompose else program, file)
    return file.getvalue()


def main():
    out = begin(__doc__) / "exported"
    out.mkdir(exist_ok=True)
    space = scripts()
    image, row = (lambda *shape: lambda batch: torch.randn(batch, *shape)), None
    cases = {
        "classifier": (Classifier, {"image": image(3, 8, 8)}, None),
        "text": (Text, {"tokens": lambda batch: torch.randint(0, 11, (batch, 6))}, False),
        "numbers": (Numbers, {"image": image(2, 4, 4), "numbers": image(5)}, None),
        "regions": (Regions, {"x": image(6)}, None),
        "functional": (Counted, {"image": image(3, 6, 6)}, True),
        "changed": (Changed, {"image": image(3, 4, 4)}, None),
        "plain": (Plain, {"image": image(3, 6, 6)}, False),
    }
    for case, (build, inputs, decompose) in cases.items():
        torch.manual_seed(SEED)
        model = build()
        examples = {name: make(3) for name, make in inputs.items()}
        data = imported(space, model, examples) if decompose is None else exported(model, examples, decompose)
        write_clean(data, out / f"{case}.pt2")
        save_file(step(model, {name: make(BATCH) for name, make in inputs.items()}), out / f"{case}.safetensors")
        print(f"{case}: {(out / f'{case}.pt2').stat().st_size} and {(out / f'{case}.safetensors').stat().st_size} bytes")


if __name__ == "__main__":
    main()
