#!/usr/bin/env python3
"""Makes small pictures in several formats, and what Pillow and torchvision make of them.

    pip install -r tests/parity/requirements.txt
    python tests/parity/make_pictures.py --out tests/parity/reference

A second run writes the same bytes. README.md describes every file.
"""

import json
import sys

import numpy as np
from PIL import Image, ImageOps
from torchvision.transforms import InterpolationMode, functional

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
from make_jpeg import scene  # noqa: E402
from opening import begin  # noqa: E402

# Name: (suffix, Pillow's options) of masks of 0 and 255.
MASKS = {
    "lossy": ("webp", {"quality": 60}),
    "lossy-with-alpha": ("webp", {"quality": 60}),
    "lossless": ("webp", {"lossless": True}),
    "lossless-animated": ("webp", {"lossless": True, "save_all": True}),
    "lossy-animated": ("webp", {"quality": 60, "save_all": True}),
    "jpeg": ("tif", {"compression": "jpeg"}),
    "lzw": ("tif", {"compression": "tiff_lzw"}),
}

# Formats that keep every pixel, so that the turned pictures can be compared.
TURNED = {"png": {}, "webp": {"lossless": True}, "tif": {}}

# (left, top, width, height) of a part of a picture of 61 x 47 pixels, and the size to which it is scaled.
CROPS = [
    ((0, 0, 61, 47), (32, 32)),
    ((10, 5, 20, 30), (32, 32)),
    ((3, 2, 50, 40), (16, 16)),
    ((30, 20, 7, 5), (24, 24)),
    ((60, 46, 1, 1), (8, 8)),
    ((5, 6, 16, 16), (16, 16)),
    ((1, 1, 59, 3), (20, 20)),
]


# Pillow's modes, and the formats that are written in each.
KINDS = {
    "1": ["png", "tif"],
    "L": ["png", "jpg", "bmp", "tif"],
    "P": ["png", "bmp", "tif"],
    "RGB": ["png", "jpg", "bmp", "tif", "webp"],
    "RGBA": ["png", "bmp", "tif", "webp"],
    "LA": ["png", "tif"],
    "I;16": ["png", "tif"],
    "F": ["tif"],
    "CMYK": ["jpg", "tif"],
}


def make_kinds(out):
    """Writes one file of each kind, and the format and mode that Pillow reads from it."""
    found = {}
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8) * 3
    for mode, suffixes in KINDS.items():
        if mode == "I;16":
            image = Image.fromarray(grey.astype(np.uint16) * 257)
        elif mode == "F":
            image = Image.fromarray(grey.astype(np.float32) / 7)
        else:
            image = Image.fromarray(grey).convert("RGB").convert(mode)
        for suffix in suffixes:
            path = out / f"kind-{mode.replace(';', '').lower()}.{suffix}"
            image.save(path)
            with Image.open(path) as read:
                found[path.name] = [read.format, read.mode]
    (out / "kinds.json").write_text(json.dumps(found, indent=1) + "\n")


def main():
    out = begin(__doc__, "torchvision") / "pictures"
    out.mkdir(exist_ok=True)
    make_kinds(out)
    y, x = np.mgrid[0:24, 0:24]
    disc = np.where((x - 9) ** 2 + (y - 12) ** 2 < 70, 255, 0).astype(np.uint8)
    for name, (suffix, options) in MASKS.items():
        mask = Image.fromarray(disc).convert("RGB" if suffix == "webp" else "L")
        if name.endswith("alpha"):
            mask.putalpha(Image.fromarray(255 - disc // 2))
        if "save_all" in options:
            options = {**options, "append_images": [ImageOps.mirror(mask)]}
        mask.save(out / f"mask-{name}.{suffix}", **options)
    picture = Image.fromarray(scene(13, 9))
    for tag in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = tag
        for suffix, options in TURNED.items():
            picture.save(out / f"turned-{tag}.{suffix}", exif=exif, **options)
        picture.save(out / f"turned-{tag}.jpg", exif=exif, quality=90)
        shown = ImageOps.exif_transpose(Image.open(out / f"turned-{tag}.png"))
        Image.fromarray(np.asarray(shown)).save(out / f"shown-{tag}.bmp")
    picture = Image.fromarray(scene(61, 47))
    picture.save(out / "crops.png", optimize=True)
    cases = []
    for number, ((left, top, width, height), size) in enumerate(CROPS):
        for name, mode in [("crop", InterpolationMode.BILINEAR), ("bicubic", InterpolationMode.BICUBIC)]:
            part = functional.resized_crop(picture, top, left, height, width, size[::-1], mode, antialias=True)
            part.save(out / f"{name}-{number}.png", optimize=True)
        cases.append({"corner": [left, top], "size": [width, height], "target": list(size)})
    (out / "crops.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
