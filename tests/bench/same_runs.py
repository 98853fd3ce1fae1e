"""Compares two builds of dtrain: results bit by bit, and speed.

    python3 tests/bench/same_runs.py record FOLDER OUT [--data DATA]
    python3 tests/bench/same_runs.py compare OUT OTHER
    python3 tests/bench/same_runs.py time OLD NEW [--data DATA] [--rounds N]

`record` runs the `dtrain` in FOLDER and writes OUT/result.json. Its recipes: demo, camvid, shakespeare, and one of
three stages with a moving average and a sharded optimizer, whose last stage freezes parameters while their average
still moves. DATA has the folders camvid, shakespeare and cifar100.

`compare` compares losses, gradient norms, rates and every tensor of the checkpoints. Exit code 1: a difference.

`time` runs every case with both builds in every round, and prints medians of the rounds and their ratio. Trainings
have two ranks of one thread. A step's time is the median of a run's steps without the first five.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STAGES = """
task = "classify"
[data]
kind = "generated"
image_size = 32
workers = 1
[model]
name = "resnet18"
[train]
effective_batch = 12
seed = 3
[optim]
name = "adamw"
lr = 1e-3
clip = 1.0
[ema]
decay = 0.99
[memory]
micro_batch = 4
shard_optimizer = true
[checkpoint]
every = "1000 steps"
[[stage]]
name = "head"
steps = 4
freeze = ["conv1.*", "layer1.*"]
[[stage]]
name = "full"
steps = 6
unfreeze = [{ at = 0.0, match = ["layer1.*"] }, { at = 0.5, match = ["*"] }]
[[stage]]
name = "tail"
steps = 3
freeze = ["fc.*", "layer4.*"]
"""


def cases(out, data):
    """Yields name and arguments of every run."""
    stages = out / "stages.toml"
    stages.write_text(STAGES)

    def embedded(name, steps, warmup, root=None):
        sets = [f"train.steps={steps}", f'optim.schedule.warmup="{warmup} steps"', "data.workers=1", "memory.micro_batch=4"]
        sets += [f'data.root="{root}"'] if root else []
        return name, [name] + [word for setting in sets for word in ("--set", setting)]

    yield embedded("demo", 8, 2)
    yield embedded("camvid", 2, 1, data / "camvid")
    yield embedded("shakespeare", 5, 2, data / "shakespeare")
    yield "stages", [str(stages)]


def steps(run):
    """Returns loss, gradient norm and rate of each step and the loss of each evaluation, with all digits."""
    found = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(line)
        if "loss" in line:
            found.append([repr(line[key]) for key in ("step", "loss", "grad_norm", "lr")])
        elif "eval" in line:
            found.append(["eval", repr(line["eval"]["loss"])])
    return found


def tensors(path):
    """Returns the digest of every tensor of a safetensors file."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    base = 8 + length
    header = json.loads(content[8:base])
    header.pop("__metadata__", None)
    digest = lambda begin, end: hashlib.sha256(content[base + begin : base + end]).hexdigest()
    return {name: digest(*entry["data_offsets"]) for name, entry in header.items()}


def environment():
    """Returns an environment with one thread and without DTRAIN_WORKER: dtrain starts its own worker."""
    return {name: value for name, value in os.environ.items() if name != "DTRAIN_WORKER"} | {"OMP_NUM_THREADS": "1"}


def record(folder, out, data):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    runs = {}
    for name, arguments in cases(out, data):
        for ranks in (1, 2):
            run = out / f"{name}-{ranks}"
            command = [folder / "dtrain", "launch", "--nproc", str(ranks), "--run-dir", run, *arguments]
            subprocess.run(command, env=environment(), check=True, stderr=subprocess.DEVNULL)
            files = sorted((run / "checkpoints" / "latest").resolve().glob("*.safetensors"))
            runs[run.name] = {"steps": steps(run), "files": {file.name: tensors(file) for file in files}}
            print(f"{run.name}: {len(runs[run.name]['steps'])} lines, {sum(map(len, runs[run.name]['files'].values()))} tensors")
            shutil.rmtree(run)
    (out / "result.json").write_text(json.dumps(runs, indent=1))
    return 0


def compare(out, other):
    one, two = (json.loads((folder / "result.json").read_text()) for folder in (out, other))
    alike = one.keys() == two.keys()
    for name in one.keys() & two.keys():
        mine, theirs = one[name], two[name]
        same = mine["steps"] == theirs["steps"]
        differing = [
            f"{file} {tensor}"
            for file in mine["files"].keys() | theirs["files"].keys()
            for tensor in mine["files"].get(file, {}).keys() | theirs["files"].get(file, {}).keys()
            if mine["files"].get(file, {}).get(tensor) != theirs["files"].get(file, {}).get(tensor)
        ]
        count = sum(map(len, mine["files"].values()))
        print(f"{name}: {len(mine['steps'])} lines {'equal' if same else 'different'}, {len(differing)} of {count} tensors differ {differing[:3]}")
        alike &= same and not differing and count > 0
    return 0 if alike else 1


def text_of(folder, alphabet, length):
    """Writes a text of random characters into a new folder; returns the folder."""
    folder.mkdir()
    (folder / "text.txt").write_text("".join(random.Random(1).choices([chr(0x4E00 + i) for i in range(alphabet)], k=length)))
    return folder


def timed_cases(work, data):
    """Yields name and arguments of every case, and whether it is a training."""
    few, many = text_of(work / "few", 65, 200_000), text_of(work / "many", 16_000, 200_000)
    bench = Path(__file__).parent

    def training(recipe, steps, **settings):
        settings |= {"train.steps": steps}
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
        return ["launch", "--nproc", "2", str(recipe), *sets]

    def gpt(root, windows, context, steps):
        keys = {"data.root": str(root), "train.effective_batch": 2 * windows, "model.context": context}
        return training(bench / "gpt.toml", steps, **keys)

    yield "resnet18", training(bench / "resnet18.toml", 20), True
    yield "gpt 4x256", gpt(few, 4, 256, 12), True
    yield "gpt 1x256", gpt(few, 1, 256, 25), True
    yield "gpt 1x64", gpt(few, 1, 64, 40), True
    yield "gpt of 16,000 characters", gpt(many, 2, 256, 10), True
    yield "gpt 1x256 in bf16", [*gpt(few, 1, 256, 12), "--set", 'precision.amp="bf16"'], True
    yield "cifar100", training("cifar100", 12, **{"data.root": str(data / "cifar100"), "optim.schedule.warmup": "2 steps"}), True
    yield "launch of `true`", ["launch", "--nproc", "2", "--", "true"], False
    yield "plan demo", ["plan", "demo"], False


def timed(folder, arguments, trains, work):
    """Returns the command's ms, and of a training also the step time in ms and the ranks' peak in MiB."""
    run = work / "run"
    shutil.rmtree(run, ignore_errors=True)
    places = ["--run-dir", run] if trains else []
    command = [folder / "dtrain", arguments[0], *places, *arguments[1:]]
    begun = time.perf_counter()
    subprocess.run(command, env=environment(), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    figures = {"whole, ms": 1e3 * (time.perf_counter() - begun)}
    if trains:
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        taken = [line["step_ms"] for line in lines if "loss" in line]
        peaks = json.loads((run / "result.json").read_text())["peak_memory_bytes"]
        figures["step, ms"] = statistics.median(taken[5:])
        figures["peak, MiB"] = max(peaks) / 2**20
    return figures


def compare_times(old, new, data, rounds):
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        print("| Case | Figure | Old | New | New / old | Ratios of the rounds |\n|---|---|---|---|---|---|")
        for name, arguments, trains in timed_cases(work, data):
            both = [], []
            for turn in range(rounds):
                # Each build goes first equally often.
                for which in (0, 1) if turn % 2 == 0 else (1, 0):
                    both[which].append(timed((old, new)[which], arguments, trains, work))
            for figure in both[0][0]:
                one, two = ([figures[figure] for figures in side] for side in both)
                ratios = [b / a for a, b in zip(one, two)]
                middle = statistics.median(one), statistics.median(two)
                spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
                print(f"| {name} | {figure} | {middle[0]:.1f} | {middle[1]:.1f} | {statistics.median(ratios):.3f} | {spread} |", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("record", help="run the recipes and record results")
    runs.add_argument("folder", type=Path)
    runs.add_argument("out", type=Path)
    runs.add_argument("--data", type=Path, default=Path("data"))
    both = commands.add_parser("compare", help="compare two recorded results")
    both.add_argument("out", type=Path)
    both.add_argument("other", type=Path)
    times = commands.add_parser("time", help="compare time and memory of two builds")
    times.add_argument("old", type=Path)
    times.add_argument("new", type=Path)
    times.add_argument("--data", type=Path, default=Path("data"))
    times.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if args.command == "time":
        return compare_times(args.old.resolve(), args.new.resolve(), args.data.resolve(), args.rounds)
    if args.command == "record":
        return record(args.folder.resolve(), args.out.resolve(), args.data.resolve())
    return compare(args.out, args.other)


if __name__ == "__main__":
    sys.exit(main())
