"""The summary on standard output."""

RANDOM = ("dropout", "bernoulli", "rand", "normal", "uniform", "multinomial", "exponential", "rrelu", "poisson")

# The two fields of a sample for each `data.target`, with the usual names of inputs.
IMAGE = "image", "images", "x", "input", "inputs", "pixel_values"
FIELDS = {
    "class": (IMAGE, ("label", "labels", "y", "target", "targets")),
    "mask": (IMAGE, ("mask", "masks", "labels", "y", "target", "targets")),
    "vector": (IMAGE, ("targets", "target", "labels", "y")),
    "map": (IMAGE, ("map", "maps", "labels", "y", "target", "targets")),
    "tokens": (("tokens", "input_ids", "idx", "x", "input", "inputs"), ("targets", "target", "labels", "y")),
}


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
    return ", ".join(f"{count} {name}" for name, count in collections.Counter(names).items())


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


def summary(request, path, checks, programs, check, pretrained):
    """Returns the lines about the file."""
    model, inputs, outputs, (training, evaluation) = checks.model, checks.named.inputs, check.outputs, programs
    nodes, others = list(nodes_of(training)), list(nodes_of(evaluation))
    operations = {operation(node) for node in nodes + others}
    parameters = list(model.parameters())
    frozen = [tensor for tensor in parameters if not tensor.requires_grad]
    total = sum(tensor.numel() for tensor in parameters)
    held = sum(tensor.numel() for tensor in frozen)
    lines = [f"{request['output']}: {request['source']}, {size_of(os.path.getsize(path))}"]

    def line(name, value):
        lines.append(f"  {name:<12} {value}")

    for index, (name, tensor) in enumerate(zip(inputs.names, inputs.tensors)):
        line("" if index else "inputs", f"{name}  {dtype_of(tensor)}  {of_samples(tensor.shape)}")
    for index, (name, tensor) in enumerate(outputs.items()):
        sizes = of_samples(tensor.shape) if check.rows.get(name) == 1 else shape(tensor.shape)
        line("" if index else "outputs", f"{name}  {dtype_of(tensor)}  {sizes}")
    if checks.named.names[False] != list(outputs):
        line("evaluation", f"returns only {', '.join(checks.named.names[False])}")
    line("parameters", f"{total:,}" + (f", of which {held:,} are frozen" if held else ""))
    none = f"none for tensors of 1 MiB or more" if request["weights"] == "none" else None
    line("weights", none or "pretrained" if none or pretrained else f"random, seed {request['seed']}" if pretrained is False else "those of the function")
    line("operations", f"{len(nodes):,} in training, {len(others):,} in evaluation, {len(operations)} distinct")
    norms = [node for node in nodes if "batch_norm" in operation(node) and arguments(node).get("training", True) is True]
    if norms:
        line("batch norm", f"{len(norms)} layer{'s' if len(norms) > 1 else ''}: results depend on the micro-batch")
    chance = counted(operation(node).split(".")[-1] for node in nodes if is_random(node))
    if chance:
        line("random", chance)
    unused = [] if request["role"] else check.unused
    if unused:
        more = f" and {len(unused) - 5} more" if len(unused) > 5 else ""
        line("unused", f"{', '.join(unused[:5])}{more}: no output depends on them")
    return lines


def recipe_lines(request, inputs, outputs):
    """Returns what the recipe needs for this model."""
    fit, first = task(inputs, outputs), inputs.tensors[0]
    if fit is None:
        return ["No task of dtrain has targets for such a model: `lm` trains models that predict tokens, `classify` those that predict a class."]
    if reads_texts(inputs):
        return text_lines(request, inputs, fit)
    target, fields = targets(fit, inputs)
    data = [f'  target = "{target}"'] if target not in (None, "class", "tokens") else []
    if fit == "program" and target == "tokens":
        data = ['  kind = "text"']
    if fit == "segment":
        data.append(f"  classes = {outputs[main_output(outputs)].shape[1]}")
    if first.dim() == 4:
        data += image_lines(request, *first.shape[1:])
    lines = ["Put into the recipe:", f'  task = "{fit}"', *(["  [data]", *data] if data else [])]
    lines += ["  [model]", f"  file = {json.dumps(request['output'])}"]
    if fields:
        lines.append(f"  inputs = {{ {', '.join(f'{json.dumps(name)} = {json.dumps(field)}' for name, field in fields.items())} }}")
    if step_loss(outputs):
        lines.append(f'  losses = [{{ name = "{step_loss(outputs)}" }}]')
    if request["library"]:
        lines.append(f"  libraries = {json.dumps([os.path.abspath(file) for file in request['library']])}")
    return lines


def reads_texts(inputs):
    """Returns whether the inputs are texts of a table: with images, or with a mask of their padding."""
    return "input_ids" in inputs.names and bool({"pixel_values", "attention_mask"} & set(inputs.names))


def text_lines(request, inputs, fit):
    """Returns the recipe for a table of texts."""
    given = dict(zip(inputs.names, inputs.tensors))
    target = 'label = "class:label"' if fit == "classify" else ""
    image = 'image = "image:image"' if "pixel_values" in given else ""
    text = 'tokens = "text:text"' if fit == "classify" else 'tokens = "text:prompt,answer"'
    lines = ["Put into the recipe:", f'  task = "{fit}"', "  [data]", '  kind = "table"', '  root = "TABLE.csv"']
    lines += [f"  fields = {{ {', '.join(part for part in (target, image, text) if part)} }}", '  tokenizer = "FOLDER/tokenizer.json"']
    if request.get("image_tokens"):
        token, count = request["image_tokens"]
        lines.append(f'  repeat = {{ "<image>" = {count} }}  # the text of the token {token} in this tokenizer')
    if "pixel_values" in given and given["pixel_values"].dim() == 4:
        lines += image_lines(request, *given["pixel_values"].shape[1:])
    return [*lines, "  [model]", f"  file = {json.dumps(request['output'])}"]


def image_lines(request, channels, height, width):
    """Returns the settings of the images whose defaults in a recipe are others, and what the recipe cannot state."""
    found, lacking = image_settings(request, channels, height, width)
    lines = [f"  {key} = {json.dumps(value)}" for key, value in found.items() if value != DEFAULTS[key]]
    return [*lines, *(f"  # {part}; the recipe has no key for it" for part in lacking)]


def targets(fit, inputs):
    """Returns `data.target` for a task, and the fields of inputs whose names are none of theirs."""
    if fit != "program":
        return ("map" if fit == "regress" else None), {}
    first, *others = zip(inputs.names, inputs.tensors)
    target = "tokens" if not first[1].is_floating_point() else "class"
    for _, tensor in others:
        if target != "tokens":
            kinds = {1: "class", 3: "mask"} if not tensor.is_floating_point() else {2: "vector", 3: "map", 4: "map"}
            target = kinds.get(tensor.dim(), target)
    image, second = FIELDS[target]
    named = {name: image[0] for name, _ in [first] if name not in (*image, *second)}
    named.update({name: second[0] for name, _ in others if name not in (*image, *second)})
    return target, named if len(inputs.names) == 2 else {}


def step_loss(outputs):
    """Returns the loss over all samples of a step whose usual outputs these are, or None."""
    if not {"image_embeds", "text_embeds", "logit_scale"} <= set(outputs):
        return None
    return "siglip" if "logit_bias" in outputs else "clip"


def task(inputs, outputs):
    """Returns the task that fits the name or the shape of the main output, or None."""
    name = main_output(outputs)
    main = outputs[name]
    if name == "loss" or step_loss(outputs):
        return "program"
    if reads_texts(inputs):
        return {2: "classify", 3: "lm"}.get(main.dim())
    if not inputs.tensors[0].is_floating_point():
        return "lm" if main.dim() == 3 else None
    if main.dim() == 4:
        return "regress" if main.shape[1] == 1 else "segment"
    return "classify"
