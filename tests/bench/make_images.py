"""Writes JPEG files that are as complex as photographs.

`cargo xtask bench loader` uses them without --images. The pixels are noise whose amplitude falls with the frequency,
as that of natural images does (Field 1987, "Relations between the statistics of natural images and the response
properties of cortical cells"): files have about as many bytes, and take about as long to decode, as photographs of
that size. The same arguments give the same files.
"""

import argparse
import pathlib

import numpy as np
from PIL import Image


def noise(rng, height, width, fall):
    """Returns one plane of mean 0 and deviation 1."""
    y, x = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    amplitude = 1.0 / np.maximum(np.hypot(y, x), 1.0 / max(height, width)) ** fall
    amplitude[0, 0] = 0.0
    spectrum = amplitude * np.exp(2j * np.pi * rng.random(amplitude.shape))
    plane = np.fft.irfft2(spectrum, s=(height, width))
    return plane / plane.std()


def photograph(rng, height, width):
    """Returns an image with detail in brightness and less detail in colour."""
    y = 128 + 48 * noise(rng, height, width, 1.1)
    cb, cr = (128 + 16 * noise(rng, height, width, 1.5) for _ in range(2))
    planes = [Image.fromarray(np.clip(plane, 0, 255).astype(np.uint8)) for plane in (y, cb, cr)]
    return Image.merge("YCbCr", planes)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="output folder")
    parser.add_argument("--count", type=int, default=256, help="number of files")
    parser.add_argument("--classes", type=int, default=4, help="number of class folders")
    parser.add_argument("--seed", type=int, default=1, help="seed of the noise")
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    for number in range(args.count):
        folder = args.folder / f"class-{number % args.classes}"
        folder.mkdir(parents=True, exist_ok=True)
        long, short = int(rng.integers(480, 521)), int(rng.integers(333, 401))
        height, width = (long, short) if number % 4 == 3 else (short, long)
        photograph(rng, height, width).save(folder / f"{number:04}.jpg", quality=90)


if __name__ == "__main__":
    main()
