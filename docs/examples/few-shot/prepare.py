"""Splits Omniglot by alphabet into class folders: python prepare.py OMNIGLOT OUT

OMNIGLOT has ALPHABET/CHARACTER/*.png. A class is a character in one of four rotations, as in the published lists.
"""

import sys
from pathlib import Path

from PIL import Image

SETS = {"val": ["Balinese"], "test": ["Early_Aramaic", "Tagalog"]}  # all other alphabets: train

source, out = Path(sys.argv[1]), Path(sys.argv[2])
for path in sorted(source.glob("*/*/*.png")):
    alphabet, character = path.parts[-3:-1]
    part = next((name for name, alphabets in SETS.items() if alphabet in alphabets), "train")
    image = Image.open(path)
    for degrees in (0, 90, 180, 270):
        folder = out / part / f"{alphabet}-{character}-{degrees:03}"
        folder.mkdir(parents=True, exist_ok=True)
        image.rotate(degrees).save(folder / path.name)
