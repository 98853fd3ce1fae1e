"""Whether a smaller model has the form of the real one: the same operations in the same order, but for sizes and repeated layers."""

# Arguments of whole numbers that are no sizes, though PyTorch computes with them as with sizes.
FIXED_ARGUMENTS = {"kernel_size", "stride", "padding", "output_padding", "dilation", "groups", "step", "ignore_index", "padding_idx"}
# Operations whose numbers may be computed from sizes.
OF_SIZES = {"arange", "linspace", "add", "sub", "rsub", "mul", "div", "floor_divide", "remainder", "clamp", "eq", "ne", "lt", "le", "gt", "ge"}

# Those of them whose bounds are sizes only if they are whole.
COMPARING = {"clamp", "eq", "ne", "lt", "le", "gt", "ge"}


def check_form(large, small, programs, smaller):
    """Refuses a smaller model that differs in more than sizes and the number of repeated layers."""
    if exact_form(large, programs) == exact_form(small, smaller):
        # As many operations have the same order; with fewer layers there are fewer.
        orders = [[[words for _, words in operations_of_program(program)] for program in each] for each in (programs, smaller)]
        if all(len(one) != len(other) or one == other for one, other in zip(*orders)):
            return
    kinds = [
        {(numbered(name), tensor.dim(), tensor.dtype): f"`{name}` {shape(tensor.shape)}" for name, tensor in checks.state.tensors.items()}
        for checks in (large, small)
    ]
    for one, other in (kinds, kinds[::-1]):
        for only in (words for kind, words in one.items() if kind not in other):
            raise other_form(f"only one of the two has {only}")
    for mode, one, other in zip(("training", "evaluation"), programs, smaller):
        parted = difference("", form_of(one), form_of(other))
        if parted:
            place, first, second = parted
            raise other_form(f"in {mode}{place}, the model has {first}, and the smaller one {second}")


def other_form(how):
    return Failure(f"--check-with makes a model that differs in more than sizes and the number of repeated layers: {how}; leave out what changes this")


def numbered(name):
    """Returns a name without its numbers, so that repeated layers have one."""
    return re.sub(r"\d+", "N", name)


def exact_form(checks, programs):
    """Returns the tensors and operations with all sizes. Models with the same ones differ in the number of repeated layers only."""
    tensors = {(numbered(name), tuple(tensor.shape)) for name, tensor in checks.state.tensors.items()}
    return tensors, [{str(settings(node, lambda _, value: value)) for node in nodes_of(program)} for program in programs]


def settings(node, constant):
    """Returns an operation with its arguments by `constant`, which gets the name and the value of each."""
    values = arguments(node) or dict(enumerate([*node.args, *node.kwargs.values()]))
    plain = lambda value: "_" if isinstance(value, torch.fx.Node) else value
    return operation(node), [pytree.tree_map(plain, constant(name, value)) for name, value in values.items()]


def form_of(program):
    """Returns the operations in their order, those of each call of a module by themselves, without repetitions."""
    return folded(operations_of_program(program), 0)


def operations_of_program(program):
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    return list(operations_of(program.graph_module, names))


def operations_of(module, names, inside=""):
    """Yields each operation on tensors: the calls of modules around it, and what it is."""
    for node in module.graph.nodes:
        regions = [getattr(module, part.target) for part in node.all_input_nodes if part.op == "get_attr"]
        for region in (part for part in regions if isinstance(part, torch.fx.GraphModule)):
            # Without the names of the graph's tensors.
            head = [value for value in node.args if not isinstance(value, torch.fx.Node)]
            yield from operations_of(region, names, f"{inside}{operation(node)} {head}: ")
        tensors = [value for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]
        if isinstance(node.target, torch._ops.OpOverload) and tensors:
            kinds = ", ".join(f"{dtype_of(tensor)} of {tensor.dim()} dimensions" for tensor in tensors)
            yield list((node.meta.get("nn_module_stack") or {}).items()), f"{inside}{described(node, names)} ({kinds})"


def described(node, names):
    """Returns an operation with its constants. Each size above 0 is `size`."""
    name = operation(node).split(".")[-1].rstrip("_")
    sizes = set(re.findall(r"SymInt\S* (\w+)", str(node.target._schema))) - FIXED_ARGUMENTS

    def constant(argument, value):
        if isinstance(value, torch.fx.Node):
            return numbered(names.get(value.name, "_"))
        if isinstance(value, (list, tuple)):
            parts = [constant(argument, part) for part in value]
            # As many as there are layers.
            return without_repetitions(parts) if all(isinstance(part, torch.fx.Node) for part in value) and argument not in sizes else parts
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return value
        if name in OF_SIZES and argument != "alpha" and not (name in COMPARING and isinstance(value, float)):
            return "number" if value else value
        is_size = argument in sizes and isinstance(value, int) and 0 < value < sys.maxsize
        return "size" if is_size else value

    words = " ".join(map(str, settings(node, constant)))
    # A convolution has no argument for its kernel.
    kernel = node.args[1].meta["val"].shape[2:] if name.startswith("conv") and len(node.args) > 1 else ()
    return f"{words} of {list(kernel)}" if kernel else words


def folded(operations, depth):
    """Joins the operations of each call of a module at this depth."""
    parts = []
    for call, inner in itertools.groupby(operations, lambda item: item[0][depth] if depth < len(item[0]) else None):
        inner = list(inner)
        if call is None:
            parts += [what for _, what in inner]
        else:
            name, kind = call[1][:2]
            kind = kind if isinstance(kind, str) else kind.__name__
            parts.append((module_words(numbered(name.split("@")[0]), kind.split(".")[-1]), folded(inner, depth + 1)))
    return without_repetitions(parts)


def without_repetitions(parts):
    """Returns a list in which no part, and no sequence of parts, follows itself."""
    parts = list(parts)
    for length in range(1, len(parts) // 2 + 1):
        at = 0
        while at + 2 * length <= len(parts):
            if parts[at] == parts[at + length] and parts[at : at + length] == parts[at + length : at + 2 * length]:
                del parts[at + length : at + 2 * length]
            else:
                at += 1
    return parts


def difference(place, one, other):
    """Returns where two forms part, and what each has there; None if they are equal."""
    for first, second in itertools.zip_longest(one, other):
        if first == second:
            continue
        if isinstance(first, tuple) and isinstance(second, tuple) and first[0] == second[0]:
            return difference(f", {first[0]}", first[1], second[1])
        words = lambda part: "nothing more" if part is None else f"a call of {part[0]}" if isinstance(part, tuple) else f"`{part}`"
        return place, words(first), words(second)
    return None
