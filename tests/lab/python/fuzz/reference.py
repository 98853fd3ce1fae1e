"""The results of eager PyTorch that `dtrain-worker --job check` compares with, and the files of a check."""

import json
import os

import torch

from .grammar import ROWS

LR = 0.1
# Relative to the norm of a tensor. The reference has dtrain's order of all sums, so that nearly all values are equal bit by bit.
TOLERANCE = 1e-5
# A weight that is used several times is cast once in eager PyTorch, and its gradients are added in bfloat16; recomputed parts cast it each.
TOLERANCE_SHARED = 3e-2
# Why a case of a module is left out.
NOT_FINITE = "a gradient is not finite"
# An evaluation on this path is not in bfloat16; an export has the operations of a training.
torch.backends.mha.set_fastpath_enabled(False)

CASES = [
    {"name": "training, 3", "steps": [[3]]},
    {"name": "training, 2", "steps": [[2], [2]]},
    {"name": "training, 1", "steps": [[1], [1]]},
    {"name": "training, 12", "steps": [[12]]},
    {"name": "training, 5", "steps": [[5], [4]]},
    {"name": "training, 1 + 2", "steps": [[1, 2], [1, 2]]},
    {"name": "training, 2 + 2, 1 + 3", "steps": [[2, 2], [1, 3]]},
    {"name": "training, 4 + 2 + 4", "steps": [[4, 2, 4], [3, 3]]},
    {"name": "training, 3, channels-last", "steps": [[3], [3]], "set": ["model.memory_format=channels-last"]},
    {"name": "training, 2 + 3, recomputed", "steps": [[2, 3], [5]], "set": ["memory.recompute=on"]},
    {"name": "training, 4, bf16", "steps": [[4], [2]], "set": ["precision.amp=bf16"]},
    {"name": "training, 4, bf16, recomputed, channels-last", "steps": [[4], [4]], "tolerance": TOLERANCE_SHARED,
     "set": ["precision.amp=bf16", "memory.recompute=on", "model.memory_format=channels-last"]},
    {"name": "evaluation, 1", "evaluate": [1]},
    {"name": "evaluation, 2", "evaluate": [2]},
    {"name": "evaluation, 3", "evaluate": [3]},
    {"name": "evaluation, 12, bf16", "evaluate": [12], "set": ["precision.amp=bf16"]},
    {"name": "training, 3, evaluation, 3", "steps": [[3]], "evaluate": [3]},
]


class Eager:
    """A module of PyTorch, trained part by part as dtrain does."""

    def __init__(self, make, named_outputs, case, cotangents):
        self.model, self.given = make()
        self.named_outputs, self.cotangents = named_outputs, cotangents
        settings = case["set"]
        self.bf16 = "precision.amp=bf16" in settings
        if "model.memory_format=channels-last" in settings:
            for parameter in self.model.parameters():
                if parameter.dim() == 4:
                    parameter.data = parameter.data.to(memory_format=torch.channels_last)
        self.buffers = dict(self.model.named_buffers())

    def forward(self, first, count):
        torch.manual_seed(1000 + first)
        given = {name: value[first : first + count].clone() for name, value in self.given.items()}
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            return self.named_outputs(self.model(**given), self.model)

    def loss(self, outputs, first, count):
        total = torch.zeros(())
        for name, output in outputs.items():
            if not output.is_floating_point() or not output.requires_grad:
                continue
            cotangent = self.cotangents[name]
            if output.dim() == 0:
                total = total + output.float() * cotangent * count
            else:
                rows = cotangent.shape[0] // ROWS
                total = total + (output.float() * cotangent[rows * first : rows * (first + count)]).sum()
        return total

    def saved(self):
        return {name: value.detach().clone() for name, value in self.model.named_buffers()}

    def restore(self, saved):
        """Also puts a tensor back in whose place forward has put another."""
        for name, tensor in self.buffers.items():
            owner, _, key = name.rpartition(".")
            self.model.get_submodule(owner)._buffers[key] = tensor
            # Not if nothing wrote it: a buffer whose elements share memory cannot be written.
            if not torch.equal(tensor, saved[name]):
                tensor.detach().copy_(saved[name])

    def step(self, parts):
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        before, total, first, outputs = self.saved(), sum(parts), 0, []
        change, last = {}, before
        for count in parts:
            self.restore(before)
            made = self.forward(first, count)
            # Dividing before backward has the rounding of dtrain.
            (self.loss(made, first, count) * (1 / total)).backward()
            outputs.append({name: value.detach() for name, value in made.items()})
            last = self.saved()
            for name, value in last.items():
                if value.is_floating_point() and not torch.equal(value, before[name]):
                    moved = (value.double() - before[name].double()) * (count / total)
                    change[name] = change.get(name, 0) + moved
            first += count
        joined = {name: (before[name].double() + value).to(before[name].dtype) for name, value in change.items()}
        after = {name: joined.get(name, before[name] if value.is_floating_point() else value) for name, value in last.items()}
        # A step of one part keeps the bits that forward wrote.
        self.restore(last if len(parts) == 1 else after)
        found = self.found(outputs)
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                found[f"grad.{name}"] = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                found[f"grad.{name}"] = found[f"grad.{name}"].clone()
                # dtrain skips such a step.
                assert parameter.grad.isfinite().all(), NOT_FINITE
                parameter.data.add_(found[f"grad.{name}"], alpha=-LR)
        return found

    def evaluate(self, parts):
        self.model.eval()
        before, first, outputs = self.saved(), 0, []
        for count in parts:
            self.restore(before)
            with torch.no_grad():
                outputs.append({name: value.detach() for name, value in self.forward(first, count).items()})
            first += count
        self.restore(before)
        return self.found(outputs)

    def found(self, outputs):
        join = lambda parts: torch.stack(parts) if parts[0].dim() == 0 else torch.cat(parts)
        found = {f"output.{name}": join([part[name] for part in outputs]) for name in outputs[0]}
        # The buffers of the file, by their first names. The others are seen by what reads them in the next step.
        stored, seen = self.model.state_dict(), set()
        for name, value in self.model.named_buffers():
            memory = value.data_ptr(), value.shape, value.dtype
            if name in stored and memory not in seen:
                found[f"buffer.{name}"] = value.detach().clone()
            seen.add(memory)
        return found


def takes_one(make, mode):
    """Returns whether PyTorch runs one sample in a mode."""
    eager = Eager(make, lambda outputs, model: outputs, {"set": []}, {})
    eager.model.train(mode == "train")
    try:
        eager.forward(0, 1)
    except (RuntimeError, ValueError, IndexError):
        return False
    return True


def trains(make):
    """Returns whether PyTorch runs forward and backward of the most samples."""
    model, given = make()
    try:
        tensors = torch.utils._pytree.tree_leaves(model(**given))
        sum(tensor.sum() for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.requires_grad).backward()
    except Exception:
        return False
    return True


def cotangents_of(make, named_outputs):
    torch.manual_seed(0)
    eager = Eager(make, named_outputs, {"set": []}, {})
    eager.model.train()
    outputs = eager.forward(0, ROWS)
    torch.manual_seed(77)
    return {name: torch.randn(value.shape) for name, value in outputs.items() if value.is_floating_point()}, eager.given


def cases_of(amp, several):
    """Returns the cases of a module.

    Without `amp`, those in bfloat16 are left out. The modes of `several` take two samples or more.
    """
    cases = []
    for case in CASES:
        in_bf16 = "precision.amp=bf16" in case.get("set", [])
        is_single = "train" in several and any(1 in parts for parts in case.get("steps", [])) or "evaluate" in several and 1 in case.get("evaluate", [])
        if is_single or in_bf16 and not amp:
            continue
        cases.append({"set": [], "steps": [], "evaluate": [], "lr": LR, **case})
    return cases


def results(eager, case):
    """Returns the results of all steps by name."""
    tensors, steps = {}, case["steps"]
    for step, parts in enumerate(steps):
        tensors.update((f"{step}.{name}", value) for name, value in eager.step(parts).items())
    if case["evaluate"]:
        tensors.update((f"{len(steps)}.{name}", value) for name, value in eager.evaluate(case["evaluate"]).items())
    return tensors


def write_check(folder, make, space, cases):
    """Writes the check of a module. Returns the cases that eager PyTorch cannot run, with the reasons."""
    named_outputs, save = space["named_outputs"], space["save_tensors"]
    cotangents, given = cotangents_of(make, named_outputs)
    values = {**given, **{f"cotangent.train.{name}": value for name, value in cotangents.items()}}
    save(os.path.join(folder, "inputs.safetensors"), values)
    run, left_out = [], {}
    for index, case in enumerate(cases):
        try:
            tensors = results(Eager(make, named_outputs, case, cotangents), case)
        except (RuntimeError, ValueError, IndexError, AssertionError) as error:
            left_out[case["name"]] = " ".join(str(error).split())[:300]
            continue
        file = f"case-{index}.safetensors"
        save(os.path.join(folder, file), tensors)
        run.append({**case, "expected": file})
    check = {"file": "model.pt2", "libraries": [], "tolerance": TOLERANCE, "inputs": "inputs.safetensors", "cases": run}
    with open(os.path.join(folder, "check.json"), "w") as file:
        json.dump(check, file, indent=1)
    return left_out
