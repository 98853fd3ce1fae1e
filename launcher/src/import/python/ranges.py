"""The sizes for which a program is valid: the ranges of its dynamic dimensions, and guards, which an export notes for
each branch on a size.
"""

# A guard holds for all batches up to this one. If it turns false above, it bounds the batch.
LARGEST_BATCH = 65_536

# Pairs of a batch and lengths with more elements than this are not tried.
MOST_ELEMENTS = 1 << 24

LENGTH = "a length is fixed", "take it from the input, as in x.shape[1], or leave out --dynamic"

# The functions that occur in the text of a guard.
GUARD_FUNCTIONS = {
    **{name: lambda a, b: a % b for name in ("Mod", "PythonMod")},
    **{name: lambda a, b: a // b for name in ("FloorDiv", "CleanDiv")},
    **{name: lambda a, b: a / b for name in ("IntTrueDiv", "FloatTrueDiv")},
    "Eq": lambda a, b: a == b,
    "Ne": lambda a, b: a != b,
    "Max": lambda *values: most(values, "maximum"),
    "Min": lambda *values: most(values, "minimum"),
    "Abs": abs,
    "ToFloat": lambda a: a.double() if is_tensor(a) else float(a),
    **{name: lambda a: a.trunc().long() if is_tensor(a) else int(a) for name in ("TruncToInt", "trunc")},
    **{name: lambda a: a.floor().long() if is_tensor(a) else math.floor(a) for name in ("FloorToInt", "floor")},
    **{name: lambda a: a.ceil().long() if is_tensor(a) else math.ceil(a) for name in ("CeilToInt", "ceiling")},
    **{name: lambda a: a.double().sqrt() if is_tensor(a) else math.sqrt(a) for name in ("sqrt", "OpaqueUnaryFn_sqrt")},
}


def is_tensor(value):
    return isinstance(value, torch.Tensor)


def most(values, function):
    tensors = [value if is_tensor(value) else torch.tensor(value) for value in values]
    found = functools.reduce(getattr(torch, function), tensors)
    return found if any(map(is_tensor, values)) else found.item()


def dynamic_dims(inputs, requested):
    """Returns the dynamic dimensions beside the batch by the names of inputs, from `--dynamic NAME.DIM`."""
    dims = {name: [] for name in inputs.names}
    for entry in requested:
        name, dim = entry["input"], entry["dim"]
        flag = f"--dynamic {name}.{dim}"
        if name not in dims:
            raise Failure(f"{flag}: the model has no input `{name}`; it has: {', '.join(inputs.names)}")
        sizes = inputs.tensors[inputs.names.index(name)].shape
        if dim >= len(sizes):
            raise Failure(f"{flag}: `{name}` has only {len(sizes)} dimensions, the batch included: {of_samples(sizes)}")
        if sizes[dim] < 3:
            raise Failure(f"{flag}: the example has length {sizes[dim]} there; give an example of at least 3, as by --inputs")
        if dim not in dims[name]:
            dims[name].append(dim)
    return dims


def other_lengths(inputs, dynamic):
    """Returns the inputs with half the length in every dynamic dimension, or None without such a dimension."""
    if not any(dynamic.values()):
        return None
    shorter = list(inputs.tensors)
    for index, name in enumerate(inputs.names):
        for dim in dynamic[name]:
            shorter[index] = shorter[index].narrow(dim, 0, max(2, shorter[index].shape[dim] // 2))
    return Inputs(inputs.names, [tensor.contiguous() for tensor in shorter], inputs.positional)


def check_ranges(program, watch):
    """Refuses a program that is not valid for all batches. Returns its guards for the file."""
    sizes = [node.meta["val"].shape for node in inputs_of(program)]
    for shape in sizes:
        if not isinstance(shape[0], torch.SymInt):
            raise watch.failure(FIXED, f" to {shape[0]}")
    batches = {shape[0].node.expr for shape in sizes}
    limits = {symbol: bounds_of(limit) for symbol, limit in program.range_constraints.items()}
    for symbol in batches:
        least, highest = limits.get(symbol, (2, None))
        if least > 2 or highest is not None and highest < LARGEST_BATCH:
            upper = "" if highest is None else f" to {highest}"
            raise watch.failure(DECIDES, f" (it must be {least}{upper or ' or more'})")
    env = next(shape[0].node.shape_env for shape in sizes)
    guards = Guards(env, batches, limits, watch)
    guards.check()
    return guards.notes()


def bounds_of(limit):
    """Returns the lowest and the highest value of a range; None without a highest."""
    bound = lambda value: None if "oo" in str(value) else int(value)
    return bound(limit.lower) or 0, bound(limit.upper)


class Guards:
    """The conditions on sizes under which a program was exported."""

    def __init__(self, env, batches, limits, watch):
        self.limits, self.watch = limits, watch
        # A size may be another's, or computed from it. The text is that of sympy, which Python can compute.
        self.own, self.places = {}, {}
        for number, guard in enumerate(env.guards):
            self.own.setdefault(guard.expr, env.replace(guard.expr))
            self.places.setdefault(guard.expr, watch.guards.get((id(env), number), Place()))
        self.sources = {symbol: source for source, symbol in env.source_to_var.items()}
        symbols = {symbol for expr in self.own.values() for symbol in expr.free_symbols}
        of_batch = {symbol for size in batches for symbol in size.free_symbols}
        self.batches, self.lengths = symbols & of_batch, symbols - of_batch
        self.codes = {expr: compile(str(own), "guard", "eval") for expr, own in self.own.items()}

    def check(self):
        for expr, own in self.own.items():
            if not own.free_symbols & self.batches:
                continue
            for lengths in self.samples(own.free_symbols - self.batches):
                elements = math.prod(lengths.values())
                batches = torch.arange(1, max(2, min(LARGEST_BATCH, MOST_ELEMENTS // elements)) + 1)
                held = self.hold(expr, batches, lengths)
                if not is_tensor(held):
                    held = torch.full((len(batches),), bool(held))
                # Batches of one sample are compared, like others, and then noted.
                wrong = (~held[1:]).nonzero()
                if len(wrong):
                    at = f" and {self.words_of(lengths)}" if lengths else ""
                    why = f" (`{self.words(expr)}` is false for {int(wrong[0]) + 2} samples{at})"
                    raise refuse("the model cannot be exported", DECIDES, self.places[expr], why)

    def hold(self, expr, batch, lengths):
        """Returns whether a guard is true for a batch, or for each of a tensor of batches."""
        names = {**GUARD_FUNCTIONS, **{str(symbol): length for symbol, length in lengths.items()}}
        names.update((str(symbol), batch) for symbol in self.batches)
        try:
            return eval(self.codes[expr], {"__builtins__": {}, "True": True, "False": False}, names)
        except (ArithmeticError, NameError, TypeError, ValueError, RuntimeError) as error:
            # Python divides by 0 only for some batches, PyTorch for all.
            if is_tensor(batch):
                return torch.tensor([bool(self.hold(expr, int(one), lengths)) for one in batch])
            if isinstance(error, ArithmeticError):
                return False
            why = f" (`{self.words(expr)}` cannot be computed)"
            raise refuse("the model cannot be exported", DECIDES, self.places[expr], why) from error

    def samples(self, symbols):
        """Yields lengths for these symbols that meet all guards on lengths alone: small ones, and corners."""
        symbols = sorted(symbols, key=str)
        small = 64 if len(symbols) == 1 else 16
        choices = []
        for symbol in symbols:
            low, high = self.limits.get(symbol, (2, None))
            high = high or LARGEST_BATCH
            powers = {1 << power for power in range(1, 17)}
            values = {*range(low, low + small), *powers, *(power - 1 for power in powers), high - 1, high}
            choices.append(sorted(value for value in values if low <= value <= high))
        alone = [expr for expr, own in self.own.items() if own.free_symbols and own.free_symbols <= set(symbols)]
        for values in itertools.islice(itertools.product(*choices), 4096):
            lengths = dict(zip(symbols, values))
            if all(self.hold(expr, 1, lengths) for expr in alone):
                yield lengths

    def words(self, expr):
        """Returns a guard as the user would write it."""
        return re.sub(r"L\['(\w+)'\]\.size\(\)\[(\d+)\]", r"\1.shape[\2]", self.text(expr))

    def words_of(self, lengths):
        return ", ".join(f"{self.words(symbol)} = {length}" for symbol, length in lengths.items())

    def text(self, expr):
        """Returns a guard by the names of the inputs, as torch.export writes it."""
        own = {str(symbol): source for symbol, source in self.sources.items()}
        return re.sub(r"\b[a-z]\d+\b", lambda found: own.get(found.group(), found.group()), str(expr))

    def notes(self):
        return [
            {"guard": self.text(expr), "place": str(self.places[expr])}
            for expr, own in self.own.items()
            if expr.free_symbols
        ]
