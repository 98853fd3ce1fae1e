#!/usr/bin/env python3
"""Measures the start of a training on a large image folder: time, memory of each rank, and system calls per image.

    python tests/bench/large_sets.py make FOLDER --images 1300000
    python tests/bench/large_sets.py make FOLDER --images 10000000 --links
    python tests/bench/large_sets.py measure FOLDER --bin target/release [--bin OTHER] [--nproc 2]
    python tests/bench/large_sets.py calls FOLDER --bin target/release [--bin OTHER]
    python tests/bench/large_sets.py texts FILE --bytes 1000000000
    python tests/bench/large_sets.py measure-text FILE --bin target/release
    python tests/bench/large_sets.py copies FOLDER --images 100000 --of /data/cifar100/train
    python tests/bench/large_sets.py report FOLDER --bin target/release
    python tests/bench/large_sets.py resume NEW_FILE --bin target/release [--lines 1000000]

`make` writes PNG files of 8 x 8 pixels in 1,000 class folders; with --links they are names of few files. `calls` needs
strace, and a folder of more than 10,000 images, of which the start reads the headers. `copies` writes PNG files with the
pixels of others and a text of their own, so that no two are equal. `report` compares `dtrain data` with Pillow and hashlib,
which read the same. Needs nothing else but Linux.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import time
import zlib

CLASSES = 1000
# Fewer than the links that ext4 allows to a file.
LINKS = 60_000

RECIPE = """
task = "classify"
[data]
root = "{root}"
image_size = 8
cache = "off"
workers = 1
[model]
name = "resnet18"
[train]
effective_batch = 8
steps = {steps}
seed = 1
[optim]
name = "sgd"
lr = 0.001
[checkpoint]
every = "1000 steps"
"""

TEXT = """
task = "lm"
[data]
kind = "text"
root = "{root}"
tokenizer = "{tokenizer}"
test_fraction = 1e-3
[model]
name = "gpt"
width = 16
depth = 1
heads = 1
context = 256
[train]
effective_batch = 8
steps = 1
[checkpoint]
every = "1000 steps"
"""


def png(seed):
    """Returns a PNG file of 8 x 8 pixels."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + bytes((seed * 7 + row * 31 + at * 13) % 256 for at in range(24)) for row in range(8))
    header = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def make(folder, images, links):
    """Writes the training images, and one test image of each class."""
    began = time.time()
    for number in range(CLASSES):
        for split, count in (("train", images // CLASSES), ("test", 1)):
            at = folder / split / f"n{number:08}"
            at.mkdir(parents=True)
            source = None
            for image in range(count):
                path = f"{at}/n{number:08}_{image:08}.png"
                if source and links and image % LINKS:
                    os.link(source, path)
                else:
                    with open(path, "wb") as file:
                        file.write(png(number + image))
                    source = path
    print(f"wrote {images} training images in {time.time() - began:.0f} s")


def copies(folder, images, source):
    """Writes training images with the pixels of those below `source`, each with another comment, and 1% test images."""
    files = [path.read_bytes() for path in sorted(source.rglob("*.png"))]
    # The signature and the header.
    first = 8 + 25
    for split, count in (("train", images), ("test", images // 100)):
        for number in range(count):
            at = folder / split / f"n{number % 100:08}"
            at.mkdir(parents=True, exist_ok=True)
            body = b"tEXt" + f"Comment\0{split} {number}".encode()
            comment = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
            file = files[number % len(files)]
            (at / f"{number:08}.png").write_bytes(file[:first] + comment + file[first:])


PILLOW = """
import collections, hashlib, pathlib, sys
from PIL import Image
sizes, modes, contents = collections.Counter(), collections.Counter(), collections.Counter()
for path in pathlib.Path(sys.argv[1]).rglob("*.png"):
    with Image.open(path) as image:
        sizes[image.size] += 1
        modes[image.format, image.mode] += 1
    contents[hashlib.sha256(path.read_bytes()).digest()] += 1
print(sum(sizes.values()), dict(modes), len(sizes), "sizes,", sum(contents.values()) - len(contents), "copies")
"""


def report(folder, bins):
    """Measures `dtrain data` three times, beside Pillow and hashlib in one process."""
    for bin_folder in bins:
        with tempfile.TemporaryDirectory() as work:
            path = pathlib.Path(work, "recipe.toml")
            path.write_text(RECIPE.format(root=folder, steps=1))
            for _ in range(3):
                began = time.time()
                subprocess.run([str(bin_folder / "dtrain"), "data", str(path), "--json"], check=True, stdout=subprocess.DEVNULL)
                print(f"{bin_folder}: {time.time() - began:.2f} s")
    for _ in range(3):
        began = time.time()
        subprocess.run([sys.executable, "-c", PILLOW, str(folder)], check=True)
        print(f"Pillow and hashlib: {time.time() - began:.2f} s")


def lists_of(worker):
    """Returns the pages of the lists of files that a worker keeps, mapped or not: {inode: bytes}."""
    lists = {}
    for entry in (worker / "fd").iterdir():
        try:
            if os.readlink(entry).startswith("/memfd:dtrain-data"):
                found = entry.stat()
                lists[found.st_ino] = 512 * found.st_blocks
        except OSError:
            pass
    return lists


def worker_memory(launcher, lists):
    """Returns the resident bytes of each worker below the launcher: {pid: (private, peak)}. Adds to `lists`."""
    parents, workers = {}, {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = (entry / "status").read_text()
            is_worker = "dtrain-worker" in os.readlink(entry / "exe")
        except OSError:
            continue
        parents[int(entry.name)] = int(re.search(r"PPid:\s+(\d+)", status).group(1))
        if is_worker:
            value = lambda key: 1024 * int(re.search(rf"{key}:\s+(\d+)", status).group(1))
            workers[int(entry.name)] = (value("RssAnon"), value("VmHWM"))
            lists.update(lists_of(entry))

    def is_below(pid):
        return pid == launcher or pid in parents and is_below(parents[pid])

    return {pid: memory for pid, memory in workers.items() if is_below(pid)}


def run(bin_folder, recipe, nproc):
    """Runs a training and returns its result, the last memory of each worker, and the bytes of their lists."""
    with tempfile.TemporaryDirectory() as folder:
        return run_in(folder, bin_folder, recipe, nproc)


def run_in(folder, bin_folder, recipe, nproc):
    path = pathlib.Path(folder, "recipe.toml")
    path.write_text(recipe)
    command = [str(bin_folder / "dtrain"), "launch", "--nproc", str(nproc), "--run-dir", f"{folder}/run", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    last, lists = {}, {}
    while process.poll() is None:
        last.update(worker_memory(process.pid, lists))
        time.sleep(0.05)
    output = process.stdout.read()
    if process.returncode != 0:
        raise SystemExit(f"{command} ended with {process.returncode}:\n{output}")
    result = json.loads(pathlib.Path(folder, "run", "result.json").read_text())
    return result, list(last.values()), sum(lists.values())


def measure(folder, bins, nproc):
    images = sum(1 for _, _, files in os.walk(folder / "train") for _ in files)
    small = pathlib.Path(tempfile.mkdtemp())
    make(small, 20 * CLASSES, False)
    rows = []
    for bin_folder in bins:
        _, base, few = run(bin_folder, RECIPE.format(root=small, steps=20), nproc)
        result, memory, many = run(bin_folder, RECIPE.format(root=folder, steps=20), nproc)
        extra = images - 20 * CLASSES
        own = [(private - base[rank][0]) / extra for rank, (private, _) in enumerate(memory)]
        peak = max(peak - base[rank][1] for rank, (_, peak) in enumerate(memory)) / extra
        rows.append((bin_folder, result["startup_ms"] / 1e3, own, (many - few) / extra, peak))
    print(f"\n{images} training images, {nproc} ranks; bytes are per image, beyond those of a set of 20,000")
    print("| build | start s | private bytes by rank | shared list | peak of a rank |")
    print("|---|---|---|---|---|")
    for bin_folder, start, own, shared, peak in rows:
        print(f"| {bin_folder} | {start:.1f} | {', '.join(f'{one:.0f}' for one in own)} | {shared:.0f} | {peak:.0f} |")
    subprocess.run(["rm", "-rf", str(small)], check=True)


def calls(folder, bins):
    """Counts the system calls on images for each time that one is opened: by the check at the start, and to load it."""
    for bin_folder in bins:
        with tempfile.TemporaryDirectory() as work:
            path = pathlib.Path(work, "recipe.toml")
            path.write_text(RECIPE.format(root=folder, steps=1))
            trace = pathlib.Path(work, "trace")
            command = ["strace", "-f", "-qq", "-y", "-e", "trace=file,desc", "-o", str(trace)]
            command += [str(bin_folder / "dtrain"), "launch", "--nproc", "1", "--run-dir", f"{work}/run", str(path)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            found = collections.Counter()
            with open(trace, errors="replace") as lines:
                for line in lines:
                    if ".png" not in line:
                        continue
                    name = re.match(r"\d+\s+(\w+)\(", line)
                    if name:
                        found[name.group(1)] += 1
            opened = found["openat"]
            print(f"{bin_folder}: {sum(found.values()) / opened:.2f} system calls per opened image:", end=" ")
            print(", ".join(f"{name} {count / opened:.2f}" for name, count in found.most_common()))


def make_text(path, size):
    """Writes words of ASCII and a few other characters."""
    line = "the quick brown fox jumps over the lazy dog, wäre das ein Satz mit € und 漢字; " * 12000
    data = line.encode()
    with open(path, "wb") as file:
        written = 0
        while written < size:
            file.write(data)
            written += len(data)


def measure_text(path, bins):
    size = path.stat().st_size
    characters = sum(len(part) for part in open(path, encoding="utf-8"))
    small = pathlib.Path(tempfile.mkdtemp(), "small.txt")
    make_text(small, 1_000_000)
    for bin_folder in bins:
        for tokenizer, tokens in (("chars", characters), ("bytes", size)):
            recipe = lambda root: TEXT.format(root=root, tokenizer=tokenizer)
            base, base_memory, _ = run(bin_folder, recipe(small), 1)
            result, memory, _ = run(bin_folder, recipe(path), 1)
            took = (result["startup_ms"] - base["startup_ms"]) / 1e3
            peak = (memory[0][1] - base_memory[0][1]) / tokens
            print(f"{bin_folder}, {tokenizer}: {took / (size / 1e9):.1f} s per GB, {peak:.2f} bytes per token at the peak")
    subprocess.run(["rm", "-rf", str(small.parent)], check=True)


def resume(path, bins, lines):
    """Resumes a run with this many lines in metrics.jsonl."""
    make_text(path, 1_000_000)
    recipe = TEXT.format(root=path, tokenizer="bytes")
    steps = lambda count: recipe.replace("steps = 1\n", f"steps = {count}\n")
    for bin_folder in bins:
        took, peak = {}, {}
        for count in (0, lines):
            with tempfile.TemporaryDirectory() as folder:
                run_in(folder, bin_folder, steps(3), 1)
                metrics = pathlib.Path(folder, "run", "metrics.jsonl")
                own = metrics.read_text()
                step = next(line for line in own.splitlines() if line.startswith('{"step":'))
                metrics.write_text((step + "\n") * count + own)
                result, memory, _ = run_in(folder, bin_folder, steps(4), 1)
                took[count], peak[count] = result["startup_ms"] / 1e3, memory[0][1] / 2**20
        print(f"{bin_folder}: {lines} lines take {took[lines] - took[0]:.2f} s and {peak[lines] - peak[0]:.0f} MiB at the peak")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["make", "measure", "calls", "texts", "measure-text", "resume", "copies", "report"])
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--images", type=int, default=1_300_000)
    parser.add_argument("--links", action="store_true", help="names of few files instead of files")
    parser.add_argument("--of", type=pathlib.Path, help="folder of PNG files to copy")
    parser.add_argument("--bytes", type=int, default=1_000_000_000)
    parser.add_argument("--bin", type=pathlib.Path, action="append", help="folder with dtrain and dtrain-worker")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--nproc", type=int, default=1)
    options = parser.parse_args()
    bins = options.bin or [pathlib.Path("target/release")]
    match options.action:
        case "make":
            make(options.path, options.images, options.links)
        case "measure":
            measure(options.path.resolve(), bins, options.nproc)
        case "calls":
            calls(options.path.resolve(), bins)
        case "texts":
            make_text(options.path, options.bytes)
        case "measure-text":
            measure_text(options.path.resolve(), bins)
        case "copies":
            copies(options.path, options.images, options.of)
        case "report":
            report(options.path.resolve(), bins)
        case "resume":
            resume(options.path.resolve(), bins, options.lines)


if __name__ == "__main__":
    main()
