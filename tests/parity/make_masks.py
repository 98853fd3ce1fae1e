#!/usr/bin/env python3
"""Makes small masks in several formats with what Pillow reads of them, and what pycocotools draws of annotations.

    pip install -r tests/parity/requirements.txt
    python tests/parity/make_masks.py --out tests/parity/reference

A second run writes the same bytes. README.md describes every file.
"""

import json
import sys

import numpy as np
from PIL import Image
from pycocotools import mask as coco

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
from opening import begin  # noqa: E402

# Width and height of the masks; the width fills no byte of 1-bit rows.
SIZE = (13, 9)
PALETTE = [0, 0, 0, 200, 40, 200, 120, 130, 140, 255, 255, 255, 10, 200, 30]


def formats():
    """Returns the masks by file name: the image and Pillow's options."""
    x, y = np.meshgrid(np.arange(SIZE[0]), np.arange(SIZE[1]))
    classes = ((x // 3 + y // 2) % 5).astype(np.uint8)
    disc = (x - 6) ** 2 + (y - 4) ** 2 < 14
    palette = Image.fromarray(classes)
    palette.putpalette(PALETTE)
    grey = Image.fromarray(np.where(disc, 255, 0).astype(np.uint8))
    ramp = Image.fromarray((classes * 51).astype(np.uint8))
    bits, color = Image.fromarray(disc), palette.convert("RGB")
    clear = color.copy()
    clear.putalpha(Image.fromarray((classes * 60).astype(np.uint8)))
    return {
        "grey.gif": (grey, {}),
        "palette.gif": (palette, {}),
        "interlaced.gif": (palette, {"interlace": 1}),
        "transparent.gif": (palette, {"transparency": 2}),
        "animated.gif": (palette, {"save_all": True, "append_images": [palette.transpose(0)]}),
        "1-bit.tif": (bits, {}),
        "group4.tif": (bits, {"compression": "group4"}),
        "palette.tif": (palette, {}),
        "palette-lzw.tif": (palette, {"compression": "tiff_lzw"}),
        "ramp.tif": (ramp, {}),
        "1-bit.png": (bits, {}),
        "palette.png": (palette, {}),
        "palette-4-bit.png": (palette, {"bits": 4}),
        "ramp.png": (ramp, {}),
        "color.png": (color, {}),
        "color.bmp": (color, {}),
        "alpha.png": (clear, {}),
    }


def masks(out):
    found = {}
    for name, (image, options) in formats().items():
        image.save(out / name, **options)
        read = Image.open(out / name)
        case = {
            "above": (np.asarray(read.convert("L")) > 128).astype(int).ravel().tolist(),
            "rgb": np.asarray(read.convert("RGB")).ravel().tolist(),
        }
        if read.mode in ("1", "L", "P"):
            case["values"] = np.asarray(read).astype(int).ravel().tolist()
        found[name] = case
    (out / "masks.json").write_text(json.dumps(found) + "\n")


def annotations(out):
    """Writes annotations, and the pixels of each as pycocotools draws it."""
    random = np.random.default_rng(7)
    width, height = 37, 29
    shapes = []
    for number in range(60):
        corners = random.integers(3, 9)
        points = random.uniform(-4, [width + 4, height + 4], (corners, 2))
        if number % 3 == 0:
            points = np.round(points)
        if number % 7 == 0:
            points = np.vstack([points, points[-1:]])  # a corner twice
        polygons = [points.ravel().tolist()]
        if number % 4 == 0:
            polygons.append((random.uniform(0, min(width, height), (4, 2))).ravel().tolist())
        shapes.append(polygons)
    shapes.append([[0, 0, width, 0, width, height, 0, height]])
    shapes.append([[5, 5, 5, 5, 5, 5]])
    shapes.append([[2.5, 3, 20.25, 3, 20.25, 3, 2.5, 3]])
    for _ in range(6):
        blob = np.asfortranarray(random.random((height, width)) < 0.4)
        packed = coco.encode(blob.astype(np.uint8))
        shapes.append({"size": [height, width], "counts": packed["counts"].decode()})
        runs, value = [], 0
        for pixel in blob.ravel(order="F").tolist():
            if not runs or pixel != value:
                if not runs and pixel:
                    runs.append(0)
                runs.append(0)
                value = pixel
            runs[-1] += 1
        shapes.append({"size": [height, width], "counts": runs})
    full = np.asfortranarray(np.ones((height, width), np.uint8))
    shapes.append({"size": [height, width], "counts": coco.encode(full)["counts"].decode()})
    entries, drawn = [], []
    for number, shape in enumerate(shapes):
        entries.append({"id": number, "image_id": 1, "category_id": 1, "segmentation": shape, "iscrowd": int(isinstance(shape, dict))})
        # As COCO.annToRLE.
        if isinstance(shape, list):
            runs = coco.merge(coco.frPyObjects(shape, height, width))
        elif isinstance(shape["counts"], list):
            runs = coco.frPyObjects(shape, height, width)
        else:
            runs = shape
        drawn.append("".join(map(str, coco.decode(runs).ravel().tolist())))
    images = [{"id": 1, "file_name": "a.png", "width": width, "height": height}]
    categories = [{"id": 1, "name": "thing"}]
    document = {"images": images, "annotations": entries, "categories": categories, "drawn": drawn}
    (out / "annotations.json").write_text(json.dumps(document) + "\n")


def main():
    out = begin(__doc__) / "masks"
    out.mkdir(exist_ok=True)
    masks(out)
    annotations(out)


if __name__ == "__main__":
    main()
