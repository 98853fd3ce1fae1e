"""Writes torchvision's networks as TorchScript files.

    python script_models.py FOLDER NAME...

`cargo xtask memory accuracy --python` uses networks that dtrain lacks.
"""

import pathlib
import sys

import torch
import torchvision


def main():
    folder = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:]:
        net = torchvision.models.get_model(name, weights=None, num_classes=10)
        torch.jit.script(net.train()).save(folder / f"{name}.pt")


if __name__ == "__main__":
    main()
