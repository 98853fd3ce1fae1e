"""The common beginning of the scripts: the argument, the required versions, and one thread."""

import argparse
import importlib
import sys
from pathlib import Path

import torch

VERSIONS = {"torch": "2.11.0", "torchvision": "0.26.0"}


def version(module):
    """Returns a package's version without its build suffix."""
    return importlib.import_module(module).__version__.split("+")[0]


def begin(description, *modules):
    """Reads the command line, creates and returns the output folder. Ends the script if torch or one of `modules`
    has another version than required."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the reference files")
    out = parser.parse_args().out
    for module in ("torch", *modules):
        found, wanted = version(module), VERSIONS[module]
        if found != wanted:
            sys.exit(f"{module} {found} found, {wanted} needed: install tests/parity/requirements.txt")
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    return out
