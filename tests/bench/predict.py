"""Measures predictions of a folder of images in PyTorch beside `dtrain predict`, in turns, and compares what they predict.

Both run the same ResNet-18 with the same weights, from the files to a CSV of probabilities. PyTorch has a DataLoader with PIL and
torchvision's transforms. `--side one` is the PyTorch side alone, in a process of its own as a user's script is. Prints a line for
each round, and medians with ratios within the rounds:

    python3 tests/bench/predict.py --dtrain target/release/dtrain --run RUN_DIR --images FOLDER --size 32 --rounds 5
"""

import argparse
import csv
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

BATCH = 128


def predict(args):
    """Predicts with PyTorch, and prints the seconds of the loop."""
    import torch
    import torchvision
    from PIL import Image
    from safetensors.torch import load_file
    from torch.utils.data import DataLoader, Dataset
    from torchvision import transforms

    class Images(Dataset):
        def __init__(self, root):
            self.root, self.paths = root, sorted(root.rglob("*.png"))
            steps = [transforms.Resize(args.size), transforms.CenterCrop(args.size), transforms.ToTensor()]
            self.change = transforms.Compose(steps + [transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, at):
            with Image.open(self.paths[at]) as image:
                return self.change(image.convert("RGB")), str(self.paths[at].relative_to(self.root))

    torch.set_num_threads(args.threads)
    state = load_file(args.weights)
    model = torchvision.models.resnet18(num_classes=state["fc.weight"].shape[0])
    model.load_state_dict(state)
    model.eval()
    images = Images(args.images)
    began = time.perf_counter()
    loader = DataLoader(images, batch_size=BATCH, num_workers=args.workers, prefetch_factor=4 if args.workers else None)
    with open(args.out, "w", newline="") as file, torch.inference_mode():
        writer = csv.writer(file)
        for batch, names in loader:
            probabilities = model(batch).softmax(1)
            best = probabilities.argmax(1).tolist()
            for name, number, values in zip(names, best, probabilities.tolist()):
                writer.writerow([name, number, *values])
    print(json.dumps({"seconds": time.perf_counter() - began}))


def run(command):
    """Runs a command; returns its last line of standard output and its time in seconds."""
    began = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1]), time.perf_counter() - began


def compare(ours, theirs):
    """Returns the rows with another class and the largest difference of a probability."""
    with open(ours, newline="") as file:
        rows = list(csv.reader(file))
    names = [name.removeprefix("p:") for name in rows[0][3:-1]]
    ours = {row[0]: row for row in rows[1:]}
    differing, largest, count = 0, 0.0, 0
    with open(theirs, newline="") as file:
        for name, best, *values in csv.reader(file):
            row = ours[name]
            differing += names[int(best)] != row[1]
            largest = max(largest, max(abs(float(a) - float(b)) for a, b in zip(row[3:-1], values)))
            count += 1
    assert count == len(ours)
    return differing, largest, count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=["one", "both"], default="both")
    parser.add_argument("--dtrain", type=pathlib.Path)
    parser.add_argument("--run", type=pathlib.Path)
    parser.add_argument("--images", type=pathlib.Path, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--weights")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    if args.side == "one":
        return predict(args)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        weights, theirs = folder / "weights.safetensors", folder / "theirs.csv"
        subprocess.run([args.dtrain, "ckpt", "export", args.run, weights], check=True, stdout=subprocess.DEVNULL)
        peers = {
            f"PyTorch, {threads} threads, {workers} loaders": [
                sys.executable, __file__, "--side", "one", "--images", args.images, "--size", str(args.size),
                "--threads", str(threads), "--workers", str(workers), "--weights", weights, "--out", theirs,
            ]
            for threads, workers in [(1, 1), (2, 1), (2, 2)]
        }
        own = {f"dtrain, {ranks} ranks": ranks for ranks in (1, 2)}
        times = {name: [] for name in [*peers, *own]}
        for number in range(args.rounds):
            for name, command in peers.items():
                told, whole = run(command)
                times[name].append((told["seconds"], whole))
            for name, ranks in own.items():
                out = folder / f"{number}-{ranks}.csv"
                words = ["-o", out, "--nproc", str(ranks), "--batch", str(BATCH), "--json"]
                told, whole = run([args.dtrain, "predict", args.run, args.images, *words])
                times[name].append((told["seconds"], whole))
                differing, largest, count = compare(out, theirs)
                print(f"round {number}: {name}: {count} images, {differing} other classes, probabilities differ by {largest:.1e}")
            print({name: [round(value, 2) for value in all_of[-1]] for name, all_of in times.items()}, flush=True)
        for at, what in enumerate(["loop", "whole command"]):
            best = min(peers, key=lambda name: statistics.median(pair[at] for pair in times[name]))
            for name, pairs in times.items():
                values = [pair[at] for pair in pairs]
                ratios = [other[at] / pair[at] for pair, other in zip(pairs, times[best])]
                print(
                    f"{what}: {name}: {statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f}), "
                    f"{statistics.median(ratios):.2f} times as fast as {best}"
                )


if __name__ == "__main__":
    main()
