"""The inputs of a model, with the batch in front."""

# The batch size of the export, which differs from common sizes of layers.
BATCH = 3
# The samples of an example that this script makes.
EXAMPLES = 12


class Inputs:
    """Example inputs by the names of forward's arguments, in its order."""

    def __init__(self, names, tensors, positional=False):
        self.names, self.positional = names, positional
        # The number of samples that the model takes for sure.
        self.own = tensors[0].shape[0]
        self.tensors = [varied(tensor) for tensor in tensors]

    def of_batch(self, batch):
        """Returns the tensors with this many samples: the examples, and then smaller multiples of them."""
        rows = torch.arange(batch)
        return [repeated(tensor, rows) for tensor in self.tensors]


def varied(tensor):
    """Returns an example whose values tell something: not the same everywhere, as in torch.zeros."""
    same = tensor.is_floating_point() and tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all())
    # Without weights, large random examples have no values either.
    return torch.rand(EXAMPLES, *tensor.shape[1:]).to(tensor.dtype) if same and not is_untouched(tensor) else tensor


def repeated(tensor, rows):
    chosen = tensor[rows % tensor.shape[0]].clone()
    if not tensor.is_floating_point():
        return chosen
    factors = 0.9 ** (rows // tensor.shape[0])
    return chosen * factors.reshape(-1, *[1] * (tensor.dim() - 1)).to(tensor.dtype)


def example(name, dtype, shape):
    """Returns a tensor of samples. Integers are 0 and 1, since tables of any size have these; masks are 1."""
    if dtype.is_floating_point:
        return torch.randn(EXAMPLES, *shape).to(dtype)
    if "mask" in name or dtype == torch.bool:
        return torch.ones(EXAMPLES, *shape, dtype=dtype)
    return torch.randint(0, 2, (EXAMPLES, *shape)).to(dtype)


def parse_inputs(specs):
    """Returns the example inputs of `--inputs` by name."""
    parsed = {}
    for spec in specs:
        dtype = getattr(torch, spec["dtype"], None)
        if not isinstance(dtype, torch.dtype):
            raise Failure(f"--inputs: {spec['name']}: PyTorch has no type {spec['dtype']}; use float32 or int64")
        parsed[spec["name"]] = example(spec["name"], dtype, spec["shape"])
    return parsed


def named_inputs(model, given):
    """Returns the inputs for examples given as a tensor, a tuple, or a dict by name."""
    if isinstance(given, torch.Tensor):
        given = (given,)
    signature = inspect.signature(model.forward)
    if isinstance(given, dict):
        values, positional = given, False
    elif isinstance(given, (tuple, list)):
        try:
            values = signature.bind_partial(*given).arguments
        except TypeError as error:
            raise Failure(f"{forward_of(model)} does not take the {len(given)} example inputs: {error}")
        positional = True
        if any(signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL for name in values):
            values = {f"input_{index}": value for index, value in enumerate(given)}
    else:
        raise Failure(
            f"the example inputs are of type {type(given).__name__}; return (module, inputs) with a tensor, a tuple of "
            "tensors, or a dict of tensors by name"
        )
    for name, value in values.items():
        if not isinstance(value, torch.Tensor):
            raise Failure(
                f"the example input `{name}` is of type {type(value).__name__}; all inputs of a model must be tensors: put "
                "other values into the module"
            )
        if value.dim() == 0 or value.shape[0] == 0:
            raise Failure(f"the example input `{name}` has no batch; the first dimension is the batch")
    check_arguments(model, signature, values)
    batches = {name: value.shape[0] for name, value in values.items()}
    if len(set(batches.values())) > 1:
        sizes = ", ".join(f"{name} has {size}" for name, size in batches.items())
        raise Failure(f"the example inputs have different batches: {sizes}; the first dimension of all is the batch")
    tensors = [value.detach().cpu() for value in values.values()]
    return Inputs(list(values), tensors, positional)


def check_arguments(model, signature, given):
    """Checks by its signature that forward takes these arguments, and needs no other."""
    kinds = inspect.Parameter
    parameters = signature.parameters.values()
    if any(parameter.kind is kinds.VAR_POSITIONAL for parameter in parameters):
        return
    required = [
        parameter.name
        for parameter in parameters
        if parameter.default is kinds.empty and parameter.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    ]
    missing = [name for name in required if name not in given]
    variadic = any(parameter.kind is kinds.VAR_KEYWORD for parameter in parameters)
    unknown = [name for name in given if name not in signature.parameters and not variadic]
    if unknown:
        known = ", ".join(signature.parameters)
        raise Failure(f"{forward_of(model)} has no argument `{unknown[0]}`; it has: {known}")
    if missing:
        raise Failure(
            f"{forward_of(model)} needs an argument `{missing[0]}`, which has no value: name all inputs with "
            f"--inputs, such as --inputs {missing[0]}=3x32x32, or return them as (module, inputs)"
        )


def forward_of(model):
    """Returns the words for the forward function of the root module, with its place."""
    code = getattr(getattr(model, "own_function", type(model).forward), "__code__", None)
    place = f" ({shorten(code.co_filename)}:{code.co_firstlineno})" if code else ""
    return f"forward of {type(model).__name__}{place}"


def image_inputs(model, request, size=None, channels=None, name=None):
    """Returns the input of an image model: --image-size and --channels, else the model's own."""
    height, width = sides(request) or size or (224, 224)
    channels = request["channels"] or channels or 3
    if name is None:
        name = next(iter(inspect.signature(model.forward).parameters), "x")
    return {name: example(name, torch.float32, (channels, height, width))}
