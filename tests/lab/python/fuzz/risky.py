"""Productions that the import may refuse, each with the reasons that are true for it."""

from .grammar import production

BATCH = ["batch", "samples"]
HOOK = ["hook"]
OWN = ["own backward"]
VALUES = ["values of a tensor", "becomes a Python number"]


def linear(scope):
    width = scope.shape[-1]
    return scope.layer("linear", f"nn.Linear({width}, {width})")


@production(risky=True, reasons=HOOK)
def hook_of_parameter(chance, scope, _):
    layer = linear(scope)
    scope.init.append(chance.choice([f"{layer}.weight.register_hook(lambda gradient: gradient * 0.5)", f"{layer}.bias.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))",
                                     f"{layer}.weight.register_post_accumulate_grad_hook(lambda weight: weight.grad.mul_(0.5))"]))
    scope.run(f"x = {layer}(x)")


@production(risky=True, reasons=HOOK)
def hook_of_value(chance, scope, _):
    scope.run("x = x * 1.5", "if x.requires_grad:", "    x.register_hook(lambda gradient: gradient * 0.5)")


@production(risky=True, reasons=HOOK + OWN)
def hook_of_module(chance, scope, _):
    layer = linear(scope)
    scope.init.append(chance.choice([f"{layer}.register_full_backward_hook(lambda module, given, made: (given[0] * 0.5,))", f"{layer}.register_full_backward_pre_hook(lambda module, made: (made[0] * 0.5,))",
                                     f"{layer}.register_full_backward_hook(lambda module, given, made: None)"]))
    scope.run(f"x = {layer}(x + 0 * {scope.parameter('torch.ones(1)')})")


@production(risky=True, reasons=BATCH)
def branch_on_batch(chance, scope, _):
    condition = chance.choice(["x.shape[0] % 2 == 1", "x.shape[0] != 12", "192 * x.shape[0] <= 1500", "x.shape[0] == 1", "x.size(0) > 2", "len(x) < 4", "x.numel() > 200", "x.shape[0] == 12", "x.shape[0] >= 2"])
    scope.run(f"if {condition}:", "    x = x * 1.5")


@production(risky=True, reasons=BATCH)
def squeeze(chance, scope, _):
    scope.run(chance.choice(["x = x + x.mean(-1, keepdim=True).squeeze(0).mean(0)", "x = x + x.mean(-1).squeeze().mean(0).mean()", "x = x * (2 if x.squeeze().dim() == x.dim() else 3)"]))


@production(risky=True, reasons=BATCH)
def batch_as_number(chance, scope, _):
    scope.run(chance.choice(["x = x + torch.zeros(len(range(x.shape[0])), 1).mean()", "x = torch.stack([row * 2 for row in x])", "x = x * float(x.shape[0])", "x = x * int(x.shape[0] ** 0.5)", "x = x / max(x.shape[0], 3)", "x = torch.cat(x.chunk(3, 0))", "x = x[: min(x.shape[0], 100)]"]))


@production(risky=True, reasons=OWN)
def function_with_backward(chance, scope, _):
    name = scope.program.name("Function")
    backward = chance.choice(["gradient", "gradient * 0.5", "-gradient"])
    forward = chance.choice(["x.sign()", "x.round()", "x.clone()", "x.view_as(x)"])
    scope.program.top.append(
        f"class {name}(torch.autograd.Function):\n    @staticmethod\n    def forward(context, x):\n        return {forward}\n\n    @staticmethod\n"
        f"    def backward(context, gradient):\n        return {backward}\n"
    )
    where = chance.random()
    if where < 0.3:
        scope.run(f"x = F.layer_norm({name}.apply(x), x.shape[-1:])")
    elif where < 0.5:
        scope.run("if self.training:", f"    x = {name}.apply(x)")
    else:
        scope.run(f"x = {name}.apply(x)")


@production(risky=True, reasons=["Python's random numbers"])
def random_of_python(chance, scope, _):
    scope.run(chance.choice(["x = x * (1 + random.random())", "if random.random() < 0.5:\n    x = x * 2", "x = x.roll(random.randrange(2, 9), -1)"]))


@production(risky=True, reasons=["a counter"])
def counter_of_python(chance, scope, _):
    name = scope.layer("calls", "0")
    scope.run(f"{name} += 1", f"x = x * (1 + 0.1 * {name})")


@production(risky=True, reasons=["storage"])
def tied_in_another_shape(chance, scope, _):
    layer, width = linear(scope), scope.shape[-1]
    scope.run(f"x = {layer}(x)")
    name = scope.parameter(chance.choice([f"{layer}.weight.detach().t()", f"{layer}.weight.detach().view(-1)", f"{layer}.weight.detach()[0]"]))
    scope.run(f"x = x * {name}.mean()")


@production(2, risky=True, reasons=["complex"])
def rotary(chance, scope, _):
    length, width = scope.shape
    if width % 2:
        return False
    name = scope.buffer(f"torch.polar(torch.ones({length}, {width // 2}), torch.randn({length}, {width // 2}))", chance.random() < 0.5)
    scope.run(f"x = torch.view_as_real(torch.view_as_complex(x.reshape(x.shape[0], {length}, {width // 2}, 2)) * {name}).flatten(2)")
    return None


@production(risky=True, reasons=["inside a batch|order|randperm|other samples"], state=["order|randperm|other samples"])
def order_in_batch(chance, scope, _):
    scope.run(chance.choice(["x = x + 0.5 * x[torch.randperm(x.shape[0])]", "x = 0.7 * x + 0.3 * x[torch.randperm(x.shape[0], device=x.device)].detach()"]))


@production(risky=True, reasons=VALUES)
def branch_on_values(chance, scope, _):
    scope.run(chance.choice(["if x.sum() > 0:\n    x = x * 2", "x = x * x.max().item()", "x = x + x[x > 0].sum() * float(x.mean())", "x = x * len(x[x > 0].unique())", "x = x + x.nonzero().shape[0]"]))


@production(risky=True, reasons=VALUES)
def chosen_values(chance, scope, _):
    scope.run(chance.choice(["x = x + x[x > 0].sum() * 0.1", "x = x + x.masked_select(x > 0).mean()", "x = x + x.detach().flatten().unique().mean()"]))


@production(risky=True, reasons=["vmap"])
def vmap(chance, scope, _):
    scope.run("x = torch.vmap(lambda row: row - row.mean())(x)")


@production(risky=True, reasons=["parameter is changed in place", "changes the parameter"])
def write_to_parameter(chance, scope, _):
    layer = linear(scope)
    scope.run(chance.choice([f"{layer}.weight.data.clamp_(-0.2, 0.2)", f"with torch.no_grad():\n    {layer}.weight.mul_(0.9)", f"{layer}.weight.data = {layer}.weight.data * 0.9"]), f"x = {layer}(x)")


@production(risky=True, reasons=["half|float16"])
def half_layer(chance, scope, _):
    layer = linear(scope)
    kind = chance.choice(["half", "bfloat16"])
    scope.init.append(f"{layer}.{kind}()")
    scope.run(f"x = {layer}(x.{kind}()).float()")


@production(risky=True, reasons=["sparse"])
def sparse_gradient(chance, scope, _):
    table = scope.layer("table", f"nn.Embedding(5, {scope.shape[-1]}, sparse=True)")
    scope.run(f"x = x + {table}(torch.arange(3)).mean(0)")


@production(risky=True, reasons=["checkpoint", "higher_order"])
def checkpointed(chance, scope, _):
    layer = linear(scope)
    scope.run("from torch.utils.checkpoint import checkpoint", f"x = checkpoint({layer}, x, use_reentrant=False)")


@production(risky=True, reasons=["batch is fixed|batch size is fixed|takes", *BATCH])
def fixed_batch(chance, scope, _):
    scope.run(chance.choice(["x = x + torch.zeros(12, 1).mean(0)[: x.shape[0]].mean()", "x = x.view(12, -1).view(x.shape) if x.shape[0] == 12 else x"]))


@production(risky=True, reasons=["NumPy"])
def numpy(chance, scope, _):
    scope.run("x = x + torch.from_numpy(x.detach().numpy().copy()).mean()")


@production(risky=True, reasons=["storage", "memory", "single memory location"], state=["buffer"])
def expanded_buffer(chance, scope, _):
    """A buffer whose elements share memory, written as a whole is an error in PyTorch too; read only."""
    name = scope.buffer(f"torch.randn(1, {scope.shape[-1]}).expand(3, -1)")
    scope.run(f"x = x + {name}[2]")


@production(risky=True, reasons=["`.data` of a tensor"], state=["buffer"])
def write_to_data(chance, scope, _):
    name = scope.buffer(f"torch.zeros({scope.shape[-1]})")
    scope.run(chance.choice([f"{name}.data.add_(0.1 * x.detach().mean())", f"if self.training:\n    {name}.data.mul_(0.9)"]), f"x = x - {name}")


@production(risky=True, reasons=["float64, and dtrain trains float32"])
def double_parameter(chance, scope, _):
    width = scope.shape[-1]
    if chance.random() < 0.5:
        scope.run(f"x = {scope.layer('linear', f'nn.Linear({width}, {width}, dtype=torch.float64)')}(x.double()).float()")
    else:
        scope.run(f"x = (x * {scope.parameter(f'torch.randn({width}, dtype=torch.float64)')}).float()")


@production(risky=True, reasons=["(no_grad|gradient).*autocast|autocast.*(no_grad|gradient)"])
def no_grad_in_autocast(chance, scope, _):
    layer, y = linear(scope), scope.value()
    outside = chance.choice(['torch.autocast("cpu", torch.bfloat16)', 'torch.autocast("cpu", enabled=False)'])
    inside = chance.choice(["torch.no_grad()", "torch.enable_grad()"])
    scope.run(f"with {outside}:", f"    {y} = {layer}(x)", f"    with {inside}:", f"        {y} = {layer}({y}.float())")
    scope.run(f"x = x + {scope.parameter('torch.zeros(1)') + ' * ' if chance.random() < 0.5 else ''}{y}.float()")
