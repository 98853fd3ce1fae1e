"""Questions about the street scenes of CamVid: python prepare.py data/camvid data/questions

Each question names a class and a quarter of the image, and its mask has the pixels of this class there. The answer adds
whether they are near the centre, by the rule of PRS-Med: the middle of their box is within a fifth of the width.
"""

import csv
import json
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = "sky building pole road pavement tree sign fence car pedestrian bicyclist".split()
QUARTERS = {"upper left": (0, 0), "upper right": (0, 1), "lower left": (1, 0), "lower right": (1, 1)}
LEAST = 0.01  # of the image


def place(mask):
    rows, columns = np.nonzero(mask)
    down, right = [(cells.min() + cells.max()) / 2 - side / 2 for cells, side in zip((rows, columns), mask.shape)]
    return "near the center" if np.hypot(down, right) < 0.2 * mask.shape[1] else "far from the center"


def questions(labels):
    height, width = labels.shape
    for quarter, (row, column) in QUARTERS.items():
        inside = np.zeros_like(labels, dtype=bool)
        inside[row * height // 2 : (row + 1) * height // 2, column * width // 2 : (column + 1) * width // 2] = True
        for number, name in enumerate(NAMES):
            mask = (labels == number) & inside
            if mask.mean() >= LEAST:
                yield name, quarter, mask


def tokenizer(texts, path):
    """Writes a tokenizer whose tokens are the words."""
    words = sorted({word for text in texts for word in text.replace("<image>", "").replace("?", " ?").replace(":", " :").split()})
    added = [dict(id=number, content=text, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
             for number, text in enumerate(("<pad>", "<image>", "</s>"))]
    vocabulary = {text: number for number, text in enumerate(["<pad>", "<image>", "</s>", "<unk>", *words])}
    model = dict(type="WordLevel", vocab=vocabulary, unk_token="<unk>")
    path.mkdir()
    content = dict(version="1.0", added_tokens=added, pre_tokenizer=dict(type="Whitespace"), model=model,
                   decoder=dict(type="WordPiece", prefix="##", cleanup=True))
    (path / "tokenizer.json").write_text(json.dumps(content, indent=1))
    (path / "tokenizer_config.json").write_text(json.dumps(dict(pad_token="<pad>", eos_token="</s>")))


def main(source, out):
    rows = []
    for split in ("train", "val"):
        (out / f"{split}_images").mkdir(parents=True)
        (out / f"{split}_masks").mkdir()
        for path in sorted((source / split).glob("*.png")):
            image = f"{split}_images/{path.name}"
            shutil.copy(path, out / image)
            for name, quarter, mask in questions(np.asarray(Image.open(source / f"{split}annot" / path.name))):
                position = f"{quarter}, {place(mask)}"
                file = f"{split}_masks/{path.stem}-{name}-{quarter.replace(' ', '-')}.png"
                Image.fromarray(mask).save(out / file)
                question = f"Where is the {name} in the {quarter}?"
                prompts = [f"USER: <image>\n{text}\nASSISTANT:" for text in (question, "")]
                rows.append([image, question, position, position, split, file, *prompts])
    with open(out / "questions.csv", "w", newline="") as file:
        csv.writer(file).writerows([["image_path", "question", "answer", "position", "split", "mask_path", "prompt", "no_question"], *rows])
    tokenizer([row[6] + " " + row[2].replace(",", " ,") for row in rows], out / "tokenizer")
    print(f"{len(rows)} questions")


main(*map(Path, sys.argv[1:]))
