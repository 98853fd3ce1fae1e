"""Measures how many JPEG files Pillow and torchvision make into tensors in a second of processor time, in one thread.

The counterpart of the example `images-per-second` of worker/data, with the transforms v2 on tensors of bytes:

    cargo build --release -p dtrain-data --example images-per-second
    python tests/bench/make_images.py --count 64 IMAGES
    python tests/bench/images_per_second.py IMAGES --ours target/release/examples/images-per-second

Both sides run in turn, and each line is the median of the rounds, with the least and the largest.
"""

import argparse
import pathlib
import statistics
import subprocess
import time

import torch
from PIL import Image
from torchvision.transforms import v2

NORMALIZE = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]


def transforms(size, crop):
    if crop == "random":
        steps = [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
    else:
        steps = [v2.Resize(size, antialias=True), v2.CenterCrop(size)]
    return v2.Compose([v2.ToImage(), *steps, *NORMALIZE])


def theirs(files, size, passes, crop):
    """Returns the images per second of processor time, after a pass that does not count."""
    transform = transforms(size, crop)
    begun = 0.0
    for one in range(passes + 1):
        if one == 1:
            begun = time.process_time()
        for file in files:
            with Image.open(file) as image:
                transform(image.convert("RGB"))
    return passes * len(files) / (time.process_time() - begun)


def ours(program, *words):
    text = subprocess.run([program, *map(str, words)], check=True, capture_output=True, text=True).stdout
    return float(text.split()[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=pathlib.Path, help="folder with a folder per class")
    parser.add_argument("--ours", required=True, help="the example's program")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 112])
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    files = sorted(args.images.rglob("*.jpg"))
    for size in args.sizes:
        for crop in ("random", "centre"):
            rounds = []
            for _ in range(args.rounds):
                one = {"torchvision": theirs(files, size, args.passes, crop)}
                for decode in ("exact", "scaled"):
                    one[decode] = ours(args.ours, args.images, size, args.passes, crop, decode)
                rounds.append(one)
            for name in rounds[0]:
                rates = sorted(one[name] for one in rounds)
                ratios = sorted(one[name] / one["torchvision"] for one in rounds)
                middle = statistics.median
                print(
                    f"{size:4} {crop:7} {name:12} {middle(rates):7.1f} images/s ({rates[0]:.1f} to {rates[-1]:.1f}), "
                    f"{middle(ratios):.2f} times ({ratios[0]:.2f} to {ratios[-1]:.2f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
