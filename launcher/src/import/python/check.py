"""Checks of the model itself, and of its exported programs against it."""

SEED = 1

# Operations with a graph inside that dtrain runs.
REGIONS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


class State:
    """The parameters and buffers as they were, to restore and to compare."""

    def __init__(self, model):
        self.tensors = dict(model.named_parameters())
        self.tensors.update(model.named_buffers())
        self.copies = {name: tensor.detach().clone() for name, tensor in self.tensors.items()}
        self.parameters = {name for name, _ in model.named_parameters()}

    def changed(self):
        return [name for name, tensor in self.tensors.items() if not identical(tensor.detach(), self.copies[name])]

    def restore(self):
        with torch.no_grad():
            for name in self.changed():
                self.tensors[name].data.copy_(self.copies[name])
        for tensor in self.tensors.values():
            tensor.grad = None


def identical(one, other):
    # Equal bits: NaN equals NaN.
    return torch.equal(one, other) or torch.equal(one.isnan(), other.isnan()) and torch.equal(
        one.nan_to_num(), other.nan_to_num()
    )


def check_module(model):
    if not any(True for _ in model.parameters()):
        raise Failure(f"{type(model).__name__} has no parameters; there is nothing to train")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise Failure(f"all parameters of {type(model).__name__} are frozen; set requires_grad on some")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise Failure(f"{name} has no values (device meta); create the model on the CPU")
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise Failure(f"{name} is a {type(tensor).__name__}; a model may only have plain tensors")


class Checks:
    def __init__(self, named):
        self.named, self.model = named, named.model
        self.state, self.modules = State(named.model), Modules(named.model)
        self.functions = {}

    def run_model(self):
        """Runs forward at two batch sizes, and backward at the second. Returns the results there."""
        own = self.named.inputs.tensors[0].shape[0]
        self.model.train()
        with self.noting_functions():
            shapes = {name: value.shape for name, value in self.forward(self.named.inputs.of_batch(own)).items()}
            changed = [name for name in self.state.changed() if name in self.state.parameters]
            if changed:
                raise Failure(f"forward changes the parameter `{changed[0]}`; {LEAF[1]}, or make it a buffer")
            self.state.restore()
            outputs = self.forward(self.named.inputs.of_batch(OTHER_BATCH), own)
        main = main_output(outputs)
        # A model may compute its own loss, a single number.
        if outputs[main].dim() == 0 and main == "loss":
            pass
        elif not outputs[main].dim() or outputs[main].shape[0] != OTHER_BATCH or shapes[main][0] != own:
            raise Failure(
                f"the output `{main}` has no batch: its shape is {shape(shapes[main])} for {own} samples, and "
                f"{shape(outputs[main].shape)} for {OTHER_BATCH}; return one row per sample, or a loss by the name `loss`"
            )
        try:
            gradients = self.backward(outputs)
        except RuntimeError as error:
            raise self.forbidden_write(error) from error
        self.state.restore()
        return outputs, gradients

    def forward(self, tensors, worked=None):
        seed_all()
        try:
            return self.named(tensors)
        except Failure:
            raise
        except Exception as error:
            place = self.modules.of(error)
            if worked:
                place = self.fixed_batch(worked) or place
                doing = f"the model takes {worked} samples, but not {OTHER_BATCH}"
                raise refuse(doing, FIXED, place, f" ({explain(error)})") from error
            mode = "training" if self.model.training else "evaluation"
            raise refuse(f"forward fails in {mode} mode", reason(error, place), place) from error

    def backward(self, outputs):
        """Returns the gradients by name; `None` for parameters that no output uses."""
        used = [value for value in outputs.values() if value.requires_grad]
        if not used:
            raise Failure(
                f"no output of {forward_of(self.model)} depends on a parameter that is trained; remove no_grad or detach"
            )
        sum(value.float().sum() if not value.is_complex() else value.abs().sum() for value in used).backward()
        gradients = {name: tensor.grad for name, tensor in self.model.named_parameters() if tensor.requires_grad}
        if all(gradient is None for gradient in gradients.values()):
            raise Failure("backward reaches no parameter; remove no_grad or detach")
        return gradients

    def places(self, mode, chosen):
        """Runs forward again under a mode of torch. Returns the places of the functions that `chosen` accepts."""
        modules, places = self.modules, []

        def note(_, function, types, args=(), kwargs=None):
            if chosen(function, args):
                place = modules.here(sys._getframe(1))
                if place.file and place.module:
                    places.append(place)
            return function(*args, **(kwargs or {}))

        method = "__torch_dispatch__" if "Dispatch" in mode.__name__ else "__torch_function__"
        with type("Noting", (mode,), {method: note})(), contextlib.suppress(Exception):
            self.named(self.named.inputs.of_batch(OTHER_BATCH))
        self.state.restore()
        return places

    def fixed_batch(self, batch):
        """Returns the place of the first function that is called with the example's batch as a number."""
        from torch.overrides import TorchFunctionMode

        return next(iter(self.places(TorchFunctionMode, lambda _, args: first_int(args) == batch)), None)

    def place_of(self, node, chosen):
        """Returns the place of a program's operation. Its own record ends at forward, so forward runs again."""
        from torch.utils._python_dispatch import TorchDispatchMode

        recorded = place_of_node(node)
        places = self.places(TorchDispatchMode, chosen)
        return next((place for place in places if place.module == recorded.module), recorded)

    def forbidden_write(self, error):
        """Finds the in-place operation that autograd complains about by a second forward."""
        text = str(error)
        if "inplace operation" not in text:
            return Failure(f"backward of the model fails: {explain(error)}")
        from torch.overrides import TorchFunctionMode

        modules, writes = self.modules, []

        class Writes(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                tensors = [part for part in pytree.tree_leaves((args, kwargs or {})) if isinstance(part, torch.Tensor)]
                versions = [tensor._version for tensor in tensors]
                result = function(*args, **(kwargs or {}))
                for tensor, version in zip(tensors, versions):
                    if tensor._version > version:
                        writes.append((list(tensor.shape), modules.here(sys._getframe(1))))
                return result

        self.state.restore()
        with Writes(), contextlib.suppress(Exception):
            self.named(self.named.inputs.of_batch(OTHER_BATCH))
        found = re.search(r"\[torch\.\w+ \[([\d, ]*)\]\]", text)
        shape = [int(size) for size in found.group(1).split(",") if size.strip()] if found else None
        places = [place for size, place in writes if size == shape] or [place for _, place in writes] or [Place()]
        cause = "an in-place operation overwrites a tensor that backward needs", "compute a new tensor instead"
        return refuse("backward of the model fails", cause, places[-1])

    @contextlib.contextmanager
    def noting_functions(self):
        """Notes the autograd functions of Python that forward calls."""
        base, checks = torch.autograd.Function, self
        original = base.__dict__["apply"]

        def apply(cls, *args, **named):
            if not cls.__module__.startswith("torch."):
                checks.functions.setdefault(cls.__name__, checks.modules.here(sys._getframe(1)))
            return original.__get__(None, cls)(*args, **named)

        base.apply = classmethod(apply)
        try:
            yield
        finally:
            base.apply = original

    def export(self, training):
        """Exports one program, and checks its graph."""
        mode = "training" if training else "evaluation"
        with Watch(self.modules) as watch:
            try:
                program = self.named.export(training)
            except Failure:
                raise
            except Exception as error:
                if re.search(r"Constraints violated|marked .* as dynamic", str(error)):
                    raise watch.failure(FIXED) from error
                place = self.modules.of(error)
                raise refuse(f"the {mode} program cannot be exported", reason(error, place), place) from error
        self.check_range(program, watch)
        for node in nodes_of(program):
            self.check_node(node, mode)
        return program

    def check_range(self, program, watch):
        dims = {str(node.meta["val"].shape[0]) for node in inputs_of(program)}
        for dim in dims:
            if dim.isdigit():
                raise watch.failure(FIXED, f" to {dim}")
        for symbol, limits in program.range_constraints.items():
            if str(symbol) in dims and (int(limits.lower) > 2 or "oo" not in str(limits.upper)):
                upper = "" if "oo" in str(limits.upper) else f" to {limits.upper}"
                raise watch.failure(DECIDES, f" (it must be {limits.lower}{upper or ' or more'})")

    def check_node(self, node, mode):
        from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

        doing = f"the {mode} program cannot be exported"
        operation = getattr(node.target, "name", None)
        name = operation() if callable(operation) else str(node.target)
        space = name.split("::")[0]
        if isinstance(node.target, torch._ops.OpOverload) and space not in ("aten", "prims") and name.split(".")[0] not in own_operations:
            raise refuse(doing, (f"{name} {CUSTOM[0]}", CUSTOM[1]), self.place_of(node, lambda op, _: op is node.target))
        if isinstance(node.target, torch._ops.HigherOrderOperator) and name not in REGIONS:
            cause = VMAP if name == "flat_apply" else (f"dtrain cannot run torch.ops.higher_order.{name}", "write it with functions of torch")
            raise refuse(doing, cause, place_of_node(node))
        if "functorch" in getattr(node.target, "__module__", ""):
            raise refuse(doing, VMAP, place_of_node(node))
        values = [value for value in pytree.tree_leaves(node.meta.get("val")) if value is not None]
        for value in values:
            if free_unbacked_symbols(value):
                number = not isinstance(value, torch.Tensor) and "item" in name
                raise refuse(doing, NUMBER if number else SIZE, self.place_of(node, data_dependent))

    def compare(self, program, expected, gradients):
        """Runs a program at another batch size: results must be those of the module."""
        outputs = self.run_program(program, gradients is not None)
        names = list(expected)
        for name, output in zip(names, outputs):
            if output.shape != expected[name].shape:
                raise Failure(
                    f"the exported program returns `{name}` as {shape(output.shape)} for {OTHER_BATCH} samples, but the "
                    f"model {shape(expected[name].shape)}; {FIXED[1]}"
                )
            self.must_agree(f"output `{name}`", output, expected[name])
        if gradients is None:
            return
        made = self.backward(dict(zip(names, outputs)))
        for name, gradient in gradients.items():
            if (gradient is None) != (made[name] is None):
                raise self.differs(f"gradient of `{name}`")
            if gradient is not None:
                self.must_agree(f"gradient of `{name}`", made[name], gradient)

    def must_agree(self, what, one, other):
        if one.dtype != other.dtype or not torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise self.differs(what)

    def differs(self, what):
        doing = f"the exported program computes another {what} than the model"
        for name, place in self.functions.items():
            return refuse(doing, (f"the autograd function {name} {FUNCTION[0]}", FUNCTION[1]), place)
        return Failure(
            f"{doing}: forward depends on something that the export has fixed, such as Python's random numbers or a "
            "counter; compute it from the inputs with functions of torch"
        )

    def run_program(self, program, grad):
        """Runs the graph on the module's own tensors."""
        kinds = torch.export.graph_signature.InputKind
        own = dict(self.model.named_parameters(remove_duplicate=False))
        own.update(self.model.named_buffers(remove_duplicate=False))
        samples = iter(self.named.inputs.of_batch(OTHER_BATCH))
        values = []
        for spec in program.graph_signature.input_specs:
            if spec.kind == kinds.USER_INPUT:
                values.append(next(samples))
            else:
                values.append(own[spec.target] if spec.target in own else program.constants[spec.target])
        seed_all()
        with torch.set_grad_enabled(grad):
            return program.graph_module(*values)

    def run_evaluation(self):
        """Returns the outputs of the module in evaluation mode."""
        self.model.eval()
        with torch.no_grad():
            return self.forward(self.named.inputs.of_batch(OTHER_BATCH))


def main_output(outputs):
    """Returns the name of the output with the loss, or that gets one: by its usual name, else the first."""
    return next((name for name in ("loss", "logits", "out", "output") if name in outputs), next(iter(outputs)))


def check_evaluation(named, training, evaluation):
    """Checks that evaluation has the main output of training. Returns its outputs by their final names."""
    main = main_output(training)
    if list(evaluation) == ["output"] and main != "output" and evaluation["output"].shape == training[main].shape:
        named.renamed["output"] = main
        evaluation = {main: evaluation["output"]}
    if main not in evaluation or evaluation[main].shape != training[main].shape:
        of = lambda outputs: ", ".join(f"{name} {shape(value.shape)}" for name, value in outputs.items())
        raise Failure(
            f"{forward_of(named.model)} returns {of(training)} in training mode, but {of(evaluation)} in evaluation mode "
            f"({OTHER_BATCH} samples); return `{main}` in both"
        )
    return evaluation


def seed_all():
    random.seed(SEED)
    torch.manual_seed(SEED)


def shape(sizes):
    return str(list(sizes))


def nodes_of(program):
    """Yields the operations of a program, also of graphs inside it."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from (node for node in module.graph.nodes if node.op == "call_function")


def inputs_of(program):
    """Returns the nodes of the user's inputs."""
    names = set(program.graph_signature.user_inputs)
    return [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
