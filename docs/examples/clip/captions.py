"""Writes a table of images with captions: python captions.py CIFAR100 captions.csv. The table is beside the folder or above it."""

import csv
import sys
from pathlib import Path

root, table = Path(sys.argv[1]), Path(sys.argv[2])
with open(table, "w", newline="") as file:
    lines = csv.writer(file)
    lines.writerow(("split", "image", "label", "caption"))
    for path in sorted(root.glob("*/*/*.png")):
        split, name = path.parts[-3:-1]
        lines.writerow((split, path.relative_to(table.parent), name, f"a photo of a {name.replace('_', ' ')}"))
