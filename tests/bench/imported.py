"""Trains a model of timm with the weights of its import, eagerly on a GPU.

    imported.py NAME FILE.pt2 --side 96 --out FILE.json --steps N --losses FOLDER     losses in float32, on all images of FOLDER
    imported.py NAME FILE.pt2 --side 96 --out FILE.json --steps N --batch B           images per second in bfloat16

The counterpart of dtrain in `cargo xtask gpu-test`. Exit code 3: PyTorch cannot run here; the last line of standard error
is the reason.
"""

import argparse
import json
import pathlib
import time

import gpu

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def pixels(path):
    """Returns an uncompressed BMP of 24 bits as 3 x H x W, normalised as in dtrain."""
    data = path.read_bytes()
    begin, width, height = (int.from_bytes(data[at : at + 4], "little") for at in (10, 18, 22))
    row = (3 * width + 3) // 4 * 4
    rows = gpu.torch.frombuffer(bytearray(data[begin : begin + row * height]), dtype=gpu.torch.uint8).view(height, row)
    # The last row and blue are first.
    image = rows[:, : 3 * width].reshape(height, width, 3).flip(0, 2).permute(2, 0, 1).float() / 255
    return (image - gpu.torch.tensor(MEAN).view(3, 1, 1)) / gpu.torch.tensor(STD).view(3, 1, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--side", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--losses", type=pathlib.Path, help="folder of images")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        import timm
    except ImportError as error:
        gpu.skip(f"this Python has no timm: {error}")
    torch = gpu.torch
    device = torch.device("cuda", 0) if args.device == "cuda" else torch.device("cpu")
    gpu.check(device)
    exported = torch.export.load(args.file)
    net = timm.create_model(args.name, num_classes=10, img_size=args.side)
    net.load_state_dict(exported.state_dict)
    model = gpu.WithLoss(net).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, **({"fused": True} if device.type == "cuda" else {}))

    def step(inputs, targets):
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.losses is None):
            loss = model(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    if args.losses:
        torch.backends.cudnn.allow_tf32 = False
        classes = sorted(path for path in (args.losses / "train").iterdir())
        files = [(path, at) for at, folder in enumerate(classes) for path in sorted(folder.iterdir())]
        inputs = torch.stack([pixels(path) for path, _ in files]).to(device)
        targets = torch.tensor([at for _, at in files]).to(device)
        result = {"losses": [step(inputs, targets).item() for _ in range(args.steps)]}
    else:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        draw = gpu.images(args.side, False)
        batches = []
        for _ in range(gpu.BATCHES):
            inputs, _ = draw(args.batch)
            batches.append((inputs, torch.randint(10, (args.batch,))))
        if device.type == "cuda":
            batches = [tuple(part.pin_memory() for part in batch) for batch in batches]
        ahead = gpu.Ahead(batches, device)
        wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
        for _ in range(args.steps // 3):
            step(*ahead.take())
        wait()
        begun, counted = time.perf_counter(), args.steps - args.steps // 3
        for _ in range(counted):
            step(*ahead.take())
        wait()
        result = {"per_second": counted * args.batch / (time.perf_counter() - begun)}
    args.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
