"""dtrain from Python: `launch` starts a training, `read` returns its metrics. `python -m dtrain` is the command `dtrain`."""

import json
import os
import subprocess
from importlib import metadata

__all__ = ["command", "launch", "read"]
__version__ = metadata.version("dtrain")


def command():
    """Return the path of the command `dtrain` that belongs to this package."""
    files = metadata.files("dtrain") or []
    scripts = [os.path.realpath(file.locate()) for file in files if file.parts[-2:] == ("bin", "dtrain")]
    if not scripts:
        raise FileNotFoundError("the package dtrain has no command; install it again by `pip install --force-reinstall dtrain`")
    return scripts[0]


def launch(recipe, nproc=None, set=None, **flags):
    """Train by the recipe, a path or a built-in name, and return when it ends. `set` maps keys such as "train.epochs" to values;
    further flags of `dtrain launch` are named with underscores. A failure raises subprocess.CalledProcessError."""
    sets = {key: json.dumps(value) if isinstance(value, (bool, list)) else str(value) for key, value in (set or {}).items()}
    given = {"nproc": nproc, **flags}
    words = [word for name, value in given.items() for word in _flag(name.replace("_", "-"), value)]
    words += [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    subprocess.run([command(), "launch", *words, os.fspath(recipe)], check=True)


def _flag(name, value):
    return [] if value is None or value is False else [f"--{name}"] if value is True else [f"--{name}={os.fspath(value) if isinstance(value, os.PathLike) else value}"]


def read(run):
    """Return the metrics of a run directory as lists: {"train": {"step": [...], "loss": [...]}, "eval": {...}}. A value that a line
    lacks is None."""
    lines = {}
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
        for line in filter(str.strip, file):
            value = json.loads(line)
            kind = "train" if "step" in value else next(iter(value), "train")
            lines.setdefault(kind, []).append(value if kind == "train" else value[kind])
    return {kind: _columns([row for row in rows if isinstance(row, dict)]) for kind, rows in lines.items()}


def _columns(rows):
    names = {name: None for row in rows for name, value in row.items() if not isinstance(value, (dict, list))}
    return {name: [row.get(name) for row in rows] for name in names}
