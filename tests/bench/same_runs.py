"""Whether two builds of dtrain train alike, bit by bit: short runs of four recipes on 1 and 2 ranks.

    python3 tests/bench/same_runs.py record FOLDER OUT [--data DATA]   runs the `dtrain` of FOLDER, and writes OUT/result.json
    python3 tests/bench/same_runs.py compare OUT OTHER                 losses, gradient norms, rates, and every tensor of the checkpoints

The recipes: demo, camvid, shakespeare, and one of three stages with a moving average and a sharded optimizer, of which the last freezes
parameters whose average goes on. DATA holds the folders camvid and shakespeare. Exit code 1: something differs.
"""

import argparse
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
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
    """Name and arguments of every run."""
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
    """What each line of metrics.jsonl says of the training, with all digits."""
    found = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(line)
        if "loss" in line:
            found.append([repr(line[key]) for key in ("step", "loss", "grad_norm", "lr")])
        elif "eval" in line:
            found.append(["eval", repr(line["eval"]["loss"])])
    return found


def tensors(path):
    """The digest of every tensor of a safetensors file."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    base = 8 + length
    header = json.loads(content[8:base])
    header.pop("__metadata__", None)
    digest = lambda begin, end: hashlib.sha256(content[base + begin : base + end]).hexdigest()
    return {name: digest(*entry["data_offsets"]) for name, entry in header.items()}


def record(folder, out, data):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    runs = {}
    for name, arguments in cases(out, data):
        for ranks in (1, 2):
            run = out / f"{name}-{ranks}"
            command = [folder / "dtrain", "launch", "--nproc", str(ranks), "--run-dir", run, *arguments]
            subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, stderr=subprocess.DEVNULL)
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
        print(f"{name}: {len(mine['steps'])} lines {'equal' if same else 'DIFFER'}, {len(differing)} of {count} tensors differ {differing[:3]}")
        alike &= same and not differing and count > 0
    return 0 if alike else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("record")
    runs.add_argument("folder", type=Path)
    runs.add_argument("out", type=Path)
    runs.add_argument("--data", type=Path, default=Path("data"))
    both = commands.add_parser("compare")
    both.add_argument("out", type=Path)
    both.add_argument("other", type=Path)
    asked = parser.parse_args()
    if asked.command == "record":
        return record(asked.folder.resolve(), asked.out.resolve(), asked.data.resolve())
    return compare(asked.out, asked.other)


if __name__ == "__main__":
    sys.exit(main())
