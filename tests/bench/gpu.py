"""Measures one training in PyTorch on a GPU.

The counterpart of dtrain in `cargo xtask gpu-test`. Trains ResNet-50, ViT-B/16 or GPT-2 in bfloat16 by autocast, with
the networks, optimizers and batches of gpu-*.toml. Writes one JSON object.
Exit code 3: PyTorch cannot run here; the last line of standard error is the reason.
"""

import argparse
import json
import math
import pathlib
import sys
import time

# Exit code if this machine or this Python cannot be used for measurements.
SKIPPED = 3

# Batches created before the training and used in turn.
BATCHES = 4

# The values of gpu-gpt2.toml.
GPT2 = {"vocabulary": 50257, "width": 768, "depth": 12, "heads": 12}
CONTEXT = 1024


def skip(reason):
    print(reason, file=sys.stderr)
    sys.exit(SKIPPED)


try:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import models
except ImportError as error:
    skip(f"this Python cannot import the benchmark's packages: {error}")


class WithLoss(nn.Module):
    """A network with its mean cross-entropy, so that wrapping or compiling it includes the loss."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, inputs, targets):
        return F.cross_entropy(self.net(inputs).flatten(0, -2), targets.flatten())


def images(side, channels_last):
    """Returns a function that draws a batch of n images with their classes."""
    layout = torch.channels_last if channels_last else torch.contiguous_format

    def draw(n):
        return torch.randn(n, 3, side, side).to(memory_format=layout), torch.randint(1000, (n,))

    return draw


def build(name, tiny=False):
    """Returns the network, a function that draws n samples, and the units (images, tokens) in a sample."""
    if name == "gpt2":
        sizes, context = (models.GPT, 64) if tiny else (GPT2, CONTEXT)
        return models.Gpt(context=context, **sizes), models.windows(sizes["vocabulary"], context), context
    try:
        import torchvision
    except ImportError as error:
        skip(f"this Python has no torchvision for {name}: {error}")
    if name == "resnet50":
        net = torchvision.models.resnet50(num_classes=1000, zero_init_residual=True)
        return net.to(memory_format=torch.channels_last), images(32 if tiny else 224, True), 1
    if name == "vit-b16" and tiny:
        net = torchvision.models.VisionTransformer(32, 16, 2, 2, 64, 256, num_classes=1000)
        return net, images(32, False), 1
    net = torchvision.models.vit_b_16(num_classes=1000, dropout=0.0, attention_dropout=0.0)
    return net, images(224, False), 1


def optimizer_of(name, parameters):
    """Returns the optimizer of the recipe; fused is PyTorch's fastest."""
    if name == "resnet50":
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-5, fused=True)
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)


def prepare(model, way, device, meet):
    """Returns the model to call in a step."""
    if way == "ddp":
        meet.unlink(missing_ok=True)
        on_gpu = device.type == "cuda"
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=meet.resolve().as_uri(),
            rank=0,
            world_size=1,
            device_id=device if on_gpu else None,
        )
        return DistributedDataParallel(
            model, device_ids=[device] if on_gpu else None, gradient_as_bucket_view=True
        )
    if way == "compile":
        return torch.compile(model)
    if way == "compile-graphs":
        return torch.compile(model, mode="reduce-overhead")
    return model


class Ahead:
    """Batches in turn. A separate stream copies the next one to the GPU during the computation, as in dtrain."""

    def __init__(self, batches, device):
        self.batches = batches
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.taken = 0
        self.next = self.copy()

    def copy(self):
        batch = self.batches[self.taken % len(self.batches)]
        self.taken += 1
        with torch.cuda.stream(self.stream):
            return tuple(part.to(self.device, non_blocking=True) for part in batch)

    def take(self):
        batch = self.next
        if self.stream is not None:
            computing = torch.cuda.current_stream(self.device)
            computing.wait_stream(self.stream)
            for part in batch:
                # The next copy must not get this memory before the computation has ended.
                part.record_stream(computing)
        self.next = self.copy()
        return batch


def check(device):
    """Ends the program if torch is not the version to compare with, or if there is no GPU."""
    if not torch.__version__.startswith("2.11."):
        skip(f"PyTorch 2.11 is needed, this Python has {torch.__version__}")
    if device.type == "cpu":
        return
    if torch.version.cuda is None:
        skip(f"PyTorch {torch.__version__} has no CUDA")
    if not torch.cuda.is_available():
        skip("PyTorch finds no usable GPU")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["resnet50", "vit-b16", "gpt2"], required=True)
    parser.add_argument("--batch", type=int, required=True, help="samples per step")
    parser.add_argument("--way", choices=["eager", "ddp", "compile", "compile-graphs"], required=True, help="how to train")
    parser.add_argument("--steps", type=int, required=True, help="measured steps")
    parser.add_argument("--skip", type=int, required=True, help="warm-up steps before them")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON file of the results")
    # For trying this program on a machine without a GPU.
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps < 1 or args.skip < 0 or args.batch < 1:
        parser.error("--steps and --batch are at least 1")

    device = torch.device("cuda", 0) if args.device == "cuda" else torch.device("cpu")
    check(device)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    # Operations that autocast leaves in float32 use TF32; dtrain enables both too.
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True

    torch.manual_seed(1)
    net, draw, per_sample = build(args.model, args.tiny)
    model = WithLoss(net).to(device).train()
    batches = [draw(args.batch) for _ in range(BATCHES)]
    if on_gpu:
        batches = [tuple(part.pin_memory() for part in batch) for batch in batches]
    called = prepare(model, args.way, device, args.out.with_suffix(".meet"))
    optimizer = optimizer_of(args.model, model.parameters())

    ahead = Ahead(batches, device)

    def train(count):
        """Takes `count` steps; returns the last loss without waiting for it."""
        loss = None
        for _ in range(count):
            if args.way == "compile-graphs":
                # The results of the step before may be overwritten.
                torch.compiler.cudagraph_mark_step_begin()
            inputs, targets = ahead.take()
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = called(inputs, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss

    def synchronize():
        if on_gpu:
            torch.cuda.synchronize()

    train(args.skip)
    synchronize()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    loss = train(args.steps)
    synchronize()
    total_ms = 1e3 * (time.perf_counter() - begun)
    # Read now, before later code allocates memory.
    peaks = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if on_gpu else (None, None)
    loss = loss.item()
    if not math.isfinite(loss):
        raise RuntimeError(f"the loss is {loss}")

    result = {
        "model": args.model,
        "way": args.way,
        "batch": args.batch,
        "per_sample": per_sample,
        "steps": args.steps,
        "skipped": args.skip,
        "total_ms": total_ms,
        "per_second": 1e3 * args.steps * args.batch * per_sample / total_ms,
        "peak_allocated_bytes": peaks[0],
        "peak_reserved_bytes": peaks[1],
        "loss": loss,
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(device) if on_gpu else None,
    }
    args.out.write_text(json.dumps(result))
    if args.way == "ddp":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
