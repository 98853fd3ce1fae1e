#!/usr/bin/env python3
"""Computes references of figures of evaluations by scikit-learn, torchmetrics, py_sod_metrics, MedPy and scikit-image.

    pip install -r tests/parity/requirements.txt -r tests/parity/requirements-figures.txt
    python tests/parity/make_figures.py --out tests/parity/reference

A second run writes the same bytes. README.md describes the file.
"""

import sys
import warnings

import numpy as np
import py_sod_metrics as sod
import torch
from medpy.metric.binary import hd95
from safetensors.torch import save_file
from scipy.ndimage import gaussian_filter
from skimage.metrics import structural_similarity
from sklearn import metrics
from torchmetrics.functional.image import structural_similarity_index_measure
from torchmetrics.functional.segmentation import dice_score, mean_iou

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
from opening import begin  # noqa: E402

CLASSES, POSITIVE, IGNORED = 4, 1, -1
EDGES = [-0.5, 0.25, 1.0]
RANGE = 3.0


def interval(values):
    return 1.96 * np.std(values, ddof=1) / np.sqrt(len(values))


def of_samples(draw):
    logits, labels = draw(60, CLASSES), torch.arange(60) * 7 % CLASSES
    logits[torch.arange(0, 60, 2), labels[::2]] += 2
    found = logits.argmax(1).numpy()
    top = [metrics.top_k_accuracy_score(labels, logits, k=k, labels=range(CLASSES)) for k in (1, 2)]
    right = (torch.topk(logits, 2).indices == labels[:, None]).any(1).double().numpy()
    return {"samples.logits": logits, "samples.labels": labels}, {
        "accuracy": top[0],
        "accuracy.interval": interval((found == labels.numpy()).astype(float)),
        "top2": top[1],
        "top2.interval": interval(right),
        "samples.iou": metrics.jaccard_score(labels, found, average="macro"),
        "kappa": metrics.cohen_kappa_score(labels, found),
        "confusion": metrics.confusion_matrix(labels, found),
        "recalls": metrics.recall_score(labels, found, average=None),
    }


def of_pixels(draw):
    """Masks of three classes, in the last of which one pixel in five does not count."""
    logits = torch.from_numpy(gaussian_filter(draw(5, 3, 14, 18).numpy(), (0, 0, 2, 2))).float() * 4
    masks = (torch.from_numpy(gaussian_filter(draw(5, 3, 14, 18).numpy(), (0, 0, 2, 2))) * 4 + logits).argmax(1)
    masks[1][masks[1] == 2] = 0
    logits[1, 2] = -50
    masks[2:].view(-1)[::5] = IGNORED
    found, counted = logits.argmax(1), masks != IGNORED
    target, predicted = masks[counted].numpy(), found[counted].numpy()
    # For libraries that ignore no pixels: where none counts, both are of a class that is left out.
    one_hot = lambda of: torch.nn.functional.one_hot(torch.where(counted, of, 3), 4)[..., :3].movedim(-1, 1)
    ious, dices = ([], []), ([], [])
    for mask, own, counts in zip(masks, found, counted):
        mask, own = mask[counts].numpy(), own[counts].numpy()
        for all, score in ((ious, metrics.jaccard_score), (dices, metrics.f1_score)):
            all[0].append(score(mask, own, average="macro"))
            if (mask == POSITIVE).any() or (own == POSITIVE).any():
                all[1].append(score(mask == POSITIVE, own == POSITIVE))
    by_torchmetrics = dice_score(one_hot(found), one_hot(masks), 3, average="none", input_format="one-hot")
    assert np.allclose([d[POSITIVE] for d in by_torchmetrics if not d[POSITIVE].isnan()], dices[1], atol=1e-6)
    by_torchmetrics = mean_iou(one_hot(found), one_hot(masks), 3, per_class=True, input_format="one-hot")
    assert np.allclose([i[POSITIVE] for i in by_torchmetrics if i[POSITIVE] >= 0], ious[1], atol=1e-6)
    probabilities = logits.softmax(1).movedim(1, -1)[counted].numpy()
    return {"pixels.logits": logits, "pixels.masks": masks}, {
        "iou": metrics.jaccard_score(target, predicted, average="macro"),
        "ious": metrics.jaccard_score(target, predicted, average=None),
        "dice": metrics.f1_score(target, predicted, average="macro"),
        "images.iou": np.mean(ious[0]),
        "images.iou.interval": interval(ious[0]),
        "images.iou.1": np.mean(ious[1]),
        "images.dice": np.mean(dices[0]),
        "images.dice.1": np.mean(dices[1]),
        "images.dice.1.interval": interval(dices[1]),
        "pixels.accuracy": (target == predicted).mean(),
        "pixels.auc": metrics.roc_auc_score(target == POSITIVE, probabilities[:, POSITIVE]),
    }


def of_objects(draw):
    """Objects of two classes: also none, a whole image, one pixel, and a prediction without any."""
    masks = torch.from_numpy(gaussian_filter(draw(9, 26, 34).numpy(), (0, 4, 4)) > 0.02).long()
    masks[1], masks[2], masks[3] = 0, 1, 0
    masks[3, 20, 5] = 1
    noise = torch.from_numpy(gaussian_filter(draw(9, 26, 34).numpy(), (0, 2, 2))).float()
    logits = torch.stack([torch.zeros(9, 26, 34), (masks - 0.5) * 3 + noise * 12], 1)
    logits[4, 1] = -3
    logits[4, 1, 3:6, 4:9] = -2
    logits[5, 1] = -3
    predicted = (logits.softmax(1)[:, POSITIVE].double() * 255).round().byte().numpy()
    truth = (masks * 255).byte().numpy()
    all = {"s": sod.Smeasure(), "e": sod.Emeasure(), "f": sod.WeightedFmeasure(), "mae": sod.MAE()}
    for image, mask in zip(predicted, truth):
        for one in all.values():
            one.step(pred=image, gt=mask)
    e = all["e"].get_results()["em"]
    found = {
        "s_measure": all["s"].get_results()["sm"],
        "s_measure.interval": interval(all["s"].sms),
        "e_measure": e["curve"].mean(),
        "max_e_measure": e["curve"].max(),
        "adaptive_e_measure": e["adp"],
        "weighted_f": all["f"].get_results()["wfm"],
        "mask_mae": all["mae"].get_results()["mae"],
        "s_measures": all["s"].sms,
        "weighted_fs": all["f"].weighted_fms,
    }
    distances, diagonal = [], np.hypot(26, 34)
    for own, mask in zip(logits.argmax(1).numpy(), masks.numpy()):
        if own.any() or mask.any():
            distances.append(hd95(own, mask) if own.any() and mask.any() else diagonal)
    found["hd95"], found["hd95.interval"] = np.mean(distances), interval(distances)
    return {"objects.logits": logits, "objects.masks": masks}, found


def of_numbers(draw):
    target = draw(40, 3)
    output = target + draw(40, 3) * 0.3
    t, o = target.double().numpy(), output.double().numpy()
    maps = torch.from_numpy(gaussian_filter(draw(4, 1, 20, 23).numpy(), (0, 0, 2, 2))).float() * 5 + 0.5
    predicted = maps + torch.from_numpy(gaussian_filter(draw(4, 1, 20, 23).numpy(), (0, 0, 1, 1))).float()
    m, p = maps.double().numpy(), predicted.double().numpy()
    each = [
        structural_similarity(
            a[0], b[0], gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=RANGE
        )
        for a, b in zip(p, m)
    ]
    # torchmetrics also counts windows over mirrored borders in its mean.
    _, full = structural_similarity_index_measure(
        predicted.double(), maps.double(), data_range=RANGE, return_full_image=True
    )
    assert abs(float(full[..., 5:-5, 5:-5].mean()) - np.mean(each)) < 1e-6
    holes = maps.clone()
    holes.view(-1)[::7] = float("nan")
    known = ~np.isnan(holes.numpy())
    tm, pm = m[known], p[known]
    found = {
        "mae": metrics.mean_absolute_error(t, o),
        "maes": metrics.mean_absolute_error(t, o, multioutput="raw_values"),
        "rmse": metrics.root_mean_squared_error(t, o),
        "r2": metrics.r2_score(t, o),
        "maps.mae": metrics.mean_absolute_error(tm, pm),
        "maps.rmse": metrics.root_mean_squared_error(tm, pm),
        "maps.r2": metrics.r2_score(tm, pm),
        "ssim": np.mean(each),
        "ssim.interval": interval(each),
    }
    above = tm > 0
    ratio = np.maximum(pm[above] / tm[above], np.where(pm[above] > 0, tm[above] / pm[above], np.inf))
    for power in (1, 2, 3):
        found[f"delta{power}"] = (ratio < 1.25**power).mean()
    for number, low in enumerate(EDGES):
        high = EDGES[number + 1] if number + 1 < len(EDGES) else np.inf
        band = (tm >= low) & (tm < high)
        found[f"maps.rmse.{number}"] = metrics.root_mean_squared_error(tm[band], pm[band])
    means = np.array([[np.abs(a - b)[k].sum(), k.sum()] for a, b, k in zip(p, m, known)])
    mean = means[:, 0].sum() / means[:, 1].sum()
    distances = means[:, 0] - mean * means[:, 1]
    found["maps.mae.interval"] = 1.96 * np.sqrt((distances**2).sum() / 3 / 4) / means[:, 1].mean()
    given = {"numbers.output": output, "numbers.target": target, "maps.output": predicted, "maps.target": maps}
    return given | {"maps.holes": holes}, found


def main():
    out = begin(__doc__)
    warnings.simplefilter("ignore")
    generator = torch.Generator().manual_seed(11)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64).float()
    given = {}
    for part in (of_samples, of_pixels, of_objects, of_numbers):
        inputs, found = part(draw)
        given |= inputs
        given |= {name: torch.tensor(np.array(value, dtype=np.float64)).reshape(-1) for name, value in found.items()}
    save_file({name: tensor.contiguous() for name, tensor in given.items()}, out / "figures.safetensors")


if __name__ == "__main__":
    main()
