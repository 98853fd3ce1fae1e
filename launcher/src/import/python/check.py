"""Checks of the model itself, and of its exported programs against it."""

# The seed of a step is this plus the number of its first sample, as in the trainer.
STEP_SEED = 1000
# Elements that a mark of a tensor takes at a time.
MARKED = 1 << 20

# Operations with a graph inside that dtrain runs.
REGIONS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


class State:
    """The buffers as they were, to restore and to compare. Parameters must not change, so they need no copies."""

    def __init__(self, model):
        self.model = model
        self.parameters = dict(model.named_parameters())
        self.tensors = {**self.parameters, **self.buffers()}
        self.copies = {name: tensor.detach().clone() for name, tensor in self.buffers().items()}
        # A model with untouched parameters is exported, and never runs.
        self.marks = {name: mark(tensor) for name, tensor in self.parameters.items() if not is_untouched(tensor)}
        # Forward may put another tensor in a buffer's place.
        self.places = [(module, key, tensor) for module in model.modules() for key, tensor in module._buffers.items()]

    def buffers(self):
        return dict(self.model.named_buffers())

    def set_parameter(self, tensor, values):
        """Changes a parameter, as nothing else may."""
        tensor.data.copy_(values)
        self.marks.update((name, mark(tensor)) for name, own in self.parameters.items() if own is tensor)

    def changed_parameters(self):
        return [name for name, own in self.marks.items() if mark(self.parameters[name]) != own]

    def changed(self):
        buffers = self.buffers()
        created = next((name for name in buffers if name not in self.copies), None)
        if created:
            raise Failure(f"forward creates the buffer `{created}`; create it in __init__")
        return [name for name, tensor in buffers.items() if not identical(tensor.detach(), self.copies[name])]

    def restore(self):
        for module, key, tensor in self.places:
            module._buffers[key] = tensor
        with torch.no_grad():
            for name in self.changed():
                self.tensors[name].data.copy_(self.copies[name])
        for tensor in self.parameters.values():
            tensor.grad = None


def mark(tensor):
    """Returns numbers that a change of a tensor also changes, a permutation too."""
    flat = tensor.detach().contiguous().flatten()
    flat = torch.view_as_real(flat).flatten() if flat.is_complex() else flat
    whole = {1: torch.uint8, 2: torch.int16}.get(flat.element_size(), torch.int32)
    parts = flat.view(whole).split(MARKED)
    places = torch.arange(1, 2 * len(parts[0]), 2, dtype=torch.int32)
    return [(part.to(torch.int32) * places[: len(part)]).sum(dtype=torch.int64).item() for part in parts]


def identical(one, other):
    """Returns whether two tensors have equal values; a value that is not a number equals another such."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    same_places = lambda: torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())
    return torch.equal(one, other) or (one.is_floating_point() and same_places())


class Checks:
    def __init__(self, named):
        self.named, self.model = named, named.model
        self.state, self.modules = State(named.model), Modules(named.model)
        # The guards of each program, by whether it is for training.
        self.guards = {}
        # Whether the model itself is compared, and not a smaller one in its place.
        self.runs = True

    def forward(self, batch, worked=None):
        """Runs forward of this many samples. `worked` is a number of samples that the model takes."""
        seed_all()
        before = drawn()
        try:
            outputs = self.named(self.named.inputs.of_batch(batch))
        except Failure:
            raise
        except Exception as error:
            place = self.modules.of(error)
            if worked:
                place = self.fixed_batch(worked) or place
                doing = f"the model takes {worked} samples, but not {batch}"
                raise refuse(doing, FIXED, place, f" ({explain(error)})") from error
            mode = "training" if self.model.training else "evaluation"
            raise refuse(f"forward fails in {mode} mode", reason(error, place), place) from error
        if drawn() != before:
            raise Failure(f"{LOST}: it draws random numbers of Python or NumPy; {LOST_REMEDY}")
        check_changed(self.model, self.state.changed_parameters() + self.state.changed())
        return outputs

    def places(self, mode, chosen):
        """Runs forward again under a mode of torch, without values if the model is not to run. Returns the places of the functions that
        `chosen` accepts."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        modules, places = self.modules, []

        def note(_, function, types, args=(), kwargs=None):
            if chosen(function, args):
                place = modules.here(sys._getframe(1))
                if place.file and place.module:
                    places.append(place)
            return function(*args, **(kwargs or {}))

        method = "__torch_dispatch__" if "Dispatch" in mode.__name__ else "__torch_function__"
        values = contextlib.nullcontext() if self.runs else FakeTensorMode(allow_non_fake_inputs=True)
        with values, type("Noting", (mode,), {method: note})(), contextlib.suppress(Exception):
            self.named(self.named.inputs.of_batch(ALWAYS[-1]))
        self.state.restore()
        return places

    def fixed_batch(self, batch):
        """Returns the place of the first function that is called with the example's batch as a number."""
        from torch.overrides import TorchFunctionMode

        return next(iter(self.places(TorchFunctionMode, lambda _, args: first_int(args) == batch)), None)

    def place_of(self, node, mode, chosen):
        """Returns the place of a program's operation. Its own record ends at forward, so forward runs again under a mode of torch."""
        recorded = place_of_node(node)
        return next((place for place in self.places(mode, chosen) if place.module == recorded.module), recorded)

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
            self.named(self.named.inputs.of_batch(ALWAYS[-1]))
        found = re.search(r"\[torch\.\w+ \[([\d, ]*)\]\]", text)
        shape = [int(size) for size in found.group(1).split(",") if size.strip()] if found else None
        places = [place for size, place in writes if size == shape] or [place for _, place in writes] or [Place()]
        cause = "an in-place operation overwrites a tensor that backward needs", "compute a new tensor instead"
        return refuse("backward of the model fails", cause, places[-1])

    def export(self, training):
        """Exports one program, and checks its graph."""
        mode = "training" if training else "evaluation"
        with Watch(self.modules) as watch:
            try:
                program = self.named.export(training)
            except Failure:
                raise
            except Exception as error:
                if fixed := re.search(r"(Constraints violated|marked .* as dynamic)(.*size\(\)\[[1-9])?", str(error)):
                    raise watch.failure(LENGTH if fixed.group(2) else FIXED) from error
                place = self.modules.of(error)
                raise refuse(f"the {mode} program cannot be exported", reason(error, place), place) from error
        self.guards[training] = check_ranges(program, watch)
        check_program(program, mode)
        for node in nodes_of(program):
            self.check_node(node, mode)
        return program

    def check_node(self, node, mode):
        from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
        from torch.utils._python_dispatch import TorchDispatchMode

        doing = f"the {mode} program cannot be exported"
        operation = getattr(node.target, "name", None)
        name = operation() if callable(operation) else str(node.target)
        space = name.split("::")[0]
        if isinstance(node.target, torch._ops.OpOverload) and space not in ("aten", "prims") and name.split(".")[0] not in own_operations:
            raise refuse(doing, (f"{name} {CUSTOM[0]}", CUSTOM[1]), self.place_of(node, TorchDispatchMode, lambda op, _: op is node.target))
        if isinstance(node.target, torch._ops.HigherOrderOperator) and name not in REGIONS:
            cause = VMAP if name == "flat_apply" else (f"dtrain cannot run torch.ops.higher_order.{name}", "write it with functions of torch")
            raise refuse(doing, cause, place_of_node(node))
        if "functorch" in getattr(node.target, "__module__", ""):
            raise refuse(doing, VMAP, place_of_node(node))
        values = [value for value in pytree.tree_leaves(node.meta.get("val")) if value is not None]
        for value in values:
            if free_unbacked_symbols(value):
                number = not isinstance(value, torch.Tensor) and "item" in name
                raise refuse(doing, NUMBER if number else SIZE, self.place_of(node, TorchDispatchMode, data_dependent))


def differs(what, detail, cause=None):
    """Returns the error about a tensor that the trainer computes otherwise."""
    return Failure(f"the exported program computes another {what} than the model ({detail}): {cause or f'{LOST}; {LOST_REMEDY}'}")


LOST = "forward depends on something that the export has fixed, such as Python's random numbers or a counter"
LOST_REMEDY = "compute it from the inputs with functions of torch"


def drawn():
    """Returns the state of the generators that an export does not see."""
    numpy = sys.modules.get("numpy")
    state = numpy and numpy.random.get_state(legacy=False)["state"]
    return random.getstate(), state and (bytes(state["key"]), state["pos"])


def plain_values(model):
    """Returns what the user's modules and their classes hold beside parameters and buffers, as far as it can be compared."""
    libraries = ("torch", "timm", "torchvision", "transformers", "peft")
    values, internal = {}, vars(torch.nn.Module())
    for name, module in model.named_modules():
        kind = type(module)
        if kind.__module__.split(".")[0] in libraries:
            continue
        own = {key: value for key, value in {**vars(kind), **vars(module)}.items() if key not in internal and not key.startswith("__")}
        values.update((f"{name}.{key}".lstrip("."), plain(value)) for key, value in own.items())
    return values


def plain(value, depth=3):
    """Returns a value that a change of `value` changes: of numbers, texts, generators, and lists and dicts of these."""
    if isinstance(value, torch.Tensor):
        return id(value) if depth == 3 else None
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, (list, tuple, set, collections.deque)) and depth:
        return [known for part in itertools.islice(value, 1000) if (known := plain(part, depth - 1)) is not None]
    if isinstance(value, dict) and depth:
        # Tensors in it may be a cache.
        return {str(key): known for key, part in itertools.islice(value.items(), 1000) if (known := plain(part, depth - 1)) is not None}
    if type(value).__module__.startswith("numpy.random"):
        return repr(getattr(value, "bit_generator", value).state)
    return value if value is None or isinstance(value, (bool, int, float, str)) else None


def check_attributes(model, before):
    """Refuses forward if it has changed an attribute, which an export fixes."""
    after = plain_values(model)
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            raise Failure(f"{LOST}: it changes the attribute `{name}`; make it a buffer, or compute it from the inputs")


def main_output(outputs):
    """Returns the name of the output with the loss, or that gets one: by its usual name, else the first."""
    return next((name for name in ("loss", "logits", "out", "output") if name in outputs), next(iter(outputs)))


def check_evaluation(named, training, evaluation, batch):
    """Checks that evaluation has the main output of training, and gives it the same name."""
    main = main_output(training)
    if list(evaluation) == ["output"] and main != "output" and evaluation["output"].shape == training[main].shape:
        named.renamed["output"] = main
        return
    if main not in evaluation or evaluation[main].shape != training[main].shape:
        of = lambda outputs: ", ".join(f"{name} {shape(value.shape)}" for name, value in outputs.items())
        raise Failure(
            f"{forward_of(named.model)} returns {of(training)} in training mode, but {of(evaluation)} in evaluation mode "
            f"({samples(batch)}); return `{main}` in both"
        )


def samples(count):
    return f"{count} sample{'s' if count > 1 else ''}"


def seed_all():
    random.seed(STEP_SEED)
    torch.manual_seed(STEP_SEED)


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
