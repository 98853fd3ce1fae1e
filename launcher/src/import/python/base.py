"""The Python part of `dtrain import`: makes a model of PyTorch into a file that dtrain trains.

The launcher joins the files of this folder into one script, in the order of its list. The only argument is the request, as JSON. Exit codes: 0, 2 after one message, 130.
"""

import collections
import contextlib
import ctypes
import difflib
import functools
import importlib
import importlib.util
import inspect
import io
import itertools
import json
import linecache
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
import warnings
import zipfile


# PyTorch, once it is imported.
torch = pytree = None


class Failure(Exception):
    """An error in one sentence for the user."""


def explain(error):
    """Returns the first line of an exception's message, without the names of internal classes."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    kind = type(error).__name__
    if kind in ("RuntimeError", "ValueError", "Failure", "UserError") and text:
        return text.rstrip(".")
    return f"{kind}: {text}".rstrip(": .")


@contextlib.contextmanager
def step(name):
    """Shows on standard error how long a step takes."""
    started = time.monotonic()
    ended = threading.Event()

    def said():
        return f"dtrain: {name}: {time.monotonic() - started:.0f} s"

    def show():
        is_terminal = sys.stderr.isatty()
        with contextlib.suppress(OSError, ValueError):
            while not ended.wait(1 if is_terminal else 10):
                print(f"\r\x1b[K{said()}" if is_terminal else f"{said()} so far", end="" if is_terminal else "\n", file=sys.stderr, flush=True)
            if is_terminal and time.monotonic() - started >= 1:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if time.monotonic() - started >= 1:
        print(said(), file=sys.stderr, flush=True)


@contextlib.contextmanager
def replaced(owner, name, value):
    """Gives an attribute another value for a while."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def quiet():
    """Keeps the notes of libraries off the terminal."""
    import logging

    logging.getLogger("torch").setLevel(logging.ERROR)
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")


def check_torch():
    """Imports torch of at least 2.6 into this script."""
    global torch, pytree
    try:
        import torch
    except ImportError as error:
        if getattr(error, "name", None) != "torch":
            raise Failure(f"PyTorch cannot be imported: {explain(error)}; repair the installation of torch")
        raise Failure(
            f"{sys.executable} has no PyTorch; install it with `{sys.executable} -m pip install torch`, "
            "or name a Python that has it in PYTHON_EXEC"
        )
    version = getattr(torch, "__version__", "0")
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < (2, 6):
        raise Failure(f"PyTorch {version} is too old: dtrain import needs 2.6 or newer; install a newer torch")
    from torch.utils import _pytree as pytree


# The operations that the libraries of the request have registered.
own_operations = set()


def load_libraries(files):
    def known():
        return {schema.name for schema in torch._C._jit_get_all_schemas()}

    before = known()
    for file in files:
        try:
            torch.ops.load_library(os.path.abspath(file))
        except OSError as error:
            raise Failure(f"--library {file} cannot be loaded: {explain(error.__cause__ or error)}; build and link it with this PyTorch") from error
    own_operations.update(known() - before)
    if files and not own_operations:
        raise Failure(f"--library {', '.join(files)} registers no operation; register them with TORCH_LIBRARY")


def need(package, pip=None):
    """Imports a package that a source needs."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = getattr(error, "name", None)
        if name and name.split(".")[0] == package:
            why = f"{sys.executable} has no package {package}"
        else:
            why = f"the package {package} cannot be imported: {explain(error)}"
        # Without it, pip may replace PyTorch by one that dtrain cannot load.
        kept = f"torch=={torch.__version__.split('+')[0]}"
        raise Failure(f"{why}; install it with `{sys.executable} -m pip install {pip or package} {kept}`")


def close(name, names, most=3):
    """Returns a suggestion of similar names, or an empty text."""
    names = list(names)
    similar = difflib.get_close_matches(name, names, most, 0.6)
    similar = similar or [known for known in names if name in known][:most]
    return f"; similar names: {', '.join(similar)}" if similar else ""
