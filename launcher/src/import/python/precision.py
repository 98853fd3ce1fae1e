"""The exported programs in mixed precision, on tensors without values."""

# Where a training uses mixed precision, with the device and the dtype of its autocast.
MIXED = ("GPUs", "cuda", "float16"), ("the CPU", "cpu", "bfloat16")


def warnings_of_precision(programs):
    """Returns a warning if a program cannot run under autocast, with the line."""
    for (where, device, dtype), (mode, program) in itertools.product(MIXED, zip(("training", "evaluation"), programs)):
        failed = failing(program, device, dtype)
        # An operation that also fails in float32 has no kernel for tensors without values.
        if failed and not failing(program, device, None):
            node, error = failed
            return [
                f"in mixed precision on {where} the {mode} program fails: {explain(error)}: {place_of_node(node)}; set precision.amp = \"off\" in the "
                "recipe, or change this line: x.type_as(y) follows the precision, and an export fixes x.to(y.dtype)"
            ]
    return []


def failing(program, kind, dtype):
    """Runs a program under the autocast of a device, or without it. Returns the operation that fails with its error, or None."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    device, ran, precision = torch.device(kind, 0), [], getattr(torch, dtype) if dtype else None

    class Run(torch.fx.Interpreter):
        def run_node(self, node):
            ran.append(node)
            return super().run_node(node)

        def call_function(self, target, args, kwargs):
            # It compares with the dtype and the device of the export.
            if "_assert_tensor_metadata" in str(target):
                return None
            args, kwargs = pytree.tree_map(on_device, (args, kwargs))
            if target is torch.ops.aten.scaled_dot_product_attention.default:
                # Its choice of a kernel asks the GPU, which this machine may lack. Autocast converts what it takes.
                args = [value.to(precision or value.dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value for value in args]
                return torch.ops.aten._scaled_dot_product_attention_math(*args, **kwargs)[0]
            return super().call_function(target, args, kwargs)

    def on_device(value):
        if isinstance(value, torch.fx.GraphModule):
            return lambda *args: Run(value).run(*args)
        return device if isinstance(value, torch.device) else value

    before = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind), torch.backends.cudnn.enabled
    with FakeTensorMode(), torch.no_grad(), without_logs():
        values = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"]
        inputs = [torch.empty(example_size(value), dtype=value.dtype, device=device) for value in values]
        try:
            # PyTorch asks cuDNN for its version before it runs a convolution, also without values. A machine without GPUs may lack it.
            torch.backends.cudnn.enabled = False
            torch.set_autocast_enabled(kind, dtype is not None)
            torch.set_autocast_dtype(kind, precision or before[1])
            Run(program.graph_module).run(*inputs)
        except Exception as error:
            return ran[-1], error
        finally:
            torch.set_autocast_enabled(kind, before[0])
            torch.set_autocast_dtype(kind, before[1])
            torch.backends.cudnn.enabled = before[2]
            torch.clear_autocast_cache()
    return None


@contextlib.contextmanager
def without_logs():
    """PyTorch logs the errors of tensors without values."""
    import logging

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def example_size(tensor):
    """Returns the shape that a tensor of a program had at the export."""
    return [getattr(length.node, "hint", None) if isinstance(length, torch.SymInt) else length for length in tensor.shape]
