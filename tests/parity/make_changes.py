#!/usr/bin/env python3
"""Makes what torchvision's random changes do to two small pictures for given parameters, and its tables of magnitudes.

    pip install -r tests/parity/requirements.txt
    python tests/parity/make_changes.py --out tests/parity/reference

A second run writes the same bytes. README.md describes every file.
"""

import json
import math
import sys

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
from opening import begin  # noqa: E402

# Width and height: neither divides into blocks of pixels.
SIZE = (37, 29)
FILTERS = {"bilinear": InterpolationMode.BILINEAR, "nearest": InterpolationMode.NEAREST}

AFFINE = [
    # degrees, translate, scale, shear.
    (17.3, (0, 0), 1.0, (0.0, 0.0)),
    (-141.7, (3, -2), 0.83, (0.0, 0.0)),
    (8.9, (-5, 4), 1.37, (12.1, 0.0)),
    (0.0, (0, 0), 1.0, (-21.3, 7.7)),
]
CORNERS = [
    [[2, 3], [33, 1], [30, 26], [5, 22]],
    [[9, 0], [36, 7], [28, 28], [0, 21]],
]


def pictures():
    """Returns a picture with edges, all hues and some noise, and one of few values."""
    width, height = SIZE
    x, y, c = np.meshgrid(np.arange(width), np.arange(height), np.arange(3), indexing="xy")
    waves = 128 + 90 * np.sin(x / 6 + 2.1 * c) + 60 * np.cos(y / 5 - 1.7 * c) + 25 * (((x // 6) + (y // 5)) % 2)
    noise = (x * 7919 + y * 104729 + c * 1299709) % 23 - 11
    scene = np.clip(waves + noise, 0, 255).astype(np.uint8)
    scene[3:6, 4:9] = 255
    scene[20:24, 30:34] = 0
    scene[10:13, 15:18] = 77
    dull = (90 + scene // 5).astype(np.uint8)
    dull[..., 2] = 140
    return [torch.from_numpy(picture).permute(2, 0, 1).contiguous() for picture in (scene, dull)]


def cases():
    """Yields the name of each function with its numbers, a filter or None, and the function."""

    def colour(name, *numbers):
        functions = {
            "brightness": F.adjust_brightness,
            "contrast": F.adjust_contrast,
            "saturation": F.adjust_saturation,
            "hue": F.adjust_hue,
            "sharpness": F.adjust_sharpness,
            "posterize": lambda picture, bits: F.posterize(picture, int(bits)),
            "solarize": lambda picture, part: F.solarize(picture, 255 * part),
            "invert": F.invert,
            "equalize": F.equalize,
            "autocontrast": F.autocontrast,
            "grayscale": lambda picture: F.rgb_to_grayscale(picture, 3),
            "blur": lambda picture, kernel, sigma: F.gaussian_blur(picture, [int(kernel)] * 2, [sigma] * 2),
        }
        return name, numbers, None, lambda picture: functions[name](picture, *numbers)

    for name in ("brightness", "contrast", "saturation"):
        for factor in (0.0, 0.4, 0.87, 1.6):
            yield colour(name, factor)
    for turn in (-0.5, -0.31, -0.1, 0.07, 0.1, 0.25, 0.5):
        yield colour("hue", turn)
    for factor in (0.0, 0.1, 1.9, 3.0):
        yield colour("sharpness", factor)
    for bits in (1, 4, 6):
        yield colour("posterize", bits)
    for part in (0.0, 0.5, 0.8):
        yield colour("solarize", part)
    for name in ("invert", "equalize", "autocontrast", "grayscale"):
        yield colour(name)
    for kernel, sigma in ((3, 0.4), (5, 1.1), (23, 2.0)):
        yield colour("blur", kernel, sigma)
    for name, mode in FILTERS.items():
        for degrees, translate, scale, shear in AFFINE:
            numbers = (degrees, *translate, scale, *shear)
            yield "affine", numbers, name, lambda picture, a=(degrees, list(translate), scale, list(shear)), m=mode: F.affine(
                picture, *a, interpolation=m
            )
        for degrees in (-33.3, 12.7, 101.9):
            yield "rotation", (degrees,), name, lambda picture, a=degrees, m=mode: F.rotate(picture, a, interpolation=m)
        for corners in CORNERS:
            width, height = SIZE
            start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
            numbers = [number for corner in corners for number in corner]
            yield "perspective", numbers, name, lambda picture, a=(start, corners), m=mode: F.perspective(
                picture, *a, interpolation=m
            )
    policy = v2.RandAugment()
    for operation, magnitude in (("ShearX", 0.27), ("ShearY", -0.13), ("TranslateX", 7.9), ("TranslateY", -4.2), ("Rotate", 27.1)):
        yield operation, (magnitude,), "nearest", lambda picture, a=(operation, magnitude): policy._apply_image_or_video_transform(
            picture, *a, interpolation=FILTERS["nearest"], fill={torch.Tensor: None}
        )


def magnitudes():
    """Returns the magnitudes of each operation by its policy and their number, for pictures of SIZE."""
    width, height = SIZE
    found = {}
    for name, policy, count in (("narrow", v2.RandAugment, 31), ("narrow", v2.AutoAugment, 10), ("wide", v2.TrivialAugmentWide, 31)):
        for operation, (values, is_signed) in policy._AUGMENTATION_SPACE.items():
            values = values(count, height, width)
            values = None if values is None else [float(value) for value in values]
            found[f"{name}/{count}/{operation}"] = {"is_signed": is_signed, "values": values}
    return found


def main():
    out = begin(__doc__, "torchvision") / "changes"
    out.mkdir(exist_ok=True)
    sources = pictures()
    shown, listed = list(sources), []
    for name, numbers, interpolation, function in cases():
        # Only colours depend on the values of the picture.
        for at, picture in enumerate(sources[: 2 if interpolation is None else 1]):
            shown.append(function(picture))
            listed.append({"picture": at, "name": name, "numbers": list(numbers), "filter": interpolation})
    rows = torch.cat(shown, dim=1).permute(1, 2, 0).numpy()
    Image.fromarray(rows).save(out / "pictures.png", optimize=True)
    lines = ",\n  ".join(json.dumps(case) for case in listed)
    (out / "cases.json").write_text(f"[\n  {lines}\n]\n")
    policy = [[list(one) for one in pair] for pair in v2.AutoAugment()._get_policies(v2.AutoAugmentPolicy.IMAGENET)]
    assert all(math.isfinite(value) for table in magnitudes().values() for value in table["values"] or [])
    (out / "policies.json").write_text(json.dumps({"magnitudes": magnitudes(), "autoaugment": policy}) + "\n")


if __name__ == "__main__":
    main()
