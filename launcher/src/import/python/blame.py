"""Where in the user's source, and in which module, something went wrong, and how to change it."""

BRANCH = "a branch depends on the values of a tensor", "choose values with torch.where"
NUMBER = "a tensor becomes a Python number, which cuts the gradient", "keep it a tensor"
SIZE = "a size depends on the values of a tensor", "keep all shapes fixed: multiply by the mask, or use torch.where"
NUMPY = "a tensor is converted to NumPy", "use functions of torch"
FIXED = "the batch size is fixed", "take the batch from the input, as in x.shape[0] or x.flatten(1)"
DECIDES = "the batch size decides a branch", "compute the same for all batch sizes"
LEAF = "a parameter is changed in place", "compute a new tensor from it"
CUSTOM = (
    "is no operation of PyTorch itself",
    "name the shared library that registers it by --library, or write it with functions of torch",
)
FUNCTION = "has its own backward, which an export loses", "write it with functions of torch"
DATA = "forward writes to the `.data` of a tensor, which an export does not see", "write to the tensor itself under torch.no_grad()"
DERIVED = "an export cannot record a tensor that forward itself makes a leaf, as requires_grad_ and torch.autograd.grad need", "compute the derivative by functions of torch"
VMAP = "torch.vmap cannot be stored", "index with broadcasting instead"


class Place:
    """A line of source, and the innermost module whose forward runs there."""

    def __init__(self, file=None, line=None, module=None):
        self.file, self.line, self.module = file, line, module

    def code(self):
        return linecache.getline(self.file, self.line).split("  #")[0].strip() if self.file else ""

    def __str__(self):
        parts = [self.module] if self.module else []
        if self.file:
            code = self.code()
            parts.append(f"{shorten(self.file)}:{self.line}" + (f" `{code}`" if code else ""))
        return ", ".join(parts)


def shorten(path):
    """Returns a path as the user would write it: relative to the working folder if it lies within."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def is_source(file):
    """Returns whether the file is the user's or a library's: not torch's, Python's, or this script."""
    folder = os.path.dirname(os.path.abspath(getattr(torch, "__file__", ""))) + os.sep
    return not file.startswith(("<", folder, os.path.dirname(os.__file__) + os.sep)) or "site-packages" in file.replace(
        folder, ""
    )


def module_words(name, kind):
    return f"module `{name}` ({kind})" if name else f"the root module ({kind})"


class Modules:
    """The names of a model's modules."""

    def __init__(self, model):
        self.names = {id(module): name for name, module in model.named_modules(remove_duplicate=False)}

    def describe(self, module):
        """Returns the words for a module of this model, else None."""
        name = self.names.get(id(module))
        return None if name is None else module_words(name, type(module).__name__)

    def place(self, frames):
        """Returns the place for frames with their lines, the innermost first."""
        file, line, module = None, None, None
        for frame, number in frames:
            if file is None and is_source(frame.f_code.co_filename):
                file, line = frame.f_code.co_filename, number
            if module is None:
                module = self.describe(frame.f_locals.get("self"))
            if file and module:
                break
        return Place(file, line, module)

    def here(self, frame):
        """Returns the place that a running frame has been called from."""
        frames = []
        while frame:
            frames.append((frame, frame.f_lineno))
            frame = frame.f_back
        return self.place(frames)

    def of(self, error):
        """Returns the place where an exception, or the first of its causes with a place, was raised."""
        best = Place()
        for link in reversed(list(chain_of(error))):
            frames = list(traceback.walk_tb(link.__traceback__))
            place = self.place(reversed(frames))
            if place.file and place.module:
                return place
            best = best if best.file else place
        return best


def chain_of(error):
    """Yields the exception and its causes, the last raised first."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def at(error):
    """Returns the words for the last line of the user's source in a traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_source(frame.filename)]
    return f" ({shorten(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""


def place_of_node(node):
    """Returns the place of an operation of an exported program."""
    file, line = None, None
    for found in re.finditer(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or ""):
        if is_source(found.group(1)):
            file, line = found.group(1), int(found.group(2))
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    module = None
    if stack:
        name, kind = stack[-1][:2]
        kind = (kind if isinstance(kind, str) else kind.__name__).split(".")[-1]
        module = module_words(name, kind)
    return Place(file, line, module)


def data_dependent(function, args):
    """Returns whether the result's size or the Python number that it makes depends on values."""
    if torch.Tag.data_dependent_output in function.tags:
        return True
    masks = any(isinstance(part, torch.Tensor) and part.dtype == torch.bool for part in pytree.tree_leaves(args[1:]))
    return torch.Tag.dynamic_output_shape in function.tags and ("index" not in str(function) or masks)


def first_int(args):
    """Returns the first whole number among the arguments of a function, such as the first size of a view."""
    leaves = pytree.tree_leaves(args)
    return next((part for part in leaves if isinstance(part, int) and not isinstance(part, bool)), None)


def refuse(doing, cause, place, detail=""):
    """Returns the error about one construct: what, where, why, and what to do."""
    why, remedy = cause
    where = str(place)
    return Failure(f"{doing}: {why}{detail}{': ' + where if where else ''}; {remedy}")


def reason(error, place):
    """Returns what is wrong and the remedy, from the kind of exception and the line of source."""
    text = "\n".join(f"{type(link).__name__}: {link}" for link in chain_of(error))
    code = place.code()
    if "leaf Variable that requires grad" in text:
        return LEAF
    if re.search(r"numpy|array\(", text, re.I) or ".numpy(" in code:
        return NUMPY
    if re.search(r"data-dependent|DataDependent|Could not (guard|extract)|\bu\d+\b|_local_scalar_dense", text):
        if re.match(r"(if|elif|while|assert)\b", code) or re.search(r"\bif\b.*\belse\b|\bbool\(", code):
            return BRANCH
        if re.search(r"\.item\(|\.tolist\(|\bint\(|\bfloat\(|\brange\(", code):
            return NUMBER
        return SIZE
    if re.search(r"vmap|functorch|TransformGetItem|flat_apply|lazy_load_decompositions", text):
        return VMAP
    if "fake tensor in the exported program constant" in text:
        return DATA if ".data" in code or not code else DERIVED
    if "fake impl" in text or "FakeTensor kernel" in text or "Meta" in text and "backend" in text:
        operation = re.search(r"\b(\w+::\w+|\w+\.\w+\.default)", text)
        return f"{operation.group(1) if operation else 'this operation'} {CUSTOM[0]}", CUSTOM[1]
    own = place.file and "site-packages" not in place.file
    return explain(error), "change this line" if own else "check sizes and inputs, as in --image-size and --inputs"


class Watch:
    """Notes where the export narrows a size or guards it: the frame that asked."""

    def __init__(self, modules):
        self.modules, self.narrowed = modules, []
        # The place of each guard, by its list and its number there.
        self.guards = {}

    def __enter__(self):
        from torch.fx.experimental import symbolic_shapes

        self.owner = symbolic_shapes.ShapeEnv
        self.original = getattr(self.owner, "evaluate_expr", None)
        if self.original is None:
            return self
        watch, original = self, self.original

        def state(env):
            ranges = dict(getattr(env, "var_to_range", {}))
            return {key: value for key, value in ranges.items() if not str(key).startswith(("u", "z"))}, len(
                getattr(env, "replacements", ())
            )

        def evaluate_expr(env, *args, **named):
            before, known = state(env), len(env.guards)
            try:
                return original(env, *args, **named)
            finally:
                after, noted = state(env), range(known, len(env.guards))
                if after != before or noted:
                    place = watch.modules.here(sys._getframe(1))
                    watch.guards.update(((id(env), number), place) for number in noted)
                    # Numbers that only exist inside torch have no line of source.
                    if place.file and after != before:
                        watch.narrowed.append(place)

        self.owner.evaluate_expr = evaluate_expr
        return self

    def __exit__(self, *_):
        if self.original is not None:
            self.owner.evaluate_expr = self.original

    def failure(self, cause, detail=""):
        # A length may have been narrowed before it was fixed.
        place = self.narrowed[-1 if cause is LENGTH else 0] if self.narrowed else Place()
        if cause is FIXED and re.match(r"(if|elif|while|assert|for)\b", place.code()):
            cause = DECIDES
        return refuse("the model cannot be exported", cause, place, detail)
