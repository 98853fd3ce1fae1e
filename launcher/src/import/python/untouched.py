"""Models without the values of their large tensors, for --weights none: memory that nothing has touched takes none."""

# Tensors of at least this size are left out of the file.
LARGE = 1 << 20

# The memory of large tensors that nothing has touched, by address. It is kept: another tensor must not get its address.
untouched = {}


def is_untouched(tensor):
    return tensor.untyped_storage().data_ptr() in untouched


def without_values():
    """Returns a mode in which large random tensors stay untouched, also when they are changed in place or converted."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class WithoutValues(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            name, first = function._schema.name.removeprefix("aten::"), args[0] if args else None
            own = first if isinstance(first, torch.Tensor) else None
            if own is None and name in ("rand", "randn", "normal"):
                made = function(*args, **{**kwargs, "device": "meta"})
                if is_large(made):
                    return new_untouched(made, made.dtype)
            elif own is not None and own.device.type == "cpu" and is_large(own):
                if function._schema.is_mutable and (is_untouched(own) or name in ("normal_", "uniform_")):
                    keep(own)
                    return own
                if is_untouched(own) and name in ("_to_copy", "clone"):
                    return new_untouched(own, kwargs.get("dtype") or own.dtype)
            return function(*args, **kwargs)

    return WithoutValues()


def is_large(tensor):
    return tensor.numel() * tensor.element_size() >= LARGE


def new_untouched(like, dtype):
    made = torch.empty_like(like, dtype=dtype, device="cpu")
    keep(made)
    return made


def keep(tensor):
    storage = tensor.untyped_storage()
    untouched[storage.data_ptr()] = storage
