"""Writes positions.safetensors: position embeddings of other image sizes, resampled by timm. Needs requirements-names.txt."""

import argparse
import pathlib

import torch
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed

# The tokens before the grid, and the sides of the grids.
CASES = [(1, 4, 7), (0, 4, 6), (2, 6, 3), (5, 3, 4)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    tensors = {}
    torch.manual_seed(1)
    for prefix, old, new in CASES:
        tokens = torch.randn(1, prefix + old * old, 3)
        tensors[f"{prefix}.{old}.{new}.given"] = tokens
        tensors[f"{prefix}.{old}.{new}.resampled"] = resample_abs_pos_embed(tokens, [new, new], num_prefix_tokens=prefix).contiguous()
    save_file(tensors, parser.parse_args().out / "positions.safetensors")


main()
