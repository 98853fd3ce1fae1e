"""A user's own loss, figure or change: a function, or a module without trained parameters."""

# Samples of the comparison of a batch with each sample alone, and how much values may differ.
APART, NEAR = 3, {"rtol": 1e-3, "atol": 1e-5, "equal_nan": True}

# What each program returns for N samples, in words and as a test of the dimensions of its outputs by name.
RETURNS = {
    "loss": "one number for each sample, or `loss` and `weight` with a number for each",
    "figure": "N numbers, whose mean it is, or N x 2 or N x 2 x K, numerators and divisors, which are added over the samples",
    "change": "the changed image of each sample",
}


def own_program(made, shown, request):
    """Returns a module whose forward is a function, or a module that FILE.py has, with its inputs."""
    arguments, role = request["args"], request["role"]
    if not request["inputs"]:
        raise Failure(f"the inputs of {shown} are unknown; give them without the batch, such as --inputs logits=10,label=int64")
    given = parse_inputs(request["inputs"])
    if isinstance(made, torch.nn.Module) or inspect.isclass(made) and issubclass(made, torch.nn.Module):
        try:
            model = made(**arguments) if inspect.isclass(made) else made
        except TypeError as error:
            raise Failure(f"{shown} cannot be created: {explain(error)}; set its arguments with --arg") from error
        if arguments and model is made:
            raise Failure(f"--arg {next(iter(arguments))}: {shown} is a module, whose arguments are set already; name its class")
    else:
        model = of_function(made, arguments)
    trained = next((name for name, tensor in model.named_parameters() if tensor.requires_grad), None)
    if trained:
        raise Failure(f"nothing trains the parameter `{trained}` of a {role}; make it a buffer, or set requires_grad to False")
    return model, given


def of_function(function, arguments):
    """Returns a module that calls the function, with these arguments fixed."""
    parameters = inspect.signature(function).parameters
    unknown = next((name for name in arguments if name not in parameters), None)
    if unknown:
        raise unknown_arg(unknown, function.__name__, list(parameters))
    model = type(function.__name__, (torch.nn.Module,), {})()
    model.forward, model.own_function = functools.partial(function, **arguments), function
    return model


def check_own(checks, role):
    """Refuses a program that does not give each sample its own values, the same in every cut of a step."""
    model, inputs = checks.model, checks.named.inputs
    for training in (True, False):
        model.train(training)
        whole = inputs.of_batch(APART)
        state = torch.get_rng_state()
        with torch.no_grad():
            outputs = own_outputs(checks, whole)
        if checks.state.changed():
            raise Failure(f"forward changes the buffer `{checks.state.changed()[0]}`, and no step joins that of several micro-batches; leave it as it is")
        if not torch.equal(state, torch.get_rng_state()):
            remedy = "take them from an input `u`, with numbers from 0 to 1" if role == "change" else "return the same for the same inputs"
            raise Failure(f"{forward_of(model)} draws random numbers, which depend on the cut of a step; {remedy}")
        check_returned(model, outputs, role)
        for row in range(APART):
            with torch.no_grad():
                alone = own_outputs(checks, [tensor[row : row + 1] for tensor in whole])
            for name, value in outputs.items():
                if not torch.allclose(value[row].double(), alone[name][0].double(), **NEAR):
                    raise Failure(
                        f"the samples of a batch change each other's values in {forward_of(model)}, which would depend on the cut of a "
                        "step; compute each sample by itself, without means or orders over the first dimension"
                    )
    if role == "loss":
        model.train()
        floats = [tensor.requires_grad_(tensor.is_floating_point()) for tensor in inputs.of_batch(APART)]
        if not any(value.requires_grad for value in own_outputs(checks, floats).values()):
            raise Failure(f"{forward_of(model)} has no derivative by an input, so nothing would be trained; compute it without argmax, round or detach")


def own_outputs(checks, tensors):
    try:
        return checks.named(tensors)
    except Failure:
        raise
    except Exception as error:
        place = checks.modules.of(error)
        raise refuse(f"forward fails for {samples(tensors[0].shape[0])}", reason(error, place), place) from error


def check_returned(model, outputs, role):
    """Checks the outputs of APART samples."""
    names, shapes = list(outputs), {name: list(value.shape) for name, value in outputs.items()}
    dims = {"loss": (1,), "figure": (1, 2, 3), "change": range(2, 9)}[role]
    pairs = (["loss", "weight"], ["weight", "loss"], ["output_0", "output_1"])
    right = len(names) == 1 or role == "change" or role == "loss" and names in pairs
    for name, value in outputs.items():
        right = right and (value.is_floating_point() or role == "change") and value.dim() in dims and value.shape[0] == APART
        right = right and (role != "figure" or value.dim() == 1 or value.shape[1] == 2 or value.shape[1:] == (1,))
    if right:
        return
    returned = ", ".join(f"`{name}` {size}" for name, size in shapes.items())
    remedy = "; a mean over the batch depends on its cut: return the values before it, as with reduction=\"none\"" if [] in shapes.values() else ""
    raise Failure(f"{forward_of(model)} returns {returned} for {APART} samples; a {role} returns {RETURNS[role]}{remedy}")


def prepare_probed(checks, request):
    """Returns the checks of the program with parameters, which the trainer needs. Those of a loss are added to its inputs, and their
    gradients are compared with PyTorch's."""
    inputs, differentiates = checks.named.inputs, request["role"] == "loss"

    class Probed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.own = checks.model
            for name, tensor in zip(inputs.names, inputs.tensors):
                if tensor.is_floating_point() and differentiates:
                    size = [1 if dim in checks.named.dynamic[name] else length for dim, length in enumerate(tensor.shape)]
                    setattr(self, f"probe_{name}", torch.nn.Parameter(torch.zeros(1, *size[1:], dtype=tensor.dtype)))
            if not differentiates:
                self.probe = torch.nn.Parameter(torch.zeros(1))

        def forward(self, **given):
            add = lambda name, tensor: tensor + getattr(self, f"probe_{name}") if f"probe_{name}" in self._parameters else tensor
            return self.own(*(add(name, tensor) for name, tensor in given.items()))

    return Checks(Named(Probed(), Inputs(inputs.names, inputs.tensors), request["dynamic"]))


def own_recipe_lines(request):
    """Returns what the recipe needs for the program."""
    file = json.dumps(request["output"])
    lines = {
        "loss": ["  [model]", f"  loss = {{ program = {file} }}"],
        "figure": ["  [model]", f'  figures = [{{ name = "program", program = {file}, label = "{request["source"].rpartition(":")[2]}" }}]'],
        "change": ["  [data]", f'  changes = [{{ name = "program", program = {file} }}]'],
    }
    return ["Put into the recipe:", *lines[request["role"]]]
