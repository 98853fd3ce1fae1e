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
        with contextlib.redirect_stdout(unseen), contextlib.redirect_stderr(unseen), inside_checkpoints():
            return torch.export.export(self.model, tensors, dynamic_shapes=shapes, strict=False)
