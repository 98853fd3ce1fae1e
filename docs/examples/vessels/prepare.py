"""Arranges CHASE_DB1: python prepare.py CHASE OUT. The first 20 images are for training, and tiles of the last 8 for the test."""

import sys
from pathlib import Path

from PIL import Image

SIDE = 256


def tiles(picture, fill):
    """Yields the tiles of an image, row by row; those at the edge are filled up."""
    for top in range(0, picture.height, SIDE):
        for left in range(0, picture.width, SIDE):
            tile = Image.new(picture.mode, (SIDE, SIDE), fill)
            tile.paste(picture.crop((left, top, min(left + SIDE, picture.width), min(top + SIDE, picture.height))))
            yield tile


def classes(path):
    """Reads a grader's mask as 0 and 1."""
    return Image.open(path).convert("L").point(lambda value: int(value > 127))


def main(source, out):
    for part in ("train", "test"):
        (out / part).mkdir(parents=True)
    dice = []
    for number, path in enumerate(sorted(source.glob("Image_*.jpg"))):
        image, mask = Image.open(path), classes(path.with_name(f"{path.stem}_1stHO.png"))
        if number < 20:
            image.save(out / "train" / f"{path.stem}.png")
            mask.save(out / "train" / f"{path.stem}_mask.png")
            continue
        for index, (tile, truth) in enumerate(zip(tiles(image, 0), tiles(mask, 255))):
            tile.save(out / "test" / f"{path.stem}-{index:02}.png")
            truth.save(out / "test" / f"{path.stem}-{index:02}_mask.png")
        second = classes(path.with_name(f"{path.stem}_2ndHO.png"))
        dice.append([sum(pixels) for pixels in ((a & b for a, b in zip(mask.tobytes(), second.tobytes())), mask.tobytes(), second.tobytes())])
    both, first, second = (sum(counts) for counts in zip(*dice))
    print(f"the second grader: Dice {2 * both / (first + second):.4f}, IoU {both / (first + second - both):.4f}")


main(Path(sys.argv[1]), Path(sys.argv[2]))
