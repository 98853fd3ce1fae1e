"""dtrain from Python: `launch` starts a training, `read` returns its metrics. `python -m dtrain` is the command `dtrain`."""

import json
import os
import subprocess
from importlib import metadata
from pathlib import Path

__all__ = ["command", "launch", "read"]
__version__ = metadata.version("dtrain")


def command():
    """Return the path of the command `dtrain` that belongs to this package."""
    files = [Path(file.locate()) for file in metadata.files("dtrain") or [] if file.parts[-2:] == ("bin", "dtrain")]
    # `pip install --target` moves the command after it has noted its place.
    files.append(Path(__file__).parents[1] / "bin" / "dtrain")
    for file in files:
        if file.is_file():
            return os.path.realpath(file)
    raise FileNotFoundError("the package dtrain has no command; install its wheel again with `pip install --force-reinstall --no-deps WHEEL`")


def launch(recipe, nproc=None, set=None, **flags):
    """Train by the recipe, a path or a built-in name, and return when it ends. `set` maps keys such as "train.epochs" to values;
    further flags of `dtrain launch` are named with underscores. A failure raises subprocess.CalledProcessError. Ctrl-C stops the
    training, which writes a checkpoint, and raises KeyboardInterrupt when it has ended."""
    words = [word for name, value in {"nproc": nproc, **flags}.items() for word in _flag(name.replace("_", "-"), value)]
    words += [f"--set={key}={_toml(value)}" for key, value in (set or {}).items()]
    _run([command(), "launch", *words, os.fspath(recipe)])


def _run(words):
    # subprocess.run kills the launcher a quarter of a second after Ctrl-C. A terminal has sent the signal to the launcher too.
    process, interrupted = subprocess.Popen(words), None
    while True:
        try:
            code = process.wait()
            break
        except KeyboardInterrupt as error:
            interrupted = error
    if interrupted:
        raise interrupted
    if code:
        raise subprocess.CalledProcessError(code, words)


def _flag(name, value):
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{name}"]
    values = value if isinstance(value, (list, tuple)) else [value]
    return [f"--{name}={','.join(map(str, values))}"]


def _toml(value, within=False):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(item, True)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item, True) for item in value) + "]"
    if value is None:
        raise ValueError("a recipe has no value None; leave the key out")
    if isinstance(value, bool):
        return "true" if value else "false"
    # A text alone may stand without quotes, as on the command line.
    return json.dumps(value, ensure_ascii=False) if within and isinstance(value, (str, os.PathLike)) else str(value)


def read(run):
    """Return the metrics of a run directory as lists: {"train": {"step": [...], "loss": [...]}, "eval": {...}}, with further kinds
    such as "checkpoint". A value that a line lacks is None. The objects of a line, such as "memory", are left out."""
    lines = {"train": [], "eval": []}
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
        # A running training may have written a part of its last line.
        for line in (line for line in file if line.endswith("\n") and line.strip()):
            value = json.loads(line)
            kind = "train" if "step" in value else next(iter(value))
            lines.setdefault(kind, []).append(value if kind == "train" else value[kind])
    return {kind: _columns(rows) for kind, rows in lines.items()}


def _columns(rows):
    names = {name: None for row in rows for name, value in row.items() if not isinstance(value, (dict, list))}
    return {name: [row.get(name) for row in rows] for name in names}
