"""Writes the weights of a run without its head: python headless.py RUN FILE."""

import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

weights = load_file(Path(sys.argv[1], "checkpoints", "latest", "model.safetensors"))
save_file({name: tensor for name, tensor in weights.items() if not name.startswith("head.")}, sys.argv[2])
