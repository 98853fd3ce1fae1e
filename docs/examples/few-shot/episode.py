"""Draws a test episode with the predictions of an exported model: python episode.py WEIGHTS DATA PICTURE

The left column has the support image of each class; a frame is green for a right prediction and red for a wrong one.
"""

import random
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file

from model import small

WAYS, QUERIES, SIDE = 5, 15, 105
weights, data, out = sys.argv[1:]
random.seed(4)
classes = random.sample(sorted(Path(data, "test").iterdir()), WAYS)
paths = [random.sample(sorted(folder.iterdir()), 1 + QUERIES) for folder in classes]


def load(path):
    image = Image.open(path).convert("L").resize((28, 28), Image.Resampling.BILINEAR)
    return (torch.from_numpy(np.array(image))[None] / 255 - 0.92) / 0.22


model, _ = small()
model.load_state_dict(load_file(weights))
model.eval()
support = torch.stack([load(row[0]) for row in paths])
query = torch.stack([load(path) for row in paths for path in row[1:]])
with torch.no_grad():
    guesses = model.scores(*model.encode(support[None], query[None]))[0].argmax(1).view(WAYS, QUERIES)

cell = SIDE + 14
picture = Image.new("RGB", ((1 + QUERIES) * cell + 20, WAYS * cell), "white")
for row in range(WAYS):
    for column, path in enumerate(paths[row]):
        colour = "grey" if column == 0 else "green" if guesses[row, column - 1] == row else "red"
        tile = ImageOps.expand(Image.open(path).convert("RGB"), 4, colour)
        picture.paste(tile, (column * cell + (20 if column else 0), row * cell))
picture.resize((picture.width // 2, picture.height // 2), Image.Resampling.LANCZOS).quantize(32).save(out)
right = (guesses == torch.arange(WAYS)[:, None]).sum()
print(f"{right} of {WAYS * QUERIES} queries are right")
