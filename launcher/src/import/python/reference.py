"""PyTorch's results of the model, and the comparison of the trainer's with them."""

# Batch sizes that are always compared, and those that are compared while memory and time allow.
ALWAYS, MORE = (1, 2, 3), (4, 6, 8, 12)
MOST = MORE[-1]
# The whole check may take these seconds, and a larger batch this share of the free memory.
SECONDS, SHARE = 120, 0.5
# Largest differences, relative to the size of a tensor: with the trainer's version of torch, and with another.
TOLERANCE, OTHER_TOLERANCE, TRAINERS_TORCH = 1e-5, 1e-4, "2.11."
# A parameter without a larger value, such as a gate, hides the gradients behind it. The check gives it other values.
HIDING = 1e-3


class Check:
    """The folder of a check: inputs, results of PyTorch, and the cases to compare."""

    def __init__(self, folder, checks, trains=True):
        # A program that only evaluates has no steps to compare.
        self.folder, self.checks, self.trains = folder, checks, trains
        self.named, self.model, self.state = checks.named, checks.model, checks.state
        self.cases, self.batches, self.left_out = [], [], []
        # Why a single sample is refused, by mode.
        self.refused = {}
        # Rows per sample of the outputs that have a batch, and random numbers for these and for scalars.
        self.rows, self.cotangents = {}, {}
        # Buffers that training changes: a file has these also if they are not persistent.
        self.written = set()
        # Shapes and dtypes of the outputs of three samples, and parameters that no output depends on.
        self.outputs, self.unused = {}, []
        # Places of settings that an export may lose.
        self.lost = []
        # Parameters that have other values in the check, with their own ones, by the first name of each.
        self.filled = {}
        self.started = time.monotonic()

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self):
        """Runs the model at several batch sizes in both modes, and writes its results."""
        self.fill()
        try:
            self.run_all()
        finally:
            for name, (tensor, own) in self.filled.items():
                self.state.set_parameter(tensor, own)

    def fill(self):
        """Gives parameters that hide others positive random values, which the trainer gets as well."""
        names, generator = self.first_names(), torch.Generator().manual_seed(2)
        for name, tensor in self.state.parameters.items():
            if not tensor.is_floating_point() or not 0 < tensor.numel() <= tensor.untyped_storage().nbytes() // tensor.element_size():
                continue
            if torch.linalg.vector_norm(tensor.detach().float(), math.inf) <= HIDING:
                self.filled[names.get(id(tensor), name)] = tensor, tensor.detach().clone()
                self.state.set_parameter(tensor, 0.05 + 0.1 * torch.rand(tensor.shape, generator=generator))
        if self.filled:
            save_tensors(self.path("filled.safetensors"), {name: tensor.detach() for name, (tensor, _) in self.filled.items()})

    def run_all(self):
        self.probe()
        if not self.trains:
            return self.run_evaluations()
        for batch in (2, 1, 3):
            began = time.monotonic()
            with self.may_refuse_one("training", batch):
                self.train(batch)
                self.batches.append(batch)
        seconds = time.monotonic() - began
        for batch in MORE:
            if self.affords(batch, seconds):
                self.train(batch)
                self.batches.append(batch)
            else:
                self.left_out.append(batch)
        self.model.eval()
        for batch in sorted(set(self.batches) | {1}):
            with self.may_refuse_one("evaluation", batch):
                self.evaluate(batch)
        self.batches.sort()
        self.save_inputs("inputs.safetensors", self.batches[-1])
        self.run_other_lengths()

    def run_evaluations(self):
        """As run_all, without training."""
        self.model.eval()
        self.batches = sorted(ALWAYS)
        for batch in self.batches:
            self.evaluate(batch)
        self.save_inputs("inputs.safetensors", self.batches[-1])

    def run_other_lengths(self):
        """Runs the model on shorter inputs, if it takes any length."""
        shorter, own = other_lengths(self.named.inputs, self.named.dynamic), self.named.inputs
        if shorter is None:
            return
        # Random numbers for outputs may have other shapes, too.
        self.named.inputs, self.cotangents = shorter, {}
        detail, file, before = ", other length", "other-length.safetensors", len(self.cases)
        try:
            self.train(2, detail, {"inputs": file})
            self.model.eval()
            self.evaluate(2, detail, {"inputs": file})
            self.save_inputs(file, 2)
        except Failure as failure:
            # The check has chosen the length; the model may take others.
            del self.cases[before:]
            self.state.restore()
            warn([f"no other length was compared: with half of the example's, {failure}"])
        self.named.inputs = own

    def save_inputs(self, file, batch):
        values = dict(zip(self.named.inputs.names, self.named.inputs.of_batch(batch)))
        for name, value in self.cotangents.items():
            values[f"cotangent.train.{name}"] = value[: self.rows[name] * batch] if self.rows[name] else value
        save_tensors(self.path(file), values)

    def probe(self):
        """Learns the outputs: which have rows of samples, and that both modes return the main one."""
        self.model.train()
        own, (two, three) = self.named.inputs.own, (2, 3)
        attributes = plain_values(self.model)
        with refusing_losses(self.checks.modules), noting_lost_modes(self.checks.modules, self.lost):
            if own not in (two, three, EXAMPLES):
                self.forward(own)
            with Saved() as small:
                few = self.forward(two, own if own not in (two, EXAMPLES) else None)
            with Saved() as large:
                many = self.forward(three, own if own not in (three, EXAMPLES) else two)
        check_attributes(self.model, attributes)
        self.saved = small.bytes, large.bytes
        if few.keys() != many.keys():
            raise Failure(f"{forward_of(self.model)} returns {len(few)} outputs for {samples(two)}, and {len(many)} for {samples(three)}; stack them")
        for name, value in many.items():
            other = few[name]
            same = value.dim() == other.dim() and value.shape[1:] == other.shape[1:]
            if value.dim() and same and value.shape[0] and value.shape[0] % three == 0 and other.shape[0] * three == value.shape[0] * two:
                self.rows[name] = value.shape[0] // three
            elif value.dim() == 0:
                self.rows[name] = 0
        main = main_output(many)
        # A model may compute its own loss, a single number.
        if not (main == "loss" and self.rows.get(main) == 0) and self.rows.get(main) != 1:
            raise Failure(
                f"the output `{main}` has no batch: its shape is {shape(few[main].shape)} for {samples(two)}, and "
                f"{shape(many[main].shape)} for {samples(three)}; return one row per sample, or a loss by the name `loss`"
            )
        self.outputs = {name: value.detach().to("meta") for name, value in many.items()}
        self.model.eval()
        attributes = plain_values(self.model)
        with torch.no_grad():
            check_evaluation(self.named, many, self.forward(three), three)
        check_attributes(self.model, attributes)

    def forward(self, batch, worked=None):
        outputs = self.checks.forward(batch, worked)
        self.state.restore()
        return outputs

    @contextlib.contextmanager
    def may_refuse_one(self, mode, batch):
        """Notes a refusal of a single sample: then the trainer takes two or more."""
        try:
            yield
        except Failure as failure:
            if batch != 1:
                raise
            self.refused[mode] = str(failure)
            self.state.restore()

    def affords(self, batch, seconds):
        """Predicts memory and time of a batch from those of two and three samples, of which three took `seconds`."""
        small, large = self.saved
        saved = large + (large - small) * (batch - 3)
        weights = sum(tensor.numel() * tensor.element_size() for tensor in self.state.tensors.values())
        # The trainer takes as long as PyTorch again; an evaluation is counted as half a step.
        spent = 2 * (time.monotonic() - self.started) + 3 * seconds * batch / 3
        has_room = 2 * weights < shutil.disk_usage(self.folder).free
        return 2 * weights + 2 * saved < SHARE * free_bytes() and spent < SECONDS and has_room

    def train(self, batch, detail="", more=()):
        """Writes the results of a step."""
        self.model.train()
        outputs = self.checks.forward(batch)
        self.check_rows(outputs, batch)
        self.written.update(self.state.changed())
        loss = self.loss(outputs, batch)
        if not loss.requires_grad:
            raise Failure(
                f"no output of {forward_of(self.model)} depends on a parameter that is trained; remove no_grad or detach"
            )
        try:
            (loss / batch).backward()
        except RuntimeError as error:
            raise self.checks.forbidden_write(error) from error
        gradients = self.gradients()
        if any(gradient is not None and gradient.is_sparse for gradient in gradients.values()):
            # The export finds the operation.
            self.checks.export(True)
            raise Failure("the model has sparse gradients, and dtrain's optimizers take dense ones; set sparse=False")
        if all(gradient is None for gradient in gradients.values()):
            raise Failure("backward reaches no parameter; remove no_grad or detach")
        self.unused = [name for name, gradient in gradients.items() if gradient is None]
        results = {f"grad.{name}": gradient for name, gradient in gradients.items() if gradient is not None}
        self.write("training", batch, detail, outputs, results, {"steps": [[batch]], **dict(more)})

    def check_rows(self, outputs, batch):
        for name, each in self.rows.items():
            if each and name in outputs and (not outputs[name].dim() or outputs[name].shape[0] != each * batch):
                raise Failure(f"the output `{name}` of {samples(batch)} has the shape {shape(outputs[name].shape)}")

    def first_names(self):
        """Returns the first name in the state_dict of each tensor, by its id."""
        names = {}
        for name, tensor in tensors_in(self.model).items():
            names.setdefault(id(tensor), name)
        return names

    def gradients(self):
        """Returns the gradients by the first name of each parameter in the state_dict."""
        names = self.first_names()
        trained = ((name, tensor) for name, tensor in self.state.parameters.items() if tensor.requires_grad)
        return {names.get(id(tensor), name): tensor.grad for name, tensor in trained}

    def loss(self, outputs, batch):
        """Returns the sum of the outputs times random numbers: any loss has such derivatives."""
        total = torch.zeros(())
        for name, each in self.rows.items():
            value = outputs[name]
            if not value.is_floating_point():
                continue
            if name not in self.cotangents:
                size = (MOST * each, *value.shape[1:]) if each else ()
                generator = torch.Generator().manual_seed(sum(map(ord, name)))
                self.cotangents[name] = torch.randn(size, generator=generator)
            if value.requires_grad:
                cotangent = self.cotangents[name][: each * batch] if each else self.cotangents[name] * batch
                total = total + (value.float() * cotangent).sum()
        return total

    def evaluate(self, batch, detail="", more=()):
        with torch.no_grad():
            outputs = self.checks.forward(batch)
            self.check_rows(outputs, batch)
        self.state.restore()
        self.write("evaluation", batch, detail, outputs, {}, {"evaluate": [batch], **dict(more)})

    def write(self, mode, batch, detail, outputs, results, case):
        """Writes results and the present buffers, which are then as before."""
        name = f"{mode}, {samples(batch)}{detail}"
        file = name.replace(", ", "-").replace(" ", "-") + ".safetensors"
        # Scalars are listed by parts of a step.
        found = {f"output.{name}": value.detach().reshape(1) if value.dim() == 0 else value.detach() for name, value in outputs.items()}
        found.update(results)
        found.update({f"buffer.{name}": value for name, value in self.buffers().items()})
        save_tensors(self.path(file), {f"0.{name}": value for name, value in found.items()})
        self.state.restore()
        self.cases.append({"name": name, "batch": batch, "expected": file, **case})

    def facts(self):
        """Returns what a verdict needs."""
        lost = f"torch.no_grad or torch.enable_grad inside torch.autocast, which an export may lose: {self.lost[0]}; use detach() instead" if self.lost else None
        return {"cases": self.cases, "batches": self.batches, "left_out": self.left_out, "refused": self.refused, "lost": lost}

    def buffers(self):
        """Returns the buffers that a file has, each by its first name."""
        first = {}
        tensors = {**tensors_in(self.model), **{name: self.state.tensors[name] for name in self.written}}
        for name, tensor in tensors.items():
            first.setdefault((tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) if tensor.numel() else name, name)
        names = set(first.values())
        return {name: value for name, value in self.state.buffers().items() if name in names}

    def describe(self, file, libraries):
        """Writes what the trainer must compare."""
        tolerance = TOLERANCE if torch.__version__.startswith(TRAINERS_TORCH) else OTHER_TOLERANCE
        cases = [{key: value for key, value in case.items() if key != "batch"} for case in self.cases]
        description = {"file": os.path.abspath(file), "libraries": [os.path.abspath(library) for library in libraries],
                       "inputs": "inputs.safetensors", "values": "filled.safetensors" if self.filled else None,
                       "tolerance": tolerance, "cases": cases}
        with open(self.path("check.json"), "w") as out:
            json.dump(description, out)


@contextlib.contextmanager
def noting_lost_modes(modules, places):
    """Notes where forward changes the gradient mode inside of autocast, also of a disabled one: exports may lose it."""
    classes = torch.autocast, torch.no_grad, torch.enable_grad, torch.inference_mode
    enter, exit = {kind: kind.__enter__ for kind in classes}, torch.autocast.__exit__
    regions = []

    def enter_region(self):
        regions.append(self)
        return enter[torch.autocast](self)

    def exit_region(self, *raised):
        regions.pop()
        return exit(self, *raised)

    def entering(kind):
        def enter_mode(self):
            if regions:
                places.append(str(modules.here(sys._getframe(1))))
            return enter[kind](self)

        return enter_mode

    # This one acts when it is created.
    setting, set_mode = torch.set_grad_enabled, torch.set_grad_enabled.__init__

    def setting_mode(self, *given, **named):
        if regions:
            places.append(str(modules.here(sys._getframe(1))))
        set_mode(self, *given, **named)

    torch.autocast.__enter__, torch.autocast.__exit__ = enter_region, exit_region
    setting.__init__ = setting_mode
    for kind in classes[1:]:
        kind.__enter__ = entering(kind)
    try:
        yield
    finally:
        setting.__init__ = set_mode
        for kind in classes:
            kind.__enter__ = enter[kind]
        torch.autocast.__exit__ = exit


class Saved:
    """Counts the bytes that forward keeps for backward, each storage once. Such a forward cannot be differentiated: with hooks,
    autograd does not notice that a saved tensor was changed in place."""

    def __enter__(self):
        self.storages = {}
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.note, lambda tensor: tensor)
        self.hooks.__enter__()
        return self

    def note(self, tensor):
        storage = tensor.untyped_storage()
        self.storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    def __exit__(self, *raised):
        self.hooks.__exit__(*raised)
        self.bytes = sum(self.storages.values())


def free_bytes():
    """Returns the memory that this process may still take: the machine's, or its control group's."""
    with open("/proc/meminfo") as file:
        found = re.search(r"MemAvailable:\s+(\d+) kB", file.read())
    free = [int(found.group(1)) * 1024] if found else []
    with contextlib.suppress(OSError, ValueError):
        limit, used = (int(open(f"/sys/fs/cgroup/memory.{name}").read()) for name in ("max", "current"))
        free.append(limit - used)
    return min(free, default=0)


STORED = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
          "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"}


def save_tensors(path, tensors):
    """Writes a safetensors file, without its package. Tensors of other dtypes are left out."""
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items() if dtype_of(tensor) in STORED}
    header, end = {}, 0
    # The format needs wide dtypes first, to align all.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": STORED[dtype_of(tensor)], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            if tensor.numel():
                file.write((ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr()))


def ask_trainer(worker, folder):
    """Has the trainer run the cases. Returns its answers by name."""
    job = json.dumps({"job": "check", "folders": [folder]})
    command = [worker, "check", "--job", job]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=lambda: die_with_parent(signal.SIGKILL))
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise Failure(
            f"the trainer was killed by {name} while it checked the program; if this was SIGKILL, the memory may be too "
            "small: use a larger machine, or compare a smaller model by --check-with"
        )
    said = done.stderr.strip().splitlines()
    if done.returncode:
        panicked = [line for line in said if "panicked at" in line]
        why = (panicked or said or [f"exit code {done.returncode}"])[-1].removeprefix("error: ")
        raise Failure(f"the trainer cannot check the program: {why}")
    answer = json.loads(done.stdout)
    if answer["error"]:
        raise Failure(f"the trainer cannot check the program: {answer['error']}")
    return {case["name"]: case for case in answer["cases"]}


class Verdict:
    """The results of the comparison: the smallest batches, and the largest difference."""

    def __init__(self, facts, answers):
        self.batches, self.left_out = facts["batches"], facts["left_out"]
        self.smallest, self.why, self.largest = {"train": 1, "evaluate": 1}, {}, 0.0
        self.by_micro_batch = []
        for mode, key in (("training", "train"), ("evaluation", "evaluate")):
            if mode in facts["refused"]:
                self.refuse_one(key, facts["refused"][mode])
            for case in (case for case in facts["cases"] if case["name"].startswith(mode)):
                answer = answers[case["name"]]
                self.by_micro_batch = self.by_micro_batch or answer["by_micro_batch"]
                if not answer["error"]:
                    self.largest = max(self.largest, answer["largest"])
                elif case["batch"] == 1:
                    self.refuse_one(key, answer["error"])
                elif "differs by" in answer["error"]:
                    raise differs(answer["of"], case["name"] + (f": by {answer['largest']:.1e} of its size" if answer["largest"] < 1e300 else ""), facts["lost"])
                elif refused := re.match(r".+?\.(partial|pt2): (.*)", answer["error"], re.DOTALL):
                    # The trainer's reason begins with the name that the file has during the check.
                    raise Failure(refused.group(2))
                else:
                    # A gradient that only one of both computes.
                    cause = f": {facts['lost'] or f'{LOST}; {LOST_REMEDY}'}" if "computes no" in answer["error"] else ""
                    raise Failure(f"the exported program is not the model ({case['name']}): {answer['error']}{cause}")

    def refuse_one(self, key, why):
        self.smallest[key], self.why[key] = 2, why
        if key == "train":
            self.batches = [batch for batch in self.batches if batch > 1]

    def notes(self, request):
        """Returns what the file says of the check."""
        checked = {"batches": self.batches, "largest": self.largest, "with": request["check_with"]}
        return {"smallest": self.smallest, "checked": checked}

    def warnings(self):
        words = {"train": "micro-batches", "evaluate": "batches of an evaluation"}
        # An order of samples has another warning.
        draws = [draw for draw in self.by_micro_batch if not draw.startswith(("randperm", "randint"))]
        more = f" and {len(draws) - 3} more" if len(draws) > 3 else ""
        named = f"results depend on the micro-batch: {', '.join(draws[:3])}{more} cannot draw random numbers by sample"
        attention = any(draw.startswith("scaled_dot_product_attention") for draw in draws)
        remedy = "; models of transformers can with --arg attn_implementation=eager" if attention else ""
        return ([named + remedy] if draws else []) + [f"{words[key]} need at least 2 samples, because a single one is refused ({why})" for key, why in self.why.items()]

    def lines(self, changed):
        largest = f"largest difference {self.largest:.1e} of a tensor's size" if self.largest else "equal bit by bit"
        line = f"with PyTorch, at batches of {', '.join(map(str, self.batches))}: {largest}"
        if self.left_out:
            line += f"; not {', '.join(map(str, self.left_out))}, for lack of memory or time"
        lines = [f"  {'checked':<12} {line}"]
        if changed:
            given = ", ".join(f"{key}={value}" for key, value in changed.items())
            lines.append(f"  {'':<12} with {given}, not at full size")
        return lines
