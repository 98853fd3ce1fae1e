"""Checks of the module: what dtrain cannot train, and what an export would lose without a trace."""

# What `dtrain-worker` loads. Complex tensors are tables, such as those of rotary embeddings.
DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool", "complex64", "complex128")

HOOK = "write what it does to gradients into forward, such as x * scale + (x * (1 - scale)).detach(), or remove the hook"

# Modules of torch with autograd functions that give the gradients of the operations inside, or are errors by another name.
TRANSPARENT = ("torch.utils.checkpoint", "torch._library.autograd")

NO_GRADIENT = "checkpoint(use_reentrant=True) gives no gradient, because no input requires one", "set use_reentrant=False"

# Operations that fill a tensor with random numbers, and those that make an order of numbers.
DRAWS = ("rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "uniform", "normal", "normal_functional", "bernoulli")
ORDERS = ("argsort", "sort", "topk", "argmax", "argmin", "msort")


def tensors_of(model):
    """Returns the parameters and buffers by all their names."""
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def check_module(model, is_trained=True):
    """Refuses a module that dtrain cannot train as PyTorch does. The message has the name of the tensor or module."""
    if is_trained and not any(True for _ in model.parameters()):
        raise Failure(f"{type(model).__name__} has no parameters; there is nothing to train")
    if is_trained and not any(parameter.requires_grad for parameter in model.parameters()):
        raise Failure(f"all parameters of {type(model).__name__} are frozen; set requires_grad on some")
    for name, tensor in tensors_of(model):
        check_tensor(name, tensor)
    check_shared(model)
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise Failure(f"the parameter `{name}` has a hook on its gradient, which an export loses; {HOOK}")
    everywhere = torch.nn.modules.module
    if everywhere._global_backward_hooks or everywhere._global_backward_pre_hooks:
        raise Failure(f"there is a backward hook on all modules, which an export loses; {HOOK}")
    for name, module in model.named_modules():
        words = module_words(name, type(module).__name__)
        if module._backward_hooks or module._backward_pre_hooks:
            raise Failure(f"{words} has a backward hook, which an export loses; {HOOK}")
        if getattr(module, "momentum", 0) is None and getattr(module, "num_batches_tracked", None) is not None:
            raise Failure(
                f"{words} has momentum=None: its statistics depend on the number of batches so far, which an export fixes; "
                "set a momentum, such as 0.1"
            )


def check_tensor(name, tensor):
    kind, is_parameter = dtype_of(tensor), isinstance(tensor, torch.nn.Parameter)
    if tensor.is_meta:
        raise Failure(f"{name} has no values (device meta); create the model on the CPU")
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise Failure(f"{name} is a {type(tensor).__name__}; a model may only have plain tensors")
    if kind not in DTYPES or tensor.layout != torch.strided:
        what = f"of type {kind}" if kind not in DTYPES else f"in the layout {str(tensor.layout).removeprefix('torch.')}"
        raise Failure(f"`{name}` is {what}, which dtrain does not load; convert it, as by .float() or .to_dense()")
    if is_parameter and tensor.is_complex():
        raise Failure(f"the parameter `{name}` is {kind}; keep its real and imaginary parts as one float32 parameter, and use torch.view_as_complex")
    if is_parameter and tensor.is_floating_point() and kind != "float32":
        raise Failure(
            f"the parameter `{name}` is {kind}, and dtrain trains float32; call model.float() before the import, and set "
            "precision.amp in the recipe for mixed precision"
        )


def check_shared(model, changed=None):
    """Refuses different views of the same memory: the file would have two tensors. Constant buffers may share."""
    views, parameters = {}, {id(tensor) for tensor in model.parameters()}
    for name, tensor in tensors_of(model):
        if tensor.numel():
            views.setdefault(tensor.untyped_storage().data_ptr(), []).append((name, tensor))
    layout = lambda tensor: (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset())
    for group in views.values():
        for index, (name, tensor) in enumerate(group):
            for other, second in group[:index]:
                used = {id(tensor), id(second)} & parameters or {name, other} & set(changed or ())
                if tensor is second or layout(tensor) == layout(second) and not {id(tensor), id(second)} & parameters:
                    # The file has one tensor under both names.
                    continue
                if used and layout(tensor) == layout(second):
                    raise Failure(
                        f"`{other}` and `{name}` are two tensors of the same memory, and would be one in the file; assign the parameter itself, as in "
                        "b.weight = a.weight, or clone it"
                    )
                if used and overlap(tensor, second):
                    raise Failure(
                        f"`{other}` {shape(second.shape)} and `{name}` {shape(tensor.shape)} are views of the same memory, and would be "
                        "two tensors in the file; keep one of them, and compute the other from it in forward"
                    )


def overlap(one, other):
    """Returns whether two tensors of one storage have a byte in common."""
    touched = torch.zeros(one.untyped_storage().nbytes(), dtype=torch.bool)

    def bytes_of(tensor):
        size = tensor.element_size()
        sizes, strides = (*tensor.shape, size), (*(stride * size for stride in tensor.stride()), 1)
        return touched.as_strided(sizes, strides, tensor.storage_offset() * size)

    bytes_of(one).fill_(True)
    return bool(bytes_of(other).any())


def check_changed(model, changed):
    """Refuses a model by the names of the tensors that forward has changed."""
    for name, tensor in tensors_of(model):
        if name in changed and isinstance(tensor, torch.nn.Parameter):
            raise Failure(f"forward changes the parameter `{name}`; {LEAF[1]}, or make it a buffer")
        if name in changed and tensor.is_complex():
            raise Failure(f"forward changes the complex buffer `{name}`; keep it as a float32 buffer, and use torch.view_as_complex")
    check_shared(model, changed)


def warnings_of(model):
    """Returns what the user must know of the module, in sentences."""
    modes = {name: module.training for name, module in model.named_modules()}
    model.train()
    moved = [
        f"`{name}` ({type(module).__name__})"
        for name, module in model.named_modules()
        if module.training and not modes[name] and depends_on_mode(module)
    ]
    nested = [name for name, module in model.named_modules() if isinstance(module, torch.nn.TransformerEncoder) and module.use_nested_tensor]
    warnings = [
        f"`{name}` (TransformerEncoder): PyTorch may set padded positions to zero in evaluation, and dtrain computes them; set enable_nested_tensor=False"
        for name in nested
    ]
    if not moved:
        return warnings
    which = f"modules in eval() mode: {several(moved)}" if any(modes.values()) else f"a model in eval() mode, with {several(moved)}"
    return [*warnings, f"the function returned {which}; training uses train() mode, as after model.train(); to keep eval() mode, override train() in the class"]


def depends_on_mode(module):
    """Returns whether forward itself reads the mode, and acts by it."""
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and "training" in code.co_names and getattr(module, "p", None) != 0


def several(words, most=3):
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


@contextlib.contextmanager
def refusing_losses(modules):
    """Refuses what the calls inside do beside the operations that an export records: autograd functions of Python, and hooks
    on gradients. They are seen wherever they are called, also in code that read `apply` earlier, or under a checkpoint."""
    functions = torch.autograd.Function.apply.__func__.__code__
    hooks = [torch.Tensor.register_hook.__code__, torch.Tensor.register_post_accumulate_grad_hook.__code__]
    found = []

    def note(frame, event, called):
        if event == "call" and frame.f_code is functions:
            function = frame.f_locals["cls"]
            given = [part for part in pytree.tree_leaves(frame.f_locals["args"]) if isinstance(part, torch.Tensor)]
            if function.__name__ == "CheckpointFunction" and torch.is_grad_enabled() and not any(part.requires_grad for part in given):
                found.append((NO_GRADIENT, modules.here(frame.f_back)))
            elif function.__module__ not in TRANSPARENT:
                cause = f"the autograd function {function.__name__} {FUNCTION[0]}", FUNCTION[1]
                found.append((cause, modules.here(frame.f_back)))
        elif event == "call" and frame.f_code in hooks:
            found.append((("forward sets a hook on a gradient, which an export loses", HOOK), modules.here(frame.f_back)))
        elif event == "c_call" and getattr(called, "__name__", "") in ("register_hook", "register_prehook"):
            found.append((("forward sets a hook on a gradient, which an export loses", HOOK), modules.here(frame)))

    previous = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(previous)
    if found:
        raise refuse("the model cannot be exported", *found[0])


def check_program(program, mode):
    """Refuses a program with a tensor or an operation that dtrain does not load or train."""
    doing = f"the {mode} program cannot be exported"
    for name, tensor in program.constants.items():
        if isinstance(tensor, torch.Tensor):
            check_tensor(name, tensor)
    for node in nodes_of(program):
        if arguments(node).get("sparse") is True and operation(node) in ("aten.embedding", "aten.embedding_bag"):
            cause = "the embedding has sparse=True, and dtrain's optimizers take dense gradients", "set sparse=False"
            raise refuse(doing, cause, place_of_node(node))
    kinds = {node.name: "input" for node in inputs_of(program)}
    kinds.update({spec.arg.name: "output" for spec in program.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"})
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.name in kinds and isinstance(value, torch.Tensor) and (value.is_complex() or dtype_of(value) not in DTYPES):
            cause = f"an {kinds[node.name]} is {dtype_of(value)}, which no task has", "use float32, as by torch.view_as_real"
            raise refuse(doing, cause, place_of_node(node))


def warnings_of_program(program, checks):
    """Returns a warning for each operation that relates the samples of a batch by their order there."""
    from torch.fx.experimental.symbolic_shapes import free_symbols
    from torch.overrides import TorchFunctionMode

    drawn, places = set(), []
    for node in nodes_of(program):
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        name, given = operation(node).split(".")[-1].rstrip("_"), arguments(node)
        sources = [source for source in node.all_input_nodes if isinstance(source.meta.get("val"), torch.Tensor)]
        if name in DRAWS or sources and all(source in drawn for source in sources):
            drawn.add(node)
        first = sources[0].meta["val"] if sources else None
        # Whether the first dimension is the batch, or has it folded in.
        batched = first is not None and first.dim() and bool(free_symbols(first.shape[0]))
        along = lambda key: {index % first.dim() for index in pytree.tree_leaves(given.get(key)) if isinstance(index, int)}
        if name in ("randperm", "randint"):
            paired = isinstance(given.get("n", given.get("high")), torch.fx.Node)
        elif name in ORDERS:
            dim = given.get("dim")
            paired = batched and sources[0] in drawn and (dim is None or dim % first.dim() == 0)
        elif name in ("flip", "roll"):
            paired = batched and (0 in along("dims") or not given.get("dims"))
        else:
            paired = False
        if paired:
            called = lambda function, _: getattr(function, "__name__", "") == name
            places.append((name, str(checks.place_of(node, TorchFunctionMode, called))))
    return [
        f"{name} orders the samples of a batch: {place}; dtrain orders each micro-batch by itself, and a single sample is paired with "
        "itself: results depend on the micro-batch"
        for name, place in dict.fromkeys(places)
    ]


@contextlib.contextmanager
def inside_checkpoints():
    """Makes torch.utils.checkpoint(use_reentrant=True) call its function: an export would record its forward without gradients."""
    from torch.utils.checkpoint import CheckpointFunction

    CheckpointFunction.apply = staticmethod(lambda function, _, *args: function(*args))
    try:
        yield
    finally:
        del CheckpointFunction.apply
