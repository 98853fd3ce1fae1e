"""PyTorch's results of the model, with which the trainer's are compared."""

# Batch sizes that are always compared, and those that are compared while memory and time allow.
ALWAYS, MORE = (1, 2), (3, 4, 6, 8, 12)
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
        # Parameters that no output depends on.
        self.unused = []
        # Seconds of a training step for each of its samples, and the bytes that forward keeps for two and for each further one.
        self.seconds, self.saved = 0.0, (0, 0)
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
        for batch in reversed(ALWAYS):
            began = time.monotonic()
            with self.may_refuse_one("training", batch):
                self.train(batch)
                self.batches.append(batch)
            if batch == 2:
                self.seconds = (time.monotonic() - began) / 2
        for batch in MORE:
            if self.affords(batch) or len(self.batches) < 2:
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
        self.batches = [*ALWAYS, APART]
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
        own = self.named.inputs.own
        attributes = plain_values(self.model)
        with refusing_losses(self.checks.modules), noting_lost_modes(self.checks.modules, self.lost):
            if own not in (2, 3, EXAMPLES):
                self.forward(own)
            began = time.monotonic()
            with Saved() as saved:
                few = self.forward(2, own if own not in (2, EXAMPLES) else None)
            # Backward takes twice as long as forward.
            self.seconds, self.saved = 3 * (time.monotonic() - began) / 2, (saved.bytes, saved.bytes / 2)
            worked = own if own not in (3, EXAMPLES) else 2
            batch = MORE[0] if self.affords(MORE[0], sum(ALWAYS)) else 1
            try:
                self.learn_rows(few, batch, worked)
            except Failure:
                # A single sample may be refused.
                if batch > 1:
                    raise
                self.state.restore()
                self.learn_rows(few, MORE[0], worked)
        check_attributes(self.model, attributes)
        self.model.eval()
        attributes = plain_values(self.model)
        with torch.no_grad():
            check_evaluation(self.named, few, self.forward(2), 2)
        check_attributes(self.model, attributes)

    def learn_rows(self, few, batch, worked):
        """Compares the outputs of two samples with those of another batch."""
        with Saved() as saved:
            many = self.forward(batch, worked)
        self.rows, self.saved = {}, (self.saved[0], (saved.bytes - self.saved[0]) / (batch - 2))
        if few.keys() != many.keys():
            raise Failure(f"{forward_of(self.model)} returns {len(few)} outputs for {samples(2)}, and {len(many)} for {samples(batch)}; stack them")
        for name, value in many.items():
            other = few[name]
            same = value.dim() == other.dim() and value.shape[1:] == other.shape[1:]
            if value.dim() and same and value.shape[0] and value.shape[0] % batch == 0 and other.shape[0] * batch == value.shape[0] * 2:
                self.rows[name] = value.shape[0] // batch
            elif value.dim() == 0:
                self.rows[name] = 0
        main = main_output(many)
        # A model may compute its own loss, a single number.
        if not (main == "loss" and self.rows.get(main) == 0) and self.rows.get(main) != 1:
            raise Failure(
                f"the output `{main}` has no batch: its shape is {shape(few[main].shape)} for {samples(2)}, and "
                f"{shape(many[main].shape)} for {samples(batch)}; return one row per sample, or a loss by the name `loss`"
            )

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

    def affords(self, batch, before=0):
        """Predicts memory and time of a batch. `before` are samples of the steps that come first in any case."""
        two, each = self.saved
        saved = two + each * (batch - 2)
        weights = sum(tensor.numel() * tensor.element_size() for tensor in self.state.tensors.values())
        # The trainer takes as long as PyTorch again; an evaluation is counted as half a step.
        spent = 2 * (time.monotonic() - self.started) + 3 * self.seconds * (before + batch)
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
