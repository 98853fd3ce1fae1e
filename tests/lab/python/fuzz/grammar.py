"""Random modules of PyTorch: a list of productions, each of which changes the running tensor `x`.

A module is its specification: an input and a list of items, each the name of a production, the seed of its choices, and
the items inside it. A production gets the shape that is there, so a specification stays valid if items are removed.
The batch is the first dimension of `x`, which stays float32.
"""

import random
from dataclasses import dataclass, field

# The most samples of a case.
ROWS = 12
# The share of modules with one construct that the import may refuse.
RISK = 0.12

PRODUCTIONS, RISKY = {}, {}


def production(*ranks, weight=1.0, reasons=(), state=(), risky=False):
    """Registers a production for tensors with these numbers of dimensions beside the batch.

    `reasons` are patterns of the sentences that may refuse it, `state` of those that may refuse its steps of several parts.
    """

    def register(function):
        name = function.__name__
        (RISKY if risky else PRODUCTIONS)[name] = Production(name, function, ranks or (1, 2, 3), weight, reasons, state)
        return function

    return register


@dataclass
class Production:
    name: str
    function: object
    ranks: tuple
    weight: float
    reasons: tuple
    state: tuple


@dataclass
class Item:
    name: str
    seed: int
    inside: list = field(default_factory=list)


@dataclass
class Program:
    """A module's source while it is written, and what its productions declare."""

    top: list = field(default_factory=list)
    features: list = field(default_factory=list)
    reasons: list = field(default_factory=list)
    state: list = field(default_factory=list)
    other: str = None
    # Whether autocast around the module is the same as around its export.
    amp: bool = True
    used: int = 0

    def name(self, stem):
        self.used += 1
        return f"{stem}{self.used}"


class Scope:
    """One class of a module while it is written."""

    def __init__(self, program, shape, depth=0):
        self.program, self.shape, self.depth = program, tuple(shape), depth
        self.init, self.body = [], []

    def layer(self, stem, made):
        name = self.program.name(stem)
        self.init.append(f"self.{name} = {made}")
        return f"self.{name}"

    def parameter(self, made):
        return self.layer("weight", f"nn.Parameter({made})")

    def buffer(self, made, persistent=True):
        name = self.program.name("buffer")
        self.init.append(f'self.register_buffer("{name}", {made}{"" if persistent else ", persistent=False"})')
        return f"self.{name}"

    def value(self):
        return self.program.name("y")

    def run(self, *lines):
        self.body.extend(lines)

    def apply(self, item):
        """Adds an item. Returns whether its production takes the running tensor."""
        made = PRODUCTIONS.get(item.name) or RISKY[item.name]
        chance = random.Random(item.seed)
        if len(self.shape) not in made.ranks or made.function(chance, self, item) is False:
            return False
        self.program.features.append(item.name)
        self.program.reasons.extend(made.reasons)
        self.program.state.extend(made.state)
        return True

    def fill(self, chance, least, most, risky=0.0):
        """Returns new items that have been applied."""
        items = []
        names, weights = zip(*((made.name, made.weight) for made in PRODUCTIONS.values()))
        wanted = chance.randint(least, most)
        refusable = chance.randrange(wanted) if chance.random() < risky else None
        tries = 0
        while len(items) < wanted and tries < 100:
            tries += 1
            if len(items) == refusable:
                name = chance.choice(list(RISKY))
            else:
                name = chance.choices(names, weights)[0]
            item = Item(name, chance.randrange(2**32))
            if name == "blocks" and self.depth:
                continue
            if self.apply(item):
                items.append(item)
        return items

    def source(self, name, argument, result):
        lines = [f"class {name}(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        lines += ["        " + line for text in self.init for line in text.split("\n")]
        lines += ["", f"    def forward(self, {argument}):"]
        lines += ["        " + line for text in self.body for line in text.split("\n")]
        return "\n".join([*lines, f"        return {result}", "", ""])


@dataclass
class Made:
    source: str
    features: list
    reasons: list
    state: list
    amp: bool
    spec: list


INPUTS = [
    ("features", "torch.randn(ROWS, 8)", (8,), 2),
    ("few", "torch.randn(ROWS, 4)", (4,), 1),
    ("series", "torch.randn(ROWS, 4, 6)", (4, 6), 3),
    ("image", "torch.randn(ROWS, 4, 6, 6)", (4, 6, 6), 3),
    ("bytes", "torch.randint(0, 256, (ROWS, 3, 4, 6), dtype=torch.uint8)", (3, 4, 6), 1),
    ("tokens", "torch.randint(0, 10, (ROWS, 6))", (6, 8), 2),
    ("half", "torch.randn(ROWS, 4, 8).bfloat16()", (4, 8), 0.5),
    ("double", "torch.randn(ROWS, 8).double()", (8,), 0.5),
]

HEAD = """import math
import random

import torch
from torch import nn
import torch.nn.functional as F

ROWS = {rows}


"""


def generate(seed):
    """Returns the module of a seed."""
    chance = random.Random(seed)
    kind = chance.choices([made[0] for made in INPUTS], [made[3] for made in INPUTS])[0]
    spec = [kind, chance.randrange(2**32), None]
    scope, _ = opened(spec)
    spec[2] = scope.fill(chance, 3, 7, RISK)
    return build(spec)


def opened(spec):
    """Returns the scope of a new module, with its input as `x`, and the second input's expression or None."""
    kind, seed, _ = spec
    chance = random.Random(seed)
    shape = next(made[2] for made in INPUTS if made[0] == kind)
    scope = Scope(Program(), shape)
    if kind == "tokens":
        scope.run(f"x = {scope.layer('embedding', 'nn.Embedding(10, 8)')}(x)")
    elif kind == "bytes":
        scope.run("x = x.float() / 255 - 0.5")
    elif kind in ("half", "double"):
        scope.run("x = x.float()")
    second = None
    if chance.random() < 0.25:
        second, scope.program.other = "torch.randn(ROWS, 5)", "other"
    return scope, second


def build(spec):
    """Returns the module of a specification."""
    scope, second = opened(spec)
    for item in spec[2]:
        scope.apply(item)
    chance = random.Random(spec[1] + 1)
    kind, made, _, _ = next(made for made in INPUTS if made[0] == spec[0])
    result = finish(chance, scope)
    program = scope.program
    given = f'{{"x": {made}' + (f', "other": {second}' if second else "") + "}"
    text = HEAD.format(rows=ROWS) + "".join(text + "\n\n" for text in program.top)
    text += scope.source("Model", "x, other" if second else "x", result)
    text += f"\ndef make():\n    return Model(), {given}\n"
    return Made(text, [f"input:{kind}", *program.features], program.reasons, program.state, program.amp, spec)


def finish(chance, scope):
    """Adds the head. Returns the expression of the result."""
    width = scope.shape[-1]
    if len(scope.shape) == 3:
        scope.run("features = x.mean((2, 3))")
        width = scope.shape[0]
    elif len(scope.shape) == 2:
        scope.run("features = x.mean(1)" if chance.random() < 0.7 else "features = x[:, 0]")
    else:
        scope.run("features = x")
    if scope.program.other:
        scope.run(f"features = features + {scope.layer('side', f'nn.Linear(5, {width})')}(other)")
    head = scope.layer("head", f"nn.Linear({width}, 3)")
    scope.run(f"logits = {head}(features)")
    kind = chance.choice(["one", "one", "one", "tuple", "dict", "dict", "loss", "rows", "integers", "nested"])
    scope.program.features.append(f"output:{kind}")
    if kind == "tuple":
        return "logits, features"
    if kind == "dict":
        return '{"logits": logits, "features": features}'
    if kind == "loss":
        return '{"loss": F.cross_entropy(logits, logits.detach().argmax(-1)), "logits": logits}'
    if kind == "rows" and len(scope.shape) == 2:
        return f'{{"logits": logits, "rows": x.reshape(-1, {scope.shape[-1]})}}'
    if kind == "integers":
        return '{"logits": logits, "chosen": logits.argmax(-1), "positive": logits > 0}'
    if kind == "nested":
        return '{"logits": logits, "hidden": [features, features * 2], "none": None}'
    return "logits"


def smaller(spec):
    """Yields specifications with an item less."""

    def without(items):
        for index, item in enumerate(items):
            yield items[:index] + items[index + 1 :]
            for inside in without(item.inside):
                yield [*items[:index], Item(item.name, item.seed, inside), *items[index + 1 :]]

    for items in without(spec[2]):
        yield [spec[0], spec[1], items]
