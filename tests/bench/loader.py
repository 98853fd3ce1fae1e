"""Measures torch's DataLoader with torchvision's ImageFolder, in images per second.

The counterpart of `loader-bench` in `cargo xtask bench`. One worker process decodes, resizes and normalises; this
process only takes its batches. Writes one JSON object.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import time

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

# Checks one value per this many rows and columns, to see that both loaders make the same images.
STRIDE = 16


def cpu_seconds():
    """Returns the processor time of this process and its worker so far, in seconds."""
    workers = 0
    for worker in multiprocessing.active_children():
        # The name in parentheses may contain spaces; utime and stime are fields 14 and 15.
        fields = pathlib.Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        workers += int(fields[11]) + int(fields[12])
    return time.process_time() + workers / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=pathlib.Path, required=True, help="folder with a folder per class")
    parser.add_argument("--size", type=int, required=True, help="width and height in pixels")
    parser.add_argument("--batch", type=int, required=True, help="images per batch")
    parser.add_argument("--epochs", type=int, required=True, help="measured passes, after one warm-up pass")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON file of the results")
    args = parser.parse_args()

    torch.set_num_threads(1)
    steps = [
        transforms.Resize(args.size),
        transforms.CenterCrop(args.size),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
    folder = ImageFolder(args.images, transforms.Compose(steps))
    loader = DataLoader(
        folder, batch_size=args.batch, num_workers=1, prefetch_factor=4, persistent_workers=True
    )

    def one_pass():
        """Takes all batches of a pass; returns the mean of the checked values."""
        total, looked_at = 0.0, 0
        for images, _ in loader:
            seen = images[:, :, ::STRIDE, ::STRIDE]
            total += float(seen.sum(dtype=torch.float64))
            looked_at += seen.numel()
        return total / looked_at

    one_pass()
    begun, cpu_before = time.perf_counter(), cpu_seconds()
    mean = 0.0
    for _ in range(args.epochs):
        mean = one_pass()
    result = {
        "images": args.epochs * len(folder),
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": cpu_seconds() - cpu_before,
        "mean": mean,
        "torch": torch.__version__,
    }
    args.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
