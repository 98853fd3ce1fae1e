"""Productions: buffers of all dtypes that forward reads and writes, hooks that change nothing."""

from .grammar import production

# The import refuses written buffers that checkpoints do not have.
LOST = "not persistent"
FLOATS = ["float32", "float32", "float64", "float16", "bfloat16"]
INTEGERS = ["int64", "int64", "int32", "int16", "int8", "uint8"]
# What a run may say of written state and steps of several parts.
WRITTEN = ["buffer", "micro-batch", "part"]


def when(chance, lines):
    """Returns the lines as they are, in training only, or in evaluation only."""
    condition = chance.choice([None, "if self.training:", "if self.training:", "with torch.no_grad():", "if not self.training:"])
    return [condition, *("    " + line for line in lines)] if condition else lines


def order(chance, scope, write, read):
    """Reads before, after, or before and after the write."""
    parts = chance.choice([[*write, read], [read, *write], [read, *write, read]])
    scope.run(*parts)


@production(weight=2, state=WRITTEN, reasons=[LOST])
def running_mean(chance, scope, _):
    width, dtype = scope.shape[-1], chance.choice(FLOATS)
    name = scope.buffer(f"torch.zeros({width}, dtype=torch.{dtype})", chance.random() < 0.96)
    dims = tuple(range(len(scope.shape)))
    mean = f"x.detach().mean({dims}).to({name}.dtype)"
    write = chance.choice([
        [f"{name}.mul_(0.9).add_(0.1 * {mean})"], [f"{name}.lerp_({mean}, 0.1)"], [f"{name}.copy_(0.9 * {name} + 0.1 * {mean})"],
        [f"{name} *= 0.9", f"{name} += 0.1 * {mean}"], [f"{name}[:] = 0.5 * {name} + 0.5 * {mean}"],
        [f"{name} = 0.9 * {name} + 0.1 * {mean}"], [f"{name}.copy_({mean})"],
    ])
    order(chance, scope, when(chance, write), f"x = x - {name}.float()")


@production(weight=2, state=WRITTEN, reasons=[LOST])
def counter(chance, scope, _):
    dtype = chance.choice(INTEGERS)
    shape = chance.choice(["()", "(1,)", "(2,)"])
    name = scope.buffer(f"torch.zeros({shape}, dtype=torch.{dtype})", chance.random() < 0.96)
    write = chance.choice([[f"{name}.add_(1)"], [f"{name} += 1"], [f"{name}.add_(1).remainder_(3)"], [f"{name}.fill_(3)"], [f"{name} += x.shape[0]"], [f"{name}.copy_({name} + 1)"]])
    read = chance.choice([f"x = x * (1 + 0.1 * {name}.float().sum())", f"x = torch.where({name}.sum() > 0, x, 0.5 * x)", f"x = x + {name}.to(torch.float32).mean()"])
    order(chance, scope, when(chance, write), read)


@production(weight=2, state=WRITTEN)
def initialized_flag(chance, scope, _):
    """As ActNorm does."""
    width, dtype = scope.shape[-1], chance.choice(["bool", "uint8", "int32", "int64", "float32"])
    place = scope.buffer(f"torch.zeros({width})")
    flag = scope.buffer(f"torch.zeros((), dtype=torch.{dtype})")
    mean = f"x.detach().mean({tuple(range(len(scope.shape)))})"
    lines = [f"{place}.copy_(torch.where({flag} > 0, {place}, {mean}))", f"{flag}.fill_({'True' if dtype == 'bool' else 1})"]
    order(chance, scope, when(chance, lines), f"x = x - {place}")


@production(weight=1, state=WRITTEN)
def queue(chance, scope, _):
    """As MoCo does."""
    width = scope.shape[-1]
    rows = scope.buffer(f"torch.randn(4, {width})")
    pointer = scope.buffer(f"torch.zeros(1, dtype=torch.{chance.choice(['int64', 'int64', 'int32'])})")
    row = f"x.detach().reshape(-1, {width}).mean(0)"
    write = chance.choice([
        [f"{rows}.index_copy_(0, {pointer}.long(), {row}[None])", f"{pointer}.add_(1).remainder_(4)"],
        [f"{rows}[{pointer}.long()] = {row}[None]", f"{pointer}.copy_(({pointer} + 1) % 4)"],
        [f"{rows}.copy_(torch.cat([{row}[None], {rows}[:-1]]))"],
        [f"{rows}.index_put_((({pointer} + torch.arange(x.shape[0])).long() % 4,), x.detach().reshape(x.shape[0], -1, {width}).mean(1))", f"{pointer} += x.shape[0]"],
    ])
    order(chance, scope, when(chance, write), f"x = x + 0.1 * {rows}.mean(0)")


@production(weight=2, state=WRITTEN)
def write_through_view_of_buffer(chance, scope, _):
    width = scope.shape[-1]
    name = scope.buffer(f"torch.zeros(2, {width})")
    v = scope.value()
    view = chance.choice(["{b}.view(-1)", "{b}.ravel()", "{b}.mT", "{b}.tensor_split(2)[1]", "{b}.chunk(2)[0]", "{b}.narrow(0, 1, 1)", "{b}[0]", "{b}.moveaxis(0, 1)",
                          "{b}.as_strided(({n},), (1,), 1)", "{b}.view(torch.int32).view(torch.float32)", "{b}.flatten()", "{b}.unbind(0)[1]", "{b}.reshape({n}, 2)", "{b}.detach()",
                          "{b}.float()", "{b}.t()[1:]", "{b}.diagonal()", "{b}.expand(1, -1, -1)", "{b}.view({n}, 2)[0]"]).format(b=name, n=width)
    write = [f"{v} = {view}", f"{v}.mul_(0.9).add_(0.1 * x.detach().mean())"]
    if chance.random() < 0.3:
        write.append(f"{v}.clamp_(-1, 1)")
    order(chance, scope, when(chance, write), f"x = x + {name}.sum(0)")


@production(weight=2)
def constant_buffer(chance, scope, _):
    width = scope.shape[-1]
    kind = chance.randrange(7)
    keep = chance.random() < 0.5
    if kind == 0:
        name = scope.buffer(f"torch.arange({width} - 1, -1, -1)", keep)
        scope.run(f"x = x[..., {name}]")
    elif kind == 1:
        name = scope.buffer(f"torch.arange({width}) % 2 == 0", keep)
        scope.run(chance.choice([f"x = x.masked_fill({name}, 0.1)", f"x = x * {name}", f"x = torch.where({name}, x, -x)"]))
    elif kind == 2:
        name = scope.buffer(f"torch.randn({width}, dtype=torch.{chance.choice(FLOATS)})", keep)
        scope.run(f"x = (x + {name}).float()")
    elif kind == 3:
        name = scope.buffer(f"torch.arange({width}, dtype=torch.{chance.choice(INTEGERS)})", keep)
        scope.run(f"x = x + 0.1 * {name}")
    elif kind == 4:
        name = scope.buffer(f"torch.full(({width},), float('-inf')).masked_fill(torch.arange({width}) > 0, 0.0)", keep)
        scope.run(f"x = x + (x + {name}).softmax(-1)")
    elif kind == 5:
        name = scope.buffer(f"torch.randn({width})[None].expand(3, -1)" if chance.random() < 0.5 else f"torch.randn({width}, 3).t()", keep)
        scope.run(f"x = x + {name}[1]")
    else:
        scope.run(f"x = x + torch.tensor([0.1] * {width})")


@production(weight=1, state=WRITTEN)
def shared_buffer(chance, scope, _):
    """One tensor under two names, or two views of one storage."""
    width = scope.shape[-1]
    first = scope.buffer(f"torch.zeros({width})")
    second = scope.buffer(f"{first}" if chance.random() < 0.6 else f"{first}[:]")
    scope.run(*when(chance, [f"{first}.add_(0.1 * x.detach().mean())"]), f"x = x + {second}")


@production(weight=1, state=WRITTEN)
def average_of_weights(chance, scope, _):
    width = scope.shape[-1]
    layer = scope.layer("linear", f"nn.Linear({width}, {width})")
    name = scope.buffer(f"torch.zeros({width}, {width})")
    scope.run(*when(chance, [f"{name}.lerp_({layer}.weight.detach(), 0.2)"]), f"x = {layer}(x) + F.linear(x, {name})")


@production(weight=1)
def hooks_of_forward(chance, scope, _):
    width = scope.shape[-1]
    layer = scope.layer("linear", f"nn.Linear({width}, {width})")
    scope.init.append(chance.choice([f"{layer}.register_forward_hook(lambda module, given, made: made * 0.5)", f"{layer}.register_forward_pre_hook(lambda module, given: (given[0] * 0.5,))",
                                     f"{layer}.register_forward_hook(lambda module, given, made: None)"]))
    scope.run(f"x = {layer}(x)")
