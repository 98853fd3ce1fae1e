#!/usr/bin/env python3
"""Computes references of losses over all samples of a step and of losses of samples, and their derivatives.

    pip install -r tests/parity/requirements.txt
    python tests/parity/make_losses.py --out tests/parity/reference

A second run writes the same bytes. README.md describes the files.
"""

import sys

import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from torchvision.ops import sigmoid_focal_loss

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
from opening import begin  # noqa: E402

SAMPLES, LENGTH, ROWS, EXPERTS = 7, 5, 2, 3
CLASSES = [4, 0, 4, 4, 1, 0, 4]
LEFT_OUT = 3


def clip(left, right, scale):
    logits = scale * F.normalize(left) @ F.normalize(right).T
    numbers = torch.arange(len(logits))
    return (F.cross_entropy(logits, numbers) + F.cross_entropy(logits.T, numbers)) / 2


def siglip(left, right, scale, bias):
    logits = scale * F.normalize(left) @ F.normalize(right).T + bias
    targets = torch.eye(len(logits), dtype=logits.dtype)
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(logits)


def supcon(left, temperature=0.07):
    vectors = F.normalize(left)
    total = torch.zeros((), dtype=left.dtype)
    classes = [kind for number, kind in enumerate(CLASSES) if number != LEFT_OUT]
    for here, vector in enumerate(vectors):
        others = [there for there in range(len(vectors)) if there != here]
        log = F.log_softmax(torch.stack([vector @ vectors[there] for there in others]) / temperature, dim=0)
        right = [log[at] for at, there in enumerate(others) if classes[there] == classes[here]]
        total = total - torch.stack(right).mean() if right else total
    return total / len(vectors)


def balance(gates):
    rows = gates.reshape(-1, EXPERTS)
    parts = F.one_hot(rows.argmax(dim=1), EXPERTS).to(rows.dtype).mean(dim=0)
    return EXPERTS * (parts * rows.mean(dim=0)).sum()


def balance_of_two(gates):
    rows = gates.reshape(-1, EXPERTS)
    parts = F.one_hot(rows.topk(2, dim=1).indices, EXPERTS).to(rows.dtype).sum(dim=1).mean(dim=0) / 2
    return EXPERTS * (parts * rows.mean(dim=0)).sum()


# Pixels: the masks have one class less than the logits, one image cannot be read, and of one no pixel counts.
IMAGES, KNOWN, IGNORED, UNREADABLE, EMPTY = 4, 3, 255, 1, 2
CLASS_WEIGHTS = [0.5, 1.0, 2.0, 0.5]
PIXEL_WEIGHTS = [0.5, 1.5, 1.0, 1.0]
POSITIVE_WEIGHTS = [0.5, 1.0, 3.0, 2.0]


def of_weights(weights, like):
    return torch.tensor(weights, dtype=like.dtype)


def softmax_focal(logits, classes, gamma):
    """Returns the focal loss of each element, and its class where that counts, else 0."""
    right = classes.clamp(max=logits.shape[1] - 1)
    log = logits.log_softmax(dim=1).gather(1, right.unsqueeze(1)).squeeze(1)
    return -((1 - log.exp()) ** gamma) * log, right


def weighted_cross_entropy(logits, labels):
    return F.cross_entropy(logits, labels, of_weights(CLASS_WEIGHTS, logits), label_smoothing=0.1)


def weighted_focal(logits, labels):
    losses, right = softmax_focal(logits, labels, 1.5)
    weights = of_weights(CLASS_WEIGHTS, logits)[right]
    return (losses * weights).sum() / weights.sum()


def several_of_classes(logits, labels):
    weights = of_weights(CLASS_WEIGHTS, logits)
    weighted = F.cross_entropy(logits, labels, weights, reduction="none")
    return (weighted + 0.5 * softmax_focal(logits, labels, 2)[0]).mean()


def corn(logits, ranks):
    """Returns CORN as its paper: a binary cross-entropy for each rank, over the samples that are not below it."""
    total, decisions = 0, 0
    for rank in range(logits.shape[1]):
        kept = ranks >= rank
        above = (ranks[kept] > rank).to(logits.dtype)
        total = total + F.binary_cross_entropy_with_logits(logits[kept, rank], above, reduction="sum")
        decisions += int(kept.sum())
    return total / decisions


def several_corn(logits, ranks):
    decisions = sum(min(int(rank) + 1, logits.shape[1]) for rank in ranks)
    return 1.5 * corn(logits, ranks) * decisions / len(ranks)


def binary(logits, labels):
    weights = of_weights(POSITIVE_WEIGHTS, logits)
    return F.binary_cross_entropy_with_logits(logits, labels * 0.9 + 0.05, pos_weight=weights)


def binary_focal(logits, labels):
    return sigmoid_focal_loss(logits, labels, alpha=0.25, gamma=2, reduction="mean")


def several_of_sets(logits, labels):
    plain = sigmoid_focal_loss(logits, labels, alpha=-1, gamma=1.5, reduction="mean")
    return 2 * F.binary_cross_entropy_with_logits(logits, labels) + 0.5 * plain


def pixel_cross_entropy(logits, mask):
    weights = of_weights(PIXEL_WEIGHTS, logits)
    return F.cross_entropy(logits, mask, weights, ignore_index=IGNORED, label_smoothing=0.1)


def pixel_focal(logits, mask):
    return softmax_focal(logits, mask, 2)[0][mask != IGNORED].mean()


def mean_of_images(loss, logits, mask):
    """Returns the mean over the images with a pixel that counts."""
    images = [at for at in range(len(mask)) if (mask[at] != IGNORED).any()]
    return torch.stack([loss(logits[at], mask[at]) for at in images]).mean()


def of_areas(match, logits, mask):
    """Returns 1 less the mean match of the classes of one image."""
    counted = mask != IGNORED
    probabilities = logits.softmax(dim=0)[:, counted]
    target = [(mask[counted] == number).to(logits.dtype) for number in range(KNOWN)]
    areas = [((here * there).sum(), here.sum(), there.sum()) for here, there in zip(probabilities, target)]
    return 1 - torch.stack([match(*area) for area in areas]).mean()


def dice(logits, mask, smooth=1.0):
    match = lambda both, predicted, target: (2 * both + smooth) / (predicted + target + smooth)
    return mean_of_images(lambda *image: of_areas(match, *image), logits, mask)


def jaccard(logits, mask, smooth=0.5):
    match = lambda both, predicted, target: (both + smooth) / (predicted + target - both + smooth)
    return mean_of_images(lambda *image: of_areas(match, *image), logits, mask)


def tversky(logits, mask, alpha=0.3, beta=0.7, smooth=1.0):
    match = lambda both, predicted, target: (both + smooth) / (
        both + alpha * (predicted - both) + beta * (target - both) + smooth
    )
    return mean_of_images(lambda *image: of_areas(match, *image), logits, mask)


def nearness(mask, factor, width):
    """Returns the weights of the pixels of one image, pixel by pixel."""
    weights = torch.zeros(mask.shape, dtype=torch.float64)
    for row in range(mask.shape[0]):
        for column in range(mask.shape[1]):
            window = mask[max(row - width, 0) : row + width + 1, max(column - width, 0) : column + width + 1]
            around = window[window != IGNORED]
            if mask[row, column] != IGNORED:
                weights[row, column] = 1 + factor * (around != mask[row, column]).double().mean()
    return weights


def boundary_of_image(logits, mask):
    weights = nearness(mask, 5.0, 1)
    losses = F.cross_entropy(logits.unsqueeze(0), mask.unsqueeze(0), ignore_index=IGNORED, reduction="none")[0]
    return (losses * weights).sum(), weights.sum()


def boundary(logits, mask):
    sums, weights = zip(*[boundary_of_image(*image) for image in zip(logits, mask)])
    return sum(sums) / sum(weights)


def several_of_pixels(logits, mask):
    def of_image(logits, mask):
        losses, weights = boundary_of_image(logits, mask)
        return pixel_cross_entropy(logits.unsqueeze(0), mask.unsqueeze(0)) + 0.25 * losses / weights

    return mean_of_images(of_image, logits, mask) + 0.5 * dice(logits, mask)


def pixels_of_outputs(logits, mask):
    """Returns the mean over all images, also over one whose pixels do not count."""
    total = 0
    for image, target in zip(logits, mask):
        if not (target != IGNORED).any():
            continue
        losses, weights = boundary_of_image(image, target)
        plain = F.cross_entropy(image.unsqueeze(0), target.unsqueeze(0), ignore_index=IGNORED)
        total = total + plain + 0.5 * losses / weights + dice(image.unsqueeze(0), target.unsqueeze(0))
    return total / len(mask)


def map_of_outputs(output, targets):
    """Returns the mean over the images of the means over their pixels with a number."""
    total = 0
    for image, target in zip(output, targets):
        counted = ~target.isnan()
        if counted.any():
            total = total + several_of_numbers(image[counted], target[counted])
    return total / len(targets)


def mse(output, targets):
    return F.mse_loss(output, targets)


def l1(output, targets):
    return F.l1_loss(output, targets)


def huber(output, targets):
    return F.huber_loss(output, targets, delta=0.5)


def smooth_l1(output, targets):
    return F.smooth_l1_loss(output, targets, beta=0.5)


def quantile(output, targets):
    return torch.where(targets > output, 0.9 * (targets - output), 0.1 * (output - targets)).mean()


def several_of_numbers(output, targets):
    return 0.5 * F.mse_loss(output, targets) + 2 * F.huber_loss(output, targets, delta=0.5)


def of_samples(draw):
    """Returns the references of losses of samples."""
    classes = len(CLASS_WEIGHTS)
    mask = torch.randint(0, KNOWN, (IMAGES, 6, 5), generator=torch.Generator().manual_seed(8))
    mask[0, :2, 1:4] = IGNORED
    mask[EMPTY] = IGNORED
    labels = torch.tensor([number % classes for number in CLASSES])
    sets = (draw(SAMPLES, classes) > 0).float()
    given = {
        "logits": draw(SAMPLES, classes) * 3,
        "labels": labels,
        "sets": sets,
        "pixels": draw(IMAGES, classes, 6, 5) * 2,
        "mask": mask,
        "output": draw(SAMPLES, 3),
        "targets": draw(SAMPLES, 3),
        "ranks": torch.tensor(CLASSES),
        "map_output": draw(IMAGES, 6, 5),
        "map": draw(IMAGES, 6, 5),
    }
    given["map"][0, 1:3] = torch.nan
    given["map"][EMPTY] = torch.nan
    of_classes = [F.cross_entropy, weighted_cross_entropy, weighted_focal, several_of_classes]
    of_pixels = [pixel_cross_entropy, pixel_focal, dice, jaccard, tversky, boundary, several_of_pixels, pixels_of_outputs]
    found = dict(given)
    for inputs, targets, left_out, losses in [
        ("logits", "labels", LEFT_OUT, of_classes),
        ("logits", "ranks", LEFT_OUT, [corn, several_corn]),
        ("logits", "sets", LEFT_OUT, [binary, binary_focal, several_of_sets]),
        ("pixels", "mask", UNREADABLE, of_pixels),
        ("output", "targets", LEFT_OUT, [mse, l1, huber, smooth_l1, quantile, several_of_numbers]),
        ("map_output", "map", UNREADABLE, [map_of_outputs]),
    ]:
        for loss in losses:
            leaf = given[inputs].double().requires_grad_()
            kept = [number for number in range(len(leaf)) if number != left_out]
            target = given[targets][kept]
            value = loss(leaf[kept], target.double() if target.is_floating_point() else target)
            value.backward()
            found[f"{loss.__name__}.loss"] = value.detach().float().reshape(1)
            found[f"{loss.__name__}.{inputs}"] = leaf.grad.float()
    return found


def main():
    out = begin(__doc__, "torchvision")
    generator = torch.Generator().manual_seed(7)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64).float()
    given = {
        "left": draw(SAMPLES, LENGTH),
        "right": draw(SAMPLES, LENGTH),
        "scale": torch.tensor([3.5]),
        "bias": torch.tensor([-1.25]),
        "gates": draw(SAMPLES, ROWS, EXPERTS).softmax(dim=2),
    }
    found = dict(given)
    kept = [number for number in range(SAMPLES) if number != LEFT_OUT]
    of_losses = {
        clip: ["left", "right", "scale"],
        siglip: ["left", "right", "scale", "bias"],
        supcon: ["left"],
        balance: ["gates"],
        balance_of_two: ["gates"],
    }
    for loss, names in of_losses.items():
        leaves = [given[name].double().requires_grad_() for name in names]
        value = loss(*(leaf[kept] if len(leaf) == SAMPLES else leaf for leaf in leaves))
        value.backward()
        found[f"{loss.__name__}.loss"] = value.detach().float().reshape(1)
        for name, leaf in zip(names, leaves):
            found[f"{loss.__name__}.{name}"] = leaf.grad.float()
    found["classes"] = torch.tensor(CLASSES)
    found["weights"] = torch.tensor([0.0 if number == LEFT_OUT else 1.0 for number in range(SAMPLES)])
    save_file(found, out / "losses.safetensors")
    save_file(of_samples(draw), out / "sample-losses.safetensors")


if __name__ == "__main__":
    main()
