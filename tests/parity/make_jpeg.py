#!/usr/bin/env python3
"""Makes small JPEG files and the pixels that Pillow reads.

    pip install -r tests/parity/requirements.txt
    python tests/parity/make_jpeg.py --out tests/parity/reference

A second run writes the same bytes. README.md describes every file.
"""

import sys

import numpy as np
from PIL import Image, features

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
from opening import begin  # noqa: E402

# Name: (width, height, mode, Pillow's options for writing the file).
CASES = {
    "444": (40, 30, "RGB", {"quality": 90, "subsampling": 0}),
    "422": (40, 30, "RGB", {"quality": 75, "subsampling": 1}),
    "420": (40, 30, "RGB", {"quality": 75, "subsampling": 2}),
    "420-odd": (37, 23, "RGB", {"quality": 60, "subsampling": 2}),
    "422-odd": (33, 17, "RGB", {"quality": 60, "subsampling": 1}),
    "420-narrow": (3, 19, "RGB", {"quality": 80, "subsampling": 2}),
    "one-pixel": (1, 1, "RGB", {"quality": 80, "subsampling": 2}),
    "coarse": (40, 30, "RGB", {"quality": 3, "subsampling": 2}),
    "fine": (40, 30, "RGB", {"quality": 100, "subsampling": 2}),
    "progressive": (37, 23, "RGB", {"quality": 75, "subsampling": 2, "progressive": True}),
    "progressive-444": (37, 23, "RGB", {"quality": 85, "subsampling": 0, "progressive": True}),
    "restarts": (40, 30, "RGB", {"quality": 75, "subsampling": 2, "restart_marker_blocks": 2}),
    "rgb": (37, 23, "RGB", {"quality": 75, "keep_rgb": True}),
    "grey": (37, 23, "L", {"quality": 75}),
    "grey-progressive": (40, 30, "L", {"quality": 50, "progressive": True}),
    "rotated": (40, 30, "RGB", {"quality": 75, "subsampling": 2}),
    "cmyk": (40, 30, "CMYK", {"quality": 75}),
}

# Files that are also decoded at a part of their size, as by Pillow's draft mode.
SCALED = {name: (2, 4, 8) for name in ("444", "422-odd", "420-odd", "progressive", "restarts")}


def scene(width, height):
    """Returns a picture of slopes, edges and a little colour noise: decoders differ in these."""
    y, x = np.mgrid[0:height, 0:width]
    red = 255 * x / max(width - 1, 1)
    green = 127 + 127 * np.sin(x / 3.0) * np.cos(y / 4.0)
    blue = np.where((x // 5 + y // 7) % 2 == 0, 230, 20)
    noise = np.random.default_rng(7).integers(-20, 21, (height, width, 3))
    return np.clip(np.stack([red, green, blue], axis=2) + noise, 0, 255).astype(np.uint8)


def main():
    out = begin(__doc__) / "jpeg"
    out.mkdir(exist_ok=True)
    if not features.check("libjpeg_turbo"):
        sys.exit("this Pillow is not built with libjpeg-turbo")
    for name, (width, height, mode, options) in CASES.items():
        image = Image.fromarray(scene(width, height)).convert(mode)
        if name == "rotated":
            exif = Image.Exif()
            exif[0x0112] = 6  # from a camera held upright
            options = {**options, "exif": exif}
        image.save(out / f"{name}.jpg", **options)
        # As torchvision reads images.
        read = Image.open(out / f"{name}.jpg").convert("RGB")
        read.save(out / f"{name}.png", optimize=True)
        for denominator in SCALED.get(name, ()):
            small = Image.open(out / f"{name}.jpg")
            small.draft("RGB", (width // denominator, height // denominator))
            small.convert("RGB").save(out / f"{name}.{denominator}.png", optimize=True)


if __name__ == "__main__":
    main()
