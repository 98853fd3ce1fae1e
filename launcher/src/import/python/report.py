"""The summary on standard output."""

RANDOM = ("dropout", "bernoulli", "rand", "normal", "uniform", "multinomial", "exponential", "rrelu", "poisson")


def operation(node):
    """Returns an operation's name without its overload, such as `aten.batch_norm`."""
    name = str(node.target)
    if not isinstance(node.target, torch._ops.OpOverload):
        return getattr(node.target, "__name__", name)
    return name.rsplit(".", 1)[0]


def arguments(node):
    """Returns the arguments of an operation by name, defaults included."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    values = {argument.name: argument.default_value for argument in schema.arguments}
    values.update(zip((argument.name for argument in schema.arguments), node.args))
    values.update(node.kwargs)
    return values


def is_random(node):
    name, given = operation(node).split(".")[-1], arguments(node)
    if name == "scaled_dot_product_attention":
        return bool(given.get("dropout_p"))
    if not any(word in name for word in RANDOM):
        return False
    return given.get("train", True) is not False and given.get("training", True) is not False and given.get("p", 1) != 0


def counted(names):
    counts = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def dtype_of(tensor):
    return str(tensor.dtype).removeprefix("torch.")


def of_samples(sizes):
    return " x ".join(["N", *map(str, sizes[1:])])


def size_of(number):
    for unit in ("bytes", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"


def summary(request, checks, training, evaluation, outputs, gradients, pretrained):
    model, inputs = checks.model, checks.named.inputs
    nodes, others = list(nodes_of(training)), list(nodes_of(evaluation))
    operations = {operation(node) for node in nodes + others}
    parameters = list(model.parameters())
    frozen = [tensor for tensor in parameters if not tensor.requires_grad]
    total = sum(tensor.numel() for tensor in parameters)
    held = sum(tensor.numel() for tensor in frozen)
    lines = [f"{request['output']}: {request['source']}, {size_of(os.path.getsize(request['output']))}"]

    def line(name, value):
        lines.append(f"  {name:<12} {value}")

    for index, (name, tensor) in enumerate(zip(inputs.names, inputs.tensors)):
        line("" if index else "inputs", f"{name}  {dtype_of(tensor)}  {of_samples(tensor.shape)}")
    for index, (name, tensor) in enumerate(outputs.items()):
        batched = tensor.dim() and tensor.shape[0] == OTHER_BATCH
        sizes = of_samples(tensor.shape) if batched else shape(tensor.shape)
        line("" if index else "outputs", f"{name}  {dtype_of(tensor)}  {sizes}")
    if checks.named.names[False] != list(outputs):
        line("evaluation", f"returns only {', '.join(checks.named.names[False])}")
    line("parameters", f"{total:,}" + (f", of which {held:,} are frozen" if held else ""))
    line("weights", "pretrained" if pretrained else f"random, seed {request['seed']}" if pretrained is False else "those of the function")
    line("operations", f"{len(nodes):,} in training, {len(others):,} in evaluation, {len(operations)} distinct")
    norms = [node for node in nodes if "batch_norm" in operation(node) and arguments(node).get("training", True) is True]
    if norms:
        line("batch norm", f"{len(norms)} layer{'s' if len(norms) > 1 else ''}: results depend on the micro-batch")
    chance = counted(operation(node).split(".")[-1] for node in nodes if is_random(node))
    if chance:
        line("random", chance)
    unused = [name for name, gradient in gradients.items() if gradient is None]
    if unused:
        more = f" and {len(unused) - 5} more" if len(unused) > 5 else ""
        line("unused", f"{', '.join(unused[:5])}{more}: no output depends on them")
    return "\n".join(lines + ["", *recipe_lines(request, inputs, outputs)]) + "\n"


def recipe_lines(request, inputs, outputs):
    """Returns what the recipe needs for this model."""
    fit, first = task(inputs, outputs), inputs.tensors[0]
    if fit is None:
        return ["No task of dtrain gives such a model its inputs: `lm` trains models that predict tokens, the other tasks give images."]
    data = ['  target = "map"'] if fit == "regress" else []
    if first.dim() == 4:
        channels, height, width = first.shape[1:]
        if channels != 3:
            data.append(f"  channels = {channels}")
        if height != width:
            data.append('  resize = "none"')
        elif height != 224:
            data.append(f"  image_size = {height}")
    lines = ["Put into the recipe:", f'  task = "{fit}"', *(["  [data]", *data] if data else [])]
    lines += ["  [model]", f"  file = {json.dumps(request['output'])}"]
    if request["library"]:
        lines.append(f"  libraries = {json.dumps([os.path.abspath(file) for file in request['library']])}")
    return lines


def task(inputs, outputs):
    """Returns the task that fits the name or the shape of the main output, or None."""
    name = main_output(outputs)
    main = outputs[name]
    if name == "loss":
        return "program"
    if not inputs.tensors[0].is_floating_point():
        return "lm" if main.dim() == 3 else None
    if main.dim() == 4:
        return "regress" if main.shape[1] == 1 else "segment"
    return "classify"
