"""Measures checkpoints of a training in PyTorch.

The counterpart of dtrain in `cargo xtask bench checkpoint`. Trains the GPT of checkpoint.toml in one process and
saves model and optimizer every --every steps:

    save         torch.save and fsync; the training waits
    async        torch.distributed.checkpoint.async_save, whose FileSystemWriter calls fsync too
    async-kept   the same, with the memory of its copy kept between calls

Loads the last checkpoint at the end. Writes one JSON object.
"""

import argparse
import json
import os
import pathlib
import shutil
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed._state_dict_utils import _copy_state_dict, _create_cpu_state_dict
from torch.distributed.checkpoint.staging import BlockingAsyncStager

import models

GPT = {"vocabulary": 65, "width": 1024, "depth": 7, "heads": 16}

# Batches created before the training and used in turn.
BATCHES = 4


def now_ms():
    return 1e3 * time.perf_counter()


def remove_but(folder, kept):
    """Keeps only the newest checkpoint, as dtrain does with checkpoint.keep = 1."""
    for other in folder.iterdir():
        if other != kept:
            shutil.rmtree(other)


class KeptStager(BlockingAsyncStager):
    """BlockingAsyncStager with cache_staged_state_dict, but without pinned memory, which needs a GPU."""

    def stage(self, state_dict):
        if self.state_dict_cache is None:
            self.state_dict_cache = _create_cpu_state_dict(state_dict)
        return _copy_state_dict(state_dict, self.state_dict_cache)


class Saver:
    """Saves by torch.save and fsync while the training waits."""

    def __init__(self, folder, model, optimizer):
        self.folder, self.model, self.optimizer = folder, model, optimizer
        self.done = []

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def wait(self):
        pass

    def save(self, step):
        begun = now_ms()
        folder = self.folder / f"step-{step}"
        folder.mkdir()
        with open(folder / "state.pt", "wb") as file:
            torch.save(self.state(), file)
            file.flush()
            os.fsync(file.fileno())
        ended = now_ms()
        remove_but(self.folder, folder)
        # torch.save blocks: the write and the wait take the same time.
        self.done.append({"step": step, "begun": begun, "returned": ended, "ended": ended, "write_ms": ended - begun})

    def load(self):
        path = self.folder / f"step-{self.done[-1]['step']}" / "state.pt"
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


class AsyncSaver(Saver):
    """Saves by async_save: copies while the training waits, then a thread writes. `stager` is reused."""

    def __init__(self, folder, model, optimizer, stager):
        super().__init__(folder, model, optimizer)
        self.stager, self.future = stager, None

    def wait(self):
        if self.future is not None:
            self.future.result()
            # The result can be ready before the callback has noted the end.
            while "ended" not in self.done[-1]:
                time.sleep(1e-4)
            self.future = None

    def save(self, step):
        begun = now_ms()
        folder = self.folder / f"step-{step}"
        self.future = dcp.async_save(self.state(), checkpoint_id=folder, async_stager=self.stager)
        returned = now_ms()
        note = {"step": step, "begun": begun, "returned": returned}
        self.done.append(note)

        def ended(_):
            end = now_ms()
            remove_but(self.folder, folder)
            note["write_ms"] = end - returned
            note["ended"] = end

        self.future.add_done_callback(ended)

    def load(self):
        state = self.state()
        dcp.load(state, checkpoint_id=self.folder / f"step-{self.done[-1]['step']}")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--way", choices=["save", "async", "async-kept"], required=True, help="how to save")
    parser.add_argument("--context", type=int, required=True, help="tokens per sample")
    parser.add_argument("--steps", type=int, required=True, help="optimizer steps")
    parser.add_argument("--every", type=int, required=True, help="steps between checkpoints")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="empty folder for the checkpoints")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON file of the results")
    args = parser.parse_args()

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(1)
    args.folder.mkdir(exist_ok=True)
    meet = (args.folder.parent / "meet").resolve()
    dist.init_process_group("gloo", init_method=meet.as_uri(), rank=0, world_size=1)
    model = models.Gpt(context=args.context, **GPT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    if args.way == "save":
        saver = Saver(args.folder, model, optimizer)
    else:
        saver = AsyncSaver(args.folder, model, optimizer, KeptStager() if args.way == "async-kept" else None)
    text = [torch.randint(GPT["vocabulary"], (1, args.context + 1)) for _ in range(BATCHES)]

    model.train()
    steps = []
    for step in range(1, args.steps + 1):
        begun = now_ms()
        window = text[step % BATCHES]
        loss = F.cross_entropy(model(window[:, :-1]).flatten(0, -2), window[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps.append((begun, now_ms()))
        if step % args.every == 0:
            # One checkpoint at a time, as dtrain does.
            saver.wait()
            saver.save(step)
    saver.wait()
    if not loss.item() == loss.item():
        raise RuntimeError("the loss is not finite")
    size = sum(file.stat().st_size for file in args.folder.rglob("*") if file.is_file())
    begun = now_ms()
    saver.load()
    load_ms = now_ms() - begun

    def beside(begun, ended):
        return any(begun < done["ended"] and ended > done["returned"] for done in saver.done)

    result = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": [{"step_ms": ended - begun, "beside": beside(begun, ended)} for begun, ended in steps],
        "checkpoints": [
            {
                "step": done["step"],
                "bytes": size,
                "blocked_ms": done["returned"] - done["begun"],
                "write_ms": done["write_ms"],
                "total_ms": done["ended"] - done["begun"],
            }
            for done in saver.done
        ],
        "load_ms": load_ms,
        "torch": torch.__version__,
    }
    args.out.write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
