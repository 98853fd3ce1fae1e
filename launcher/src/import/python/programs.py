"""The exported programs: the training one and the evaluation one, with named inputs and outputs."""


def named_outputs(value, model):
    """Returns the tensors of a forward's result by name: keys, fields, or positions."""
    outputs = {}
    collect_outputs(value, "", outputs, model)
    if not outputs:
        raise Failure(f"{forward_of(model)} returns no tensor; return the outputs that the loss needs")
    return outputs


def collect_outputs(value, name, outputs, model):
    if isinstance(value, torch.Tensor):
        if (name or "output") in outputs:
            raise Failure(f"{forward_of(model)} returns two outputs by the name `{name}`; give them other names")
        outputs[name or "output"] = value
        return
    if value is None and name:
        return
    if hasattr(value, "items"):
        parts = value.items()
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = zip(value._fields, value)
    elif isinstance(value, (tuple, list)):
        parts = ((f"{name or 'output'}_{index}", part) for index, part in enumerate(value))
    elif hasattr(value, "__dataclass_fields__"):
        parts = ((field, getattr(value, field)) for field in value.__dataclass_fields__)
    else:
        what = "None" if value is None else f"a value of type {type(value).__name__}"
        raise Failure(
            f"{forward_of(model)} returns {what}{f' as `{name}`' if name else ''}; return tensors only: one, a tuple, "
            "or a dict by name"
        )
    nested = not isinstance(value, (tuple, list)) or hasattr(value, "_fields")
    for part, inner in parts:
        collect_outputs(inner, f"{name}_{part}" if name and nested else str(part), outputs, model)


class Named:
    """A model whose forward takes tensors in a fixed order and returns a dict of tensors."""

    def __init__(self, model, inputs, dynamic=()):
        self.model, self.inputs, self.names = model, inputs, {}
        self.dynamic = dynamic_dims(inputs, dynamic)
        own = model.forward
        # The main output of training names a single unnamed output of evaluation.
        self.renamed = {}

        def forward(*tensors):
            with assignments_as_writes(model):
                if inputs.positional:
                    outputs = own(*tensors)
                else:
                    outputs = own(**dict(zip(inputs.names, tensors)))
            outputs = named_outputs(outputs, model)
            if not model.training and list(outputs) == ["output"]:
                outputs = {self.renamed.get("output", "output"): outputs["output"]}
            self.names[model.training] = list(outputs)
            return outputs

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in inputs.names])
        model.forward = forward

    def __call__(self, tensors):
        return self.model(*tensors)

    def export(self, training):
        dynamic = torch.export.Dim.DYNAMIC
        self.model.train(training)
        tensors = tuple(self.inputs.of_batch(BATCH))
        shapes = tuple({dim: dynamic for dim in (0, *self.dynamic[name])} for name in self.inputs.names)
        # PyTorch prints the graph if an export fails.
        unseen = io.StringIO()
        with contextlib.redirect_stdout(unseen), contextlib.redirect_stderr(unseen), inside_checkpoints(), casts_of_aliases():
            program = torch.export.export(self.model, tensors, dynamic_shapes=shapes, strict=False)
        drop_aliases(program)
        return program


@contextlib.contextmanager
def assignments_as_writes(model):
    """Within an export: writes a tensor that forward has put in a buffer's place to the buffer. torch.export does so for buffers
    of the root module, and loses the others."""
    before = [(module, key, tensor) for module in model.modules() for key, tensor in module._buffers.items()]
    yield
    if not torch.compiler.is_exporting():
        return
    for module, key, buffer in before:
        new = module._buffers[key]
        if new is buffer:
            continue
        if buffer is None or new is None or new.shape != buffer.shape or new.dtype != buffer.dtype:
            raise Failure(f"forward gives the buffer `{key}` of {type(module).__name__} another shape or dtype; create it in __init__ as it stays")
        with torch.no_grad():
            buffer.copy_(new)
        module._buffers[key] = buffer


def casts_of_aliases():
    """Has each cast read an alias of its tensor.

    A cast to the dtype that is there returns the tensor itself. An export then takes the tensor's later uses for uses of the
    cast, which is a copy where mixed precision gives another dtype. `drop_aliases` removes the aliases, so that a cast without
    effect still returns the tensor itself.
    """
    from torch.overrides import TorchFunctionMode

    tensor = torch.Tensor
    casts = {tensor.to, tensor.type, tensor.type_as, tensor.float, tensor.double, tensor.half, tensor.bfloat16}

    class Casts(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function in casts:
                args = (torch.ops.aten.alias(args[0]), *args[1:])
            return function(*args, **(kwargs or {}))

    return Casts()


def drop_aliases(program):
    results = {spec.arg.name: spec.arg for spec in program.graph_signature.output_specs if hasattr(spec.arg, "name")}
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in list(module.graph.nodes):
            if node.target is not torch.ops.aten.alias.default:
                continue
            source = node.args[0]
            node.replace_all_uses_with(source)
            module.graph.erase_node(node)
            if node.name in results:
                results[source.name] = results.pop(node.name)
                results[source.name].name = source.name
        module.recompile()
