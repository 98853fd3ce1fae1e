"""Productions: layers, norms, shared and frozen weights, attention, regions, dtypes, dropout, blocks."""

from .grammar import Scope, production

ACTS = ["F.relu", "F.gelu", "torch.tanh", "F.silu", "torch.sigmoid"]


def linear(scope, width, out, bias=True):
    return scope.layer("linear", f"nn.Linear({width}, {out}{'' if bias else ', bias=False'})")


@production(weight=2)
def dense(chance, scope, _):
    width, out = scope.shape[-1], chance.choice([4, 6, 8])
    scope.run(f"x = {chance.choice(ACTS)}({linear(scope, width, out, chance.random() < 0.7)}(x))")
    scope.shape = (*scope.shape[:-1], out)


@production()
def residual(chance, scope, _):
    width = scope.shape[-1]
    branch = f"{linear(scope, 8, width)}({chance.choice(ACTS)}({linear(scope, width, 8)}(x)))"
    # A closed gate hides the gradients behind it.
    gate = f"{scope.parameter(chance.choice(['torch.zeros(1)', f'torch.full(({width},), 1e-6)']))} * " if chance.random() < 0.3 else ""
    scope.run(f"x = x + {gate}{branch}")


@production(3, weight=3)
def convolution(chance, scope, _):
    channels, height, width = scope.shape
    if min(height, width) < 3:
        return False
    out = chance.choice([4, 4, 6])
    made = chance.choice([
        f"nn.Conv2d({channels}, {out}, 3, padding=1)", f"nn.Conv2d({channels}, {out}, 1, bias=False)",
        f"nn.Conv2d({channels}, {out}, 3, padding=2, dilation=2)", f"nn.ConvTranspose2d({channels}, {out}, 3, padding=1)",
        f"nn.Conv2d({channels}, {out}, 3, padding='same', padding_mode='reflect')",
        f"nn.Conv2d({channels}, {channels}, 3, padding=1, groups={channels})",
    ])
    out = channels if "groups" in made else out
    after = chance.choice([".relu()", "", "", ".relu_()", ".sigmoid()"])
    scope.run(f"x = {scope.layer('conv', made)}(x){after}")
    scope.shape = (out, height, width)


@production(3)
def pool(chance, scope, _):
    channels, height, width = scope.shape
    if height < 4 or width < 4 or height % 2 or width % 2:
        return False
    kind = chance.choice(["F.max_pool2d(x, 2)", "F.avg_pool2d(x, 2)", "F.adaptive_avg_pool2d(x, ({h}, {w}))", "F.interpolate(x, scale_factor=0.5, mode='bilinear')", "F.interpolate(x, size=({h}, {w}))", "F.pixel_unshuffle(x, 2)[:, :{c}]", "F.adaptive_max_pool2d(x, {h})"])
    if "max_pool2d(x, {h})" in kind and height != width:
        kind = "F.max_pool2d(x, 2)"
    scope.run("x = " + kind.format(h=height // 2, w=width // 2, c=channels))
    scope.shape = (channels, height // 2, width // 2)


@production(2)
def convolution_of_series(chance, scope, _):
    channels, length = scope.shape
    if length < 3:
        return False
    made = chance.choice([f"nn.Conv1d({channels}, {channels}, 3, padding=1)", f"nn.Conv1d({channels}, {channels}, 3, padding=1, groups={channels})"])
    scope.run(f"x = {scope.layer('conv', made)}(x)")


def norm_of(chance, scope):
    """Returns an expression of `{x}` for a norm that fits."""
    sizes = scope.shape
    few = sizes[0]
    batch = chance.choice(["", ", momentum=0.3", ", affine=False", ", track_running_stats=False", ", eps=1e-3"])
    batch = ", momentum=None" if chance.random() < 0.03 else batch
    kinds = [f"nn.LayerNorm({sizes[-1]})", f"nn.LayerNorm({list(sizes)}, elementwise_affine=False)"]
    if len(sizes) == 1:
        kinds += [f"nn.BatchNorm1d({few}{batch})"] * 3 + [f"nn.RMSNorm({few})"]
    elif len(sizes) == 2:
        kinds += [f"nn.BatchNorm1d({few}{batch})"] * 2 + [f"nn.InstanceNorm1d({few}, affine=True)", f"nn.InstanceNorm1d({few}, track_running_stats=True)"]
    else:
        kinds += [f"nn.BatchNorm2d({few}{batch})"] * 3 + [f"nn.InstanceNorm2d({few})"]
    if few % 2 == 0:
        kinds.append(f"nn.GroupNorm(2, {few})")
    return chance.choice(kinds)


@production(weight=3, reasons=["momentum=None", "one value per channel|single value per channel"], state=["num_batches_tracked|momentum"])
def norm(chance, scope, _):
    if len(scope.shape) > 1 and scope.shape[-1] < 2:
        return False
    layer = scope.layer("norm", norm_of(chance, scope))
    scope.run(f"x = {layer}(x)" + chance.choice(["", ".relu()", ""]))
    if chance.random() < 0.15:
        scope.run(f"x = {layer}(x * 2)")


@production(1, 2, 3, reasons=["single value per channel"])
def frozen_norm(chance, scope, _):
    """A norm that stays in evaluation mode, or writes its own running statistics."""
    few = scope.shape[0]
    if chance.random() < 0.5:
        kind = "nn.BatchNorm2d" if len(scope.shape) == 3 else "nn.BatchNorm1d"
        layer = scope.layer("norm", f"{kind}({few})")
        scope.init.append(f"{layer}.train = lambda mode=True: None\n{layer}.training = False")
        scope.run(f"x = {layer}(x)")
    else:
        mean, var = scope.buffer(f"torch.zeros({few})"), scope.buffer(f"torch.ones({few})")
        scope.run(f"x = F.batch_norm(x, {mean}, {var}, training=self.training, momentum=0.2)")


@production(2, weight=2)
def folded_rows(chance, scope, _):
    """Rows of all samples in one norm and one layer."""
    length, width = scope.shape
    norm = scope.layer("norm", f"nn.BatchNorm1d({width})")
    layer = linear(scope, width, width)
    y = scope.value()
    if chance.random() < 0.5:
        scope.run(f"{y} = x.reshape(-1, {width})", f"{y} = {norm}({layer}({y}))", f"x = {y}.view(-1, {length}, {width})")
    else:
        scope.run(f"{y} = x.transpose(0, 1).reshape(-1, {width})", f"{y} = {norm}({layer}({y}))")
        scope.run(f"x = {y}.view({length}, -1, {width}).transpose(0, 1)")


@production(3)
def folded_frames(chance, scope, _):
    channels, height, width = scope.shape
    layer = scope.layer("conv", f"nn.Conv2d(1, 1, 3, padding=1)")
    norm = scope.layer("norm", "nn.BatchNorm2d(1)") if chance.random() < 0.5 else ""
    scope.run(f"x = {norm}({layer}(x.reshape(-1, 1, {height}, {width}))).view(-1, {channels}, {height}, {width})")


@production(weight=2)
def tied(chance, scope, _):
    width = scope.shape[-1]
    first, second = linear(scope, width, width), linear(scope, width, width)
    form = chance.randrange(4)
    if form == 0:
        scope.init.append(f"{second}.weight = {first}.weight")
        scope.run(f"x = {second}(torch.tanh({first}(x)))")
    elif form == 1:
        scope.init.append(f"{second}.weight, {second}.bias = {first}.weight, {first}.bias")
        scope.run(f"x = {second}(torch.tanh({first}(x)))")
    elif form == 2:
        scope.run(f"x = {first}(torch.tanh({first}(x))) + {second}.weight.sum() * 0.1")
    else:
        scope.run(f"x = F.linear(torch.tanh({first}(x)), {first}.weight.t()) + {second}.bias")


@production(weight=2)
def frozen(chance, scope, _):
    width = scope.shape[-1]
    layer = linear(scope, width, width)
    scope.init.append(chance.choice([f"{layer}.requires_grad_(False)", f"{layer}.weight.requires_grad_(False)", f"{layer}.bias.requires_grad = False"]))
    scope.run(f"x = x + {layer}(x)")
    if chance.random() < 0.3:
        spare = linear(scope, 2, 2)
        scope.run(f"if False:\n    x = {spare}(x)")


@production()
def parametrized(chance, scope, _):
    width = scope.shape[-1]
    layer = linear(scope, width, width)
    kind = chance.choice([
        "torch.nn.utils.weight_norm({})", "torch.nn.utils.parametrizations.weight_norm({})", "torch.nn.utils.parametrizations.orthogonal({})",
        "torch.nn.utils.parametrizations.spectral_norm({})", "torch.nn.utils.parametrizations.weight_norm({}, dim=1)",
    ])
    if "orthogonal" in kind and chance.random() < 0.7:
        kind = "torch.nn.utils.weight_norm({})"
    if "spectral" in kind:
        scope.program.state.append("_u|_v|parametrizations")
    scope.init.append(kind.format(layer))
    scope.run(f"x = {layer}(x)")


@production(weight=2)
def raw_weights(chance, scope, _):
    width = scope.shape[-1]
    weight = scope.parameter(f"torch.randn({width}) * 0.3 + 1")
    scope.run(chance.choice(["x = x * {w}", "x = x + {w}", "x = x * {w}.softmax(-1)", "x = x + ({w}.detach() + {w}) * 0.5", "x = x * {w}.to(torch.bfloat16).float()",
                             "x = torch.baddbmm(x.reshape(x.shape[0], 1, -1), x.new_zeros(x.shape[0], 1, 1), x.reshape(x.shape[0], 1, -1)).view(x.shape) * {w}", "x = x * {w}.expand_as(x)", "x = x * {w}[torch.arange({n} - 1, -1, -1)]"]).format(w=weight, n=width))


@production(2, weight=2)
def attention(chance, scope, _):
    length, width = scope.shape
    if width % 2:
        return False
    form = chance.randrange(6)
    if form == 0:
        layer = scope.layer("attention", f"nn.MultiheadAttention({width}, 2, dropout={chance.choice([0.0, 0.2])}, batch_first=True)")
        scope.run(f"x = x + {layer}(x, x, x, need_weights={chance.choice([True, False])})[0]")
        return None
    if form == 1:
        layer = scope.layer("block", f"nn.TransformerEncoderLayer({width}, 2, 8, dropout={chance.choice([0.0, 0.2])}, batch_first=True)")
        scope.run(f"x = {layer}(x)")
        return None
    three = linear(scope, width, 3 * width)
    q, k, v = scope.value(), scope.value(), scope.value()
    scope.run(f"{q}, {k}, {v} = {three}(x).view(x.shape[0], {length}, 3, 2, {width // 2}).permute(2, 0, 3, 1, 4).unbind(0)")
    if form == 2:
        scope.run(f"{v} = ({q} @ {k}.mT * 0.5).softmax(-1) @ {v}")
    else:
        more = chance.choice(["", ", is_causal=True", ", dropout_p=0.3 if self.training else 0.0", ", attn_mask={m}", ", scale=0.3"])
        if "{m}" in more:
            more = more.format(m=scope.buffer(f"torch.ones({length}, {length}).tril().bool()", chance.random() < 0.5))
        scope.run(f"{v} = F.scaled_dot_product_attention({q}, {k}, {v}{more})")
    scope.run(f"x = x + {v}.transpose(1, 2).reshape(x.shape[0], {length}, {width})")


@production(2, weight=0.5)
def recurrent(chance, scope, _):
    width = scope.shape[-1]
    layer = scope.layer("cells", f"nn.{chance.choice(['GRU', 'LSTM', 'RNN'])}({width}, {width}, batch_first=True)")
    scope.run(f"x = {layer}(x)[0]")


@production(weight=2)
def region(chance, scope, _):
    """Regions of autocast and of gradients."""
    width = scope.shape[-1]
    layer = linear(scope, width, width)
    with_ = chance.choice([
        'torch.autocast("cpu", torch.bfloat16)', 'torch.autocast("cpu", enabled=False)', 'torch.autocast("cuda", enabled=False)',
        "torch.no_grad()", "torch.set_grad_enabled(self.training)", "torch.enable_grad()",
        'torch.autocast("cpu", torch.float16)', "torch.set_grad_enabled(False)",
    ])
    y = scope.value()
    inner = [f"{y} = {layer}(x)", f"{y} = {layer}({chance.choice(ACTS)}({y}))"]
    if chance.random() < 0.3:
        # torch.export loses no_grad inside autocast: see no_grad_in_autocast.
        gradients = [] if "autocast" in with_ else ["torch.no_grad()", "torch.enable_grad()"]
        nested = chance.choice([*gradients, 'torch.autocast("cpu", enabled=False)'])
        inner[1:] = [f"with {nested}:", f"    {y} = {layer}({y}.float())"]
    scope.run(f"with {with_}:", *("    " + line for line in inner), f"x = x + {y}.float()")
    if chance.random() < 0.3:
        scope.run(f"x = {layer}(x)")


@production(weight=1)
def mixed_dtypes(chance, scope, _):
    form = chance.choice([1, 3, 4, 5, 6])
    if form == 1:
        scope.run("x = (x.double() - x.double().mean(-1, keepdim=True)).float()")
    elif form == 3:
        scope.run("x = x.bfloat16().cumsum(-1).float()")
    elif form == 4:
        scope.run("x = x + (x > 0).long().sum(-1, keepdim=True) / 4")
    elif form == 5:
        scope.run("x = x * (x.detach() * 10).to(torch.int32).clamp(0, 3).float()")
    else:
        scope.run("x = (x.half() * 2).float()")


@production(weight=2)
def chance_of_torch(chance, scope, _):
    text = chance.choice([
        "F.dropout(x, 0.3, self.training)", "F.dropout(x, 0.0, self.training)", "F.dropout(x, 0.3, True)", "F.alpha_dropout(x, 0.2, self.training)",
        "x + 0.1 * torch.randn_like(x)", "x * (torch.rand([x.shape[0]] + [1] * (x.dim() - 1)) < 0.7)", "x + torch.empty_like(x).uniform_(-0.1, 0.1)",
        "x * torch.bernoulli(torch.full_like(x, 0.8))", "F.dropout1d(x, 0.3, self.training)", "F.rrelu(x, training=self.training)",
        "x + torch.normal(0.0, 0.1, x.shape)", "F.gumbel_softmax(x, dim=-1)",
    ])
    if "dropout1d" in text:
        layer = scope.layer("dropout", "nn.Dropout(0.4)")
        text = f"{layer}(x)"
    scope.run(f"x = {text}")


@production(weight=1)
def modes(chance, scope, _):
    width = scope.shape[-1]
    layer = linear(scope, width, width)
    scope.run("if self.training:", f"    x = x * 1.5 + {layer}(x)", "else:", chance.choice([f"    x = x + {layer}(x)", "    x = x * 2"]))


@production(weight=1)
def gather_rows(chance, scope, _):
    table = scope.layer("table", f"nn.Embedding(5, {scope.shape[-1]})")
    scope.run(chance.choice([f"x = x + {table}((x.detach().abs() * 2).long().clamp(max=4).amax(-1))", f"x = x + {table}.weight[0]", f"x = x + {table}(torch.arange(5)).mean(0)"]))


@production(weight=1)
def straight_through(chance, scope, _):
    scope.run(chance.choice(["x = x + (x.round() - x).detach()", "x = x + (x.sign() - x).detach() * 0.5", "x = (x > 0).float() - x.sigmoid().detach() + x.sigmoid()"]))


@production(weight=3)
def blocks(chance, scope, item):
    """Equal blocks, which may be recomputed; at times one block that runs more than once, or with shared weights."""
    shape = scope.shape
    inner = Scope(scope.program, shape, depth=1)
    if item.inside:
        for part in item.inside:
            inner.apply(part)
    else:
        item.inside = inner.fill(chance, 1, 3)
    again = chance.random()
    if inner.shape != shape:
        # Back to the shape of the block's input.
        sizes, total = inner.shape, 1
        for size in sizes:
            total *= size
        wanted = 1
        for size in shape:
            wanted *= size
        if total > 64 or wanted > 64:
            return False
        layer = linear(inner, total, wanted)
        inner.run(f"x = {layer}(x.flatten(1)).view(-1, {', '.join(map(str, shape))})")
    name = scope.program.name("Block")
    scope.program.top.append(inner.source(name, "x", "x").rstrip("\n"))
    if again < 0.15:
        block = scope.layer("block", f"{name}()")
        scope.run(f"for _ in range(2):\n    x = x + {block}(x)")
    else:
        count = 2 if again < 0.5 else 3
        layers = scope.layer("blocks", f"nn.ModuleList({name}() for _ in range({count}))")
        if again > 0.8:
            scope.init.append(f"shared = dict({layers}[0].named_parameters())\nfor block in {layers}:\n    for key, value in block._modules.items():\n"
                              "        if type(value) is nn.Linear and 'weight' in value._parameters:\n"
                              f"            value.weight = {layers}[0]._modules[key].weight")
        scope.run(f"for block in {layers}:\n    x = {chance.choice(['x + block(x)', 'block(x)'])}")
    return None
