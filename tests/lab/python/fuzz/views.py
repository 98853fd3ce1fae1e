"""Productions: views, writes in place through them, operations of all kinds."""

from .grammar import production

# Views of a tensor `{y}` with a batch: expression, numbers of dimensions beside the batch. {d}: the last size.
VIEWS = [
    ("{y}.view({y}.shape[0], -1)", (1, 2, 3)),
    ("{y}.reshape({y}.shape[0], -1)", (1, 2, 3)),
    ("{y}.reshape(-1, {d})", (1, 2, 3)),
    ("{y}.view(-1, {h}, 2)", (1,)),
    ("{y}.transpose(1, 2)", (2, 3)),
    ("{y}.permute(0, 2, 1)", (2,)),
    ("{y}.permute(0, 2, 3, 1)", (3,)),
    ("{y}.permute(0, 2, 3, 1).reshape({y}.shape[0], -1)", (3,)),
    ("{y}.transpose(0, 1)", (1, 2, 3)),
    ("{y}.flatten(1)", (2, 3)),
    ("{y}.flatten()", (1, 2, 3)),
    ("{y}.ravel()", (1, 2, 3)),
    ("{y}.mT", (2, 3)),
    ("{y}.t()", (1,)),
    ("{y}.unflatten(-1, ({h}, 2))", (1, 2, 3)),
    ("{y}.tensor_split(2, -1)[1]", (1, 2, 3)),
    ("{y}.narrow(-1, 1, 2)", (1, 2, 3)),
    ("{y}.as_strided({y}.size(), {y}.stride())", (1, 2, 3)),
    ("{y}.moveaxis(1, -1)", (2, 3)),
    ("{y}.swapdims(1, -1)", (2, 3)),
    ("{y}.movedim(-1, 1).flatten(1)", (2, 3)),
    ("{y}[:, ::2]", (1, 2, 3)),
    ("{y}[..., 1:]", (1, 2, 3)),
    ("{y}[:, 0]", (2, 3)),
    ("{y}.select(-1, 1)", (2, 3)),
    ("{y}.unsqueeze(1).squeeze(1)", (1, 2, 3)),
    ("{y}.diagonal(0, 1, 2)", (2, 3)),
    ("{y}.unfold(-1, 2, 2)", (1, 2, 3)),
    ("{y}.view_as({y})", (1, 2, 3)),
    ("{y}.expand_as({y})", (1, 2, 3)),
    ("{y}.float()", (1, 2, 3)),
    ("{y}.to(torch.float32)", (1, 2, 3)),
    ("{y}.contiguous()", (1, 2)),
    ("F.dropout({y}, 0.0)", (1, 2, 3)),
    ("nn.Identity()({y})", (1, 2, 3)),
    ("{y}.view(torch.float32)", (1, 2, 3)),
    ("{y}.positive()", (1, 2, 3)),
    ("torch.atleast_2d({y})", (1, 2, 3)),
    ("torch.broadcast_to({y}, {y}.shape)", (1, 2, 3)),
    ("torch.pixel_unshuffle({y}, 2).flatten(1)", (3,)),
]
# Autograd forbids writes through these.
MULTIPLE = [
    ("{y}.chunk(2, -1)[1]", (1, 2, 3)),
    ("{y}.split(2, -1)[0]", (1, 2, 3)),
    ("{y}.unbind(1)[1]", (2, 3)),
    ("torch.split_with_sizes({y}, [1, {d} - 1], -1)[1]", (1, 2, 3)),
    ("{y}.hsplit(2)[0]", (1, 2)),
]
# Writes to a view `{v}` of at least two values along its last dimension; {i}: a buffer of indices 0 and 1.
WRITES = [
    "{v}.add_(0.5)",
    "{v}.mul_(0.75)",
    "{v}.sub_({v}.mean(-1, keepdim=True))",
    "{v}.copy_({v}.tanh())",
    "{v}.masked_fill_({v} > 0.4, 0.1)",
    "{v}.relu_()",
    "{v}.clamp_(-1.0, 1.5)",
    "{v}.neg_()",
    "{v}.lerp_(torch.ones_like({v}), 0.2)",
    "{v}.index_fill_(-1, {i}, 0.2)",
    "{v}.index_put_((torch.tensor([0]),), {v}[:1] * 0.5)",
    "{v}[..., {i}] = 0.3",
    "{v}[..., {i}] *= 0.5",
    "{v}[..., 0] += 0.5",
    "{v}[..., :1] = {v}[..., 1:2] * 2",
    "{v} += 0.25",
    "F.relu({v}, inplace=True)",
    "F.leaky_relu({v}, 0.2, inplace=True)",
    "F.dropout({v}, 0.3, self.training, inplace=True)",
    "{v}.where({v} > 0, {v} * 0.1).sum()\n{v}.addcmul_({v}.detach(), {v}.detach(), value=0.1)",
]
SOURCES = ["x * 1.25", "x.clone()", "x + 0.1", "torch.cat([x, x], 1)[:, : x.shape[1]]", "F.pad(x, (0, 0))"]


def chosen(chance, scope, views, name):
    fit = [view for view, ranks in views if len(scope.shape) in ranks]
    width = scope.shape[-1]
    return chance.choice(fit).format(y=name, d=width, h=width // 2)


def note_dtype(scope, view):
    """An export fixes the dtypes that Python reads or names: a `view`, or a cast to a tensor's own dtype, has others under autocast."""
    if "view(torch.float32)" in view or ".dtype)" in view:
        scope.program.amp = False


def write(chance, scope, view):
    text = chance.choice(WRITES)
    index = scope.buffer("torch.tensor([0, 1])", chance.random() < 0.5) if "{i}" in text else ""
    return text.format(v=view, i=index)


def fits(scope):
    """Returns whether halves of the last dimension are there to be taken."""
    return scope.shape[-1] >= 4 and scope.shape[-1] % 2 == 0 and (len(scope.shape) < 2 or min(scope.shape) >= 2)


@production(weight=4, reasons=["in-place operation overwrites"])
def write_through_view(chance, scope, _):
    if not fits(scope):
        return False
    y, v = scope.value(), scope.value()
    sources = [*SOURCES]
    if len(scope.shape) == 3 and chance.random() < 0.5:
        sources = [scope.layer("conv", f"nn.Conv2d({scope.shape[0]}, {scope.shape[0]}, 1)") + "(x)"]
    elif chance.random() < 0.3:
        sources = [scope.layer("linear", f"nn.Linear({scope.shape[-1]}, {scope.shape[-1]})") + "(x)"]
    view = chosen(chance, scope, VIEWS, y)
    note_dtype(scope, view)
    scope.run(f"{y} = {chance.choice(sources)}", f"{v} = {view}", write(chance, scope, v))
    if chance.random() < 0.3:
        scope.run(write(chance, scope, v))
    scope.run(f"x = {y}")
    if chance.random() < 0.3:
        scope.run(f"x = x + 0.1 * {v}.mean()")


@production(weight=2)
def write_without_gradient(chance, scope, _):
    if not fits(scope):
        return False
    y, v = scope.value(), scope.value()
    view = chosen(chance, scope, VIEWS + MULTIPLE, y)
    note_dtype(scope, view)
    scope.run(f"{y} = x.detach() * 1.5", f"{v} = {view}")
    kind = chance.randrange(4)
    if kind == 0:
        scope.run(f"{v} = {y}.view(torch.int32)", f"{v}.bitwise_and_(0x7FFFFFFF)")
    elif kind == 1:
        scope.run("with torch.no_grad():", *("    " + line for line in write(chance, scope, v).split("\n")))
    else:
        scope.run(write(chance, scope, v))
    scope.run(f"x = x + 0.3 * {y}")


@production(weight=2)
def views(chance, scope, _):
    if not fits(scope):
        return False
    y = scope.value()
    scope.run(f"{y} = {chosen(chance, scope, VIEWS + MULTIPLE, 'x')}")
    use = chance.choice(["{y}.tanh().mean()", "{y}.reshape(x.shape[0], -1).mean(-1).sum()", "{y}.square().sum() * 0.01"])
    if "reshape(-1" in scope.body[-1] or "ravel" in scope.body[-1] or ".flatten()" in scope.body[-1] or "0, 1" in scope.body[-1]:
        use = "{y}.tanh().mean()"
    scope.run(f"x = x + {use.format(y=y)}")


@production(2, 3)
def exchange(chance, scope, _):
    sizes = list(scope.shape)
    if len(sizes) == 2:
        form = chance.choice(["x.transpose(1, 2)", "x.mT.contiguous()", "x.permute(0, 2, 1)", "x.swapaxes(1, 2)", "x.moveaxis(2, 1).clone()"])
        scope.run(f"x = {form}")
        scope.shape = tuple(reversed(sizes))
    else:
        scope.run(chance.choice(["x = x.mT", "x = x.transpose(2, 3).contiguous()"]))
        scope.shape = (sizes[0], sizes[2], sizes[1])


@production(1, 2, 3)
def fold(chance, scope, _):
    """Changes the number of dimensions."""
    sizes = scope.shape
    if len(sizes) == 1:
        if sizes[0] % 4:
            return False
        scope.run(chance.choice([f"x = x.view(-1, {sizes[0] // 2}, 2)", f"x = x.unflatten(1, ({sizes[0] // 2}, 2))"]))
        scope.shape = (sizes[0] // 2, 2)
    elif len(sizes) == 2:
        if sizes[0] * sizes[1] > 32:
            return False
        scope.run(chance.choice(["x = x.flatten(1)", "x = x.reshape(x.shape[0], -1)", "x = x.contiguous().view(x.size(0), -1)"]))
        scope.shape = (sizes[0] * sizes[1],)
    else:
        scope.run(chance.choice(["x = x.flatten(2).transpose(1, 2)", "x = x.reshape(x.shape[0], x.shape[1], -1).mT"]))
        scope.shape = (sizes[1] * sizes[2], sizes[0])


@production(1, 2, 3)
def halves(chance, scope, _):
    if scope.shape[-1] % 2:
        return False
    scope.run(chance.choice(["a, b = x.chunk(2, -1)", "a, b = x.tensor_split(2, -1)", f"a, b = x.split({scope.shape[-1] // 2}, -1)", "a, b = x[..., ::2], x[..., 1::2]"]))
    scope.run(chance.choice(["x = torch.cat([a * b.sigmoid(), b], -1)", "x = torch.stack([a, a * b.tanh()], -1).flatten(-2)"]))


OPERATIONS = [
    "F.gelu(x)", "F.relu(x)", "F.silu(x) + x", "torch.tanh(x)", "F.softplus(x)", "x.sigmoid() * 2", "F.elu(x)", "F.hardswish(x) + x",
    "x.softmax(-1) * 3", "x - x.logsumexp(-1, keepdim=True) * 0.1", "x.cumsum(-1) * 0.5", "x.roll(1, -1)", "x.flip(-1)",
    "x / (1 + x.norm(dim=-1, keepdim=True))", "F.normalize(x, dim=-1)", "x.clamp(-1, 1)", "torch.where(x > 0, x, 0.1 * x)",
    "torch.maximum(x, -x)", "x.sort(-1).values", "x.topk(2, -1).values.mean(-1, keepdim=True) + x", "x + x.amax(-1, keepdim=True)",
    "x + x.median(-1, keepdim=True).values", "x * x.std(-1, keepdim=True)", "x - x.mean(0, keepdim=True)", "x + x.max()",
    "x.gather(-1, x.argsort(-1))", "F.pad(x, (1, 0))[..., :-1] + x", "x.masked_fill(x < -0.5, -0.5)", "x.addcmul(x, x, value=0.1)",
    "torch.lerp(x, x.tanh(), 0.5)", "x.repeat_interleave(2, -1)[..., ::2]", "torch.cat([x, x], 0)[: x.shape[0]]", "torch.einsum('b...i,b...i->b...i', x, x) * 0.2",
    "x + torch.linspace(-1, 1, x.shape[-1])", "x + torch.arange(x.shape[0]).view([-1] + [1] * (x.dim() - 1)) * 0.05", "x.nan_to_num()",
    "torch.stack([x, -x]).amax(0)", "x.abs().sqrt()", "torch.atan2(x, x.abs() + 1)", "x + x.prod(-1, keepdim=True) * 0.1",
    "x.repeat([2] + [1] * (x.dim() - 1))[: x.shape[0]]", "x.index_select(-1, torch.tensor([0, 1]).repeat(x.shape[-1])[: x.shape[-1]])", "x + F.one_hot(x.argmax(-1), x.shape[-1]) * 0.5",
    "x.log1p().nan_to_num()" , "F.glu(torch.cat([x, x], -1))", "x + x.new_ones(x.shape[0], *[1] * (x.dim() - 1))", "x + torch.zeros(x.shape)", "x.expand(2, *x.shape).sum(0) * 0.5",
    "torch.outer(x.flatten(), torch.ones(2)).sum(1).view(x.shape)", "x * (x.shape[0] / 4)", "x + 1 / x.shape[0]", "x.sum(0, keepdim=True) / x.shape[0] + x",
]


@production(weight=4)
def operation(chance, scope, _):
    text = chance.choice(OPERATIONS)
    if scope.shape[-1] < 2 or "log1p" in text:
        text = "F.gelu(x)"
    scope.run(f"x = {text}")


@production(weight=1, reasons=["in-place operation overwrites"])
def write_in_place(chance, scope, _):
    y = scope.value()
    scope.run(f"{y} = x * 0.5")
    scope.run(chance.choice(["{y} += 0.5", "{y} *= 2", "{y} = {y}.relu_()", "{y}.add_(x)", "{y} -= x.mean()", "{y}[:, 0] = 0.5", "{y}[:, 1:] = {y}[:, :-1].clone()", "{y}[-1] = 0.25", "{y}.scatter_(-1, {y}.argmax(-1, keepdim=True), 0.5)", "{y}.index_add_(1, torch.tensor([0]), {y}[:, 1:2].clone())", "{y}[{y} > 0.5] = 0.5"]).format(y=y))
    scope.run(f"x = {y}")


@production(reasons=["in-place operation overwrites"])
def write_to_input_alias(chance, scope, _):
    """Writes to what may be the running tensor itself."""
    y, z = scope.value(), scope.value()
    alias = chance.choice(["{y}.float()", "F.dropout({y}, 0.0, self.training)", "{y}.to({y}.dtype)", "{y}.contiguous()", "{y}.expand_as({y})", "{y}.view({y}.shape)"])
    note_dtype(scope, alias)
    if ".view(" in alias or "contiguous" in alias:
        scope.run(f"{y} = x.contiguous() + 0.5")
    else:
        scope.run(f"{y} = x + 0.5")
    scope.run(f"{z} = {alias.format(y=y)}", f"{z}.mul_(0.5)", f"x = {y} + 0.25 * {z}")
