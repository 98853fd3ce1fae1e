#!/usr/bin/env python3
"""Trains recipes in several cuts, and compares the losses of all steps with those of one rank that takes each step at once.

    python cuts.py --dtrain target/release/dtrain vit.toml gpt2.toml

A recipe states `[log] every_steps = 1`.
"""

import argparse
import itertools
import json
import pathlib
import subprocess
import tempfile
import tomllib


def losses(dtrain, recipe, run, ranks, micro_batch):
    command = [dtrain, "launch", recipe, "--nproc", ranks, "--run-dir", run, "--set", f"memory.micro_batch={micro_batch}"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "lr" in line]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtrain", required=True)
    parser.add_argument("recipes", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    for recipe in args.recipes:
        batch = tomllib.loads(recipe.read_text())["train"]["effective_batch"]
        with tempfile.TemporaryDirectory() as folder:
            runs = (pathlib.Path(folder) / str(number) for number in itertools.count())
            whole = losses(args.dtrain, recipe, next(runs), 1, batch)
            print(f"{recipe}: {len(whole)} steps, loss {whole[0]:.4f} to {whole[-1]:.4f}")
            for ranks, micro_batch in itertools.product((1, 2, 3), (1, 4, 16)):
                found = losses(args.dtrain, recipe, next(runs), ranks, micro_batch)
                largest = max(abs(a / b - 1) for a, b in zip(found, whole, strict=True))
                print(f"  {ranks} ranks, micro-batches of {micro_batch}: largest relative difference {largest:.1e}", flush=True)


if __name__ == "__main__":
    main()
