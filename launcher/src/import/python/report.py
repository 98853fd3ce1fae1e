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


def outputs_of(program, names):
    """Returns the outputs of a program by name, without values."""
    nodes, specs = list(program.graph.nodes)[-1].args[0], program.graph_signature.output_specs
    values = [node.meta["val"] for node, spec in zip(nodes, specs) if spec.kind.name == "USER_OUTPUT"]
    return {name: torch.empty(example_size(value), dtype=value.dtype, device="meta") for name, value in zip(names, values)}


def norms_of(program):
    """Returns the BatchNorms that normalise over the batch."""
    return [node for node in nodes_of(program) if "batch_norm" in operation(node) and arguments(node).get("training", True) is True]


def state_of(program):
    """Returns the buffers that a program writes, other than BatchNorm's statistics and counters."""
    buffers, sources, written = program.graph_signature.inputs_to_buffers, {}, set()
    for node in nodes_of(program):
        given = arguments(node)
        for argument in (argument for argument in node.target._schema.arguments if argument.alias_info) if given else ():
            # A view writes to the tensor that it is a view of.
            source = sources[node] = sources.get(given[argument.name], given[argument.name])
            if argument.alias_info.is_write and getattr(source, "name", None) in buffers:
                written.add(buffers[source.name])
    return [name for name in buffers.values() if name in written and not name.endswith("num_batches_tracked")]


def summary(request, path, checks, programs, check, outputs, pretrained):
    """Returns the lines about the file."""
    model, inputs, (training, evaluation) = checks.model, checks.named.inputs, programs
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
    evaluated = checks.named.names[False]
    if evaluated != list(outputs):
        line("evaluation", f"returns {'only ' if set(evaluated) < set(outputs) else ''}{', '.join(evaluated)}")
    line("parameters", f"{total:,}" + (f", of which {held:,} are frozen" if held else ""))
    none = f"none for tensors of 1 MiB or more" if request["weights"] == "none" else None
    line("weights", none or "pretrained" if none or pretrained else f"random, seed {request['seed']}" if pretrained is False else "those of the function")
    line("operations", f"{len(nodes):,} in training, {len(others):,} in evaluation, {len(operations)} distinct")
    norms, state = norms_of(training), state_of(training)
    if norms:
        line("batch norm", f"{len(norms)} layer{'s' if len(norms) > 1 else ''}: results depend on the micro-batch")
    if state:
        line("state", f"{several(state, 5)}: written in training; model.state says how a step joins its values")
    chance = counted(operation(node).split(".")[-1] for node in nodes if is_random(node))
    if chance:
        line("random", chance)
    unused = [] if request["role"] else check.unused
    if unused:
        line("unused", f"{several(unused, 5)}: no output depends on them")
    return lines


def recipe_lines(request, inputs, outputs, norms, state):
    """Returns what the recipe needs for this model."""
    fit = task(inputs, outputs)
    if fit is None:
        return ["No task of dtrain has targets for such a model: `lm` trains models that predict tokens, `classify` those that predict a class."]
    given = fields_of(inputs)
    if reads_texts(inputs):
        data, named = text_lines(request, given, fit), {}
    else:
        target, named = targets(fit, given)
        data = [f'  target = "{target}"'] if target not in (None, "class", "tokens") else []
        if fit == "program" and target == "tokens":
            data = ['  kind = "text"']
        if fit == "segment":
            data.append(f"  classes = {outputs[main_output(outputs)].shape[1]}")
    images = [tensor for tensor in given.values() if tensor.dim() == 4 and tensor.is_floating_point()]
    data += image_lines(request, *images[0].shape[1:]) if images else []
    data += ["  pairs = true"] if any(name.startswith("pair_") for name in inputs.names) else []
    data += [episode_line(inputs)] if has_episodes(inputs) else []
    lines = ["Put into the recipe:", f'  task = "{fit}"', *(["  [data]", *data] if data else [])]
    lines += ["  [model]", f"  file = {json.dumps(request['output'])}"]
    if named:
        lines.append(f"  inputs = {{ {', '.join(f'{json.dumps(name)} = {json.dumps(field)}' for name, field in named.items())} }}")
    if norms and has_episodes(inputs):
        lines.append('  batchnorm = "group:1"')
    if state:
        words = ", ".join(f'{json.dumps(name) if "." in name else name} = "..."' for name in state)
        lines.append(f'  # state = {{ {words} }}  # each "mean", "append" or "last"')
    if step_loss(outputs):
        lines.append(f'  losses = [{{ name = "{step_loss(outputs)}" }}]')
    if request["library"]:
        lines.append(f"  libraries = {json.dumps([os.path.abspath(file) for file in request['library']])}")
    return lines


def has_episodes(inputs):
    """Returns whether a sample is an episode: several support and query images."""
    given = dict(zip(inputs.names, inputs.tensors))
    return all(name in given and given[name].dim() == 5 for name in ("support_image", "query_image"))


def fields_of(inputs):
    """Returns the inputs by the names of a sample's fields: without those of its partner, and with one image of an episode."""
    given = {name: tensor for name, tensor in zip(inputs.names, inputs.tensors) if not name.startswith("pair_")}
    if has_episodes(inputs):
        given = {re.sub("^(support|query)_", "", name): tensor[:, 0] if tensor.dim() > 1 else tensor for name, tensor in given.items()}
    return given


def episode_line(inputs):
    """Returns the recipe's episodes. The number of classes is known from labels that stand class by class."""
    given = dict(zip(inputs.names, inputs.tensors))
    support, query, labels = given["support_image"].shape[1], given["query_image"].shape[1], given.get("query_label")
    ways = 0 if labels is None or labels.dim() != 2 else int(labels.max()) + 1
    if ways > 0 and support % ways == 0 and query % ways == 0:
        if (labels == torch.arange(ways).repeat_interleave(query // ways)).all():
            return f"  episodes = {{ n_way = {ways}, k_shot = {support // ways}, n_query = {query // ways} }}"
    return f"  # episodes = {{ n_way = N, k_shot = K, n_query = Q }}, where N x K = {support} and N x Q = {query}"


def reads_texts(inputs):
    """Returns whether the inputs are texts of a table: with images, or with a mask of their padding."""
    names = set(inputs.names)
    return bool({"input_ids", "tokens"} & names) and bool({"pixel_values", "attention_mask"} & names)


def text_lines(request, given, fit):
    """Returns the settings of a table of texts."""
    kinds = [({4: "image", 5: "image", 3: "map"} if tensor.is_floating_point() else {1: "class", 3: "mask"}).get(tensor.dim()) for tensor in given.values()]
    fields = ['label = "class:label"'] if fit == "classify" or "class" in kinds else []
    fields += [f'{kind} = "{kind}:{kind}"' for kind in ("image", "mask", "map") if kind in kinds]
    fields.append('tokens = "text:text"' if fit == "classify" else 'tokens = "text:prompt,answer"')
    lines = ['  kind = "table"', '  root = "TABLE.csv"', f"  fields = {{ {', '.join(fields)} }}", '  tokenizer = "FOLDER/tokenizer.json"']
    if request.get("image_tokens"):
        token, count = request["image_tokens"]
        lines.append(f'  repeat = {{ "<image>" = {count} }}  # the text of the token {token} in this tokenizer')
    return lines


def image_lines(request, channels, height, width):
    """Returns the settings of the images whose defaults in a recipe are others, and what the recipe cannot state."""
    found, lacking = image_settings(request, channels, height, width)
    lines = [f"  {key} = {json.dumps(value)}" for key, value in found.items() if value != DEFAULTS[key]]
    return [*lines, *(f"  # {part}; the recipe has no key for it" for part in lacking)]


def targets(fit, given):
    """Returns `data.target` for a task, and the fields of inputs whose names are none of theirs."""
    if fit != "program":
        return ("map" if fit == "regress" else None), {}
    first, *others = given.items()
    target = "tokens" if not first[1].is_floating_point() else "class"
    for _, tensor in others:
        if target != "tokens":
            kinds = {1: "class", 3: "mask"} if not tensor.is_floating_point() else {2: "vector", 3: "map", 4: "map"}
            target = kinds.get(tensor.dim(), target)
    image, second = FIELDS[target]
    named = {name: image[0] for name, _ in [first] if name not in (*image, *second)}
    named.update({name: second[0] for name, _ in others if name not in (*image, *second)})
    return target, named if len(given) == 2 else {}


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
