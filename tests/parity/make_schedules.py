#!/usr/bin/env python3
"""Computes references of PyTorch's and transformers' schedulers, and of PyTorch's gradient scaler.

    pip install -r tests/parity/requirements.txt
    python tests/parity/make_schedules.py --out tests/parity/reference

A second run writes the same bytes. README.md describes both files.
"""

import json
import sys
import warnings

import torch
from torch.optim import lr_scheduler
from transformers import get_inverse_sqrt_schedule, get_wsd_schedule

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
from opening import begin, version  # noqa: E402

PEAK = 3e-3
TOTAL = 240
EPOCH = 20  # steps
SCALER_STEPS = 10_000


def sgd(lr):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))], lr=lr)


def rate(optimizer):
    return optimizer.param_groups[0]["lr"]


def rise(optimizer, warmup):
    """Returns the warm-up: step t runs at peak * (t + 1) / warmup."""
    return lr_scheduler.LinearLR(optimizer, start_factor=1.0 / warmup, end_factor=1.0, total_iters=warmup - 1)


def scheduler(optimizer, schedule, units, offset):
    """Returns PyTorch's scheduler for a decay over `units` units, after `offset` units of the run."""
    settings = dict(schedule["decay"])
    kind = settings.pop("kind")
    if kind == "constant":
        return lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    if kind == "linear":
        end = settings["min_lr"] / schedule["peak"]
        return lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=end, total_iters=units)
    if kind == "cosine":
        return lr_scheduler.CosineAnnealingLR(optimizer, T_max=units, eta_min=settings["min_lr"])
    if kind == "polynomial":
        return lr_scheduler.PolynomialLR(optimizer, total_iters=units, power=settings["power"])
    if kind == "restarts":
        return lr_scheduler.CosineAnnealingWarmRestarts(
            optimizer, T_0=settings["first"], T_mult=settings["stretch"], eta_min=settings["min_lr"]
        )
    if kind == "inverse_sqrt":
        return get_inverse_sqrt_schedule(optimizer, num_warmup_steps=0, timescale=settings["timescale"])
    if kind == "stable":
        falling = round(settings["fall"] * units)
        return get_wsd_schedule(
            optimizer,
            num_warmup_steps=0,
            num_decay_steps=falling,
            num_stable_steps=units - falling,
            decay_type={"sqrt": "1-sqrt"}.get(settings["shape"], settings["shape"]),
            min_lr_ratio=settings["min_lr"] / schedule["peak"],
        )
    if kind == "step":
        return lr_scheduler.StepLR(optimizer, step_size=settings["every"], gamma=settings["gamma"])
    if kind == "multi_step":
        # Milestones count from the run's beginning; PyTorch's count from the scheduler's beginning.
        milestones = [milestone - offset for milestone in settings["milestones"]]
        return lr_scheduler.MultiStepLR(optimizer, milestones=milestones, gamma=settings["gamma"])
    if kind == "exponential":
        return lr_scheduler.ExponentialLR(optimizer, gamma=settings["gamma"])
    if kind == "one_cycle":
        return lr_scheduler.OneCycleLR(
            optimizer, max_lr=schedule["peak"], total_steps=units, cycle_momentum=False, anneal_strategy="cos", **settings
        )
    raise ValueError(kind)


def rates(schedule):
    """Returns the learning rate of every step, as a training loop sees it."""
    warmup, total, epoch = schedule["warmup_steps"], schedule["total_steps"], schedule["steps_per_epoch"]
    optimizer = sgd(schedule["peak"])
    seen = []

    def take(number, scheduler):
        for _ in range(number):
            seen.append(rate(optimizer))
            optimizer.step()
            if scheduler is not None:
                scheduler.step()

    if schedule["per"] == "step":
        if warmup > 0:
            both = [rise(optimizer, warmup), scheduler(optimizer, schedule, total - warmup, warmup)]
            take(total, lr_scheduler.SequentialLR(optimizer, both, milestones=[warmup]))
        else:
            take(total, scheduler(optimizer, schedule, total, 0))
        return seen
    # Per epoch: PyTorch has no scheduler that mixes steps and epochs; a second optimizer does the warm-up.
    if warmup > 0:
        take(warmup, rise(optimizer, warmup))
        optimizer = sgd(schedule["peak"])
    first, epochs = warmup // epoch, -(-total // epoch)
    main = scheduler(optimizer, schedule, epochs - first, first)
    for end in range((first + 1) * epoch, total + epoch, epoch):
        take(min(end, total) - len(seen), None)
        main.step()
    return seen


def schedule_cases():
    def case(decay, per="step", warmup=0, total=TOTAL):
        return {
            "peak": PEAK,
            "warmup_steps": warmup,
            "total_steps": total,
            "steps_per_epoch": EPOCH,
            "per": per,
            "decay": decay,
        }

    linear = {"kind": "linear", "min_lr": 1e-5}
    cosine = {"kind": "cosine", "min_lr": 1e-6}
    step = {"kind": "step", "every": 7, "gamma": 0.9}
    steep = {"kind": "exponential", "gamma": 0.7}
    slow = {"kind": "exponential", "gamma": 0.98}
    cycle = {"kind": "one_cycle", "pct_start": 0.3, "div_factor": 25.0, "final_div_factor": 1e4}
    fast = {"kind": "one_cycle", "pct_start": 0.13, "div_factor": 10.0, "final_div_factor": 100.0}

    power = {"kind": "polynomial", "min_lr": 0.0, "power": 0.9}

    def restarts(first, stretch):
        return {"kind": "restarts", "min_lr": 1e-6, "first": first, "stretch": stretch}

    def stable(shape):
        return {"kind": "stable", "min_lr": 1e-5, "fall": 0.2, "shape": shape}

    def milestones(*values):
        return {"kind": "multi_step", "milestones": list(values), "gamma": 0.3}

    return {
        "constant": case({"kind": "constant"}),
        "constant_warmup": case({"kind": "constant"}, warmup=30),
        "linear": case(linear),
        "linear_to_zero": case({"kind": "linear", "min_lr": 0.0}, warmup=1),
        "linear_warmup": case(linear, warmup=25),
        "linear_epochs": case(linear, per="epoch", warmup=40),
        "cosine": case(cosine),
        "cosine_warmup": case(cosine, warmup=25),
        "cosine_to_zero": case({"kind": "cosine", "min_lr": 0.0}, warmup=2),
        "cosine_epochs": case(cosine, per="epoch"),
        "cosine_epochs_warmup": case(cosine, per="epoch", warmup=60),
        # Warm-up and run both end in the middle of an epoch.
        "cosine_epochs_uneven": case(cosine, per="epoch", warmup=47, total=233),
        "step": case(step),
        "step_warmup": case(step, warmup=10),
        "step_epochs": case({"kind": "step", "every": 3, "gamma": 0.1}, per="epoch", warmup=25),
        "milestones": case(milestones(50, 51, 200)),
        "milestones_warmup": case(milestones(60, 30, 200, 200), warmup=30),
        "milestones_epochs": case(milestones(3, 6, 9), per="epoch", warmup=33),
        "exponential": case(slow),
        "exponential_warmup": case(slow, warmup=16),
        "exponential_epochs": case(steep, per="epoch", warmup=20),
        "polynomial": case(power),
        "polynomial_warmup": case(power, warmup=25),
        "polynomial_epochs": case(power, per="epoch"),
        "restarts": case(restarts(17, 1)),
        "restarts_stretched": case(restarts(10, 3), warmup=25),
        "restarts_epochs": case(restarts(2, 2), per="epoch", warmup=40),
        "inverse_sqrt": case({"kind": "inverse_sqrt", "timescale": 30}, warmup=30),
        "inverse_sqrt_slow": case({"kind": "inverse_sqrt", "timescale": 10000}),
        "inverse_sqrt_epochs": case({"kind": "inverse_sqrt", "timescale": 3}, per="epoch"),
        "stable": case(stable("linear")),
        "stable_warmup": case(stable("cosine"), warmup=40),
        "stable_to_zero": case({**stable("sqrt"), "min_lr": 0.0}),
        "stable_epochs": case(stable("sqrt"), per="epoch", warmup=40),
        "one_cycle": case(cycle),
        "one_cycle_fast": case(fast),
        "one_cycle_epochs": case(cycle, per="epoch"),
    }


def changes(values):
    """Returns [step, value] for each step whose value differs from the step before."""
    return [[step, value] for step, value in enumerate(values) if step == 0 or value != values[step - 1]]


def schedules_reference():
    cases = {}
    for name, schedule in schedule_cases().items():
        seen = rates(schedule)
        assert len(seen) == schedule["total_steps"], name
        cases[name] = {"schedule": schedule, "rates": changes(seen)}
    return cases


def scaler_cases():
    """Returns name -> GradScaler settings, the unscaled gradient, and the steps with infinite or NaN gradients.

    Steps are [first, last, stride]: every stride-th step from first to last.
    """
    defaults = {"init_scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}
    return {
        # Clean steps up to growth; bad gradients after growth, at the next growth's step and at the step before;
        # bursts.
        "defaults": {
            "settings": defaults,
            "gradient": 0.75,
            "bad": [[0, 2, 1], [2003, 2003, 1], [4003, 4003, 1], [6002, 6002, 1], [6004, 6040, 4]],
        },
        # A short interval and factors that are not powers of two: each product is rounded. Grows to the largest
        # float32, where growth stops, then falls in bursts and grows again.
        "to_infinity": {
            "settings": {"init_scale": 1e30, "growth_factor": 1.7, "backoff_factor": 0.37, "growth_interval": 13},
            "gradient": 0.5,
            "bad": [[12, 40, 14], [1000, 1003, 1], [3000, 3100, 1], [6012, 6500, 13], [8000, 8005, 1]],
        },
        # Falls endlessly. From 2^-128 on, the reciprocal is infinite. PyTorch checks before it multiplies:
        # it takes steps with infinite gradients; at 0 they are NaN.
        "to_zero": {
            "settings": {"init_scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 100},
            "gradient": 1.0,
            "bad": [[550, 9999, 50]],
        },
    }


def scaler_trace(case):
    """Runs a scaler with a real parameter and optimizer; returns each step's state, and the skipped steps."""
    bad = {step for first, last, stride in case["bad"] for step in range(first, last + 1, stride)}
    scaler = torch.amp.GradScaler("cpu", **case["settings"])
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    inject = torch.tensor([1.0, 1.0, 1.0])
    scales, trackers, skipped = [], [], []
    taken = 0
    for step in range(SCALER_STEPS):
        optimizer.zero_grad()
        inject[1] = 1.0
        if step in bad:
            inject[1] = float("inf") if step % 3 else float("nan")
        scaler.scale((parameter * inject * case["gradient"]).sum()).backward()
        scaler.unscale_(optimizer)
        before = parameter.detach().clone()
        scaler.step(optimizer)
        moved = not torch.equal(before, parameter.detach())
        skipped.append(0 if moved else 1)
        taken += moved
        with torch.no_grad():
            parameter.zero_()  # otherwise it grows until a step no longer changes it
        scaler.update()
        scales.append(scaler.get_scale())
        trackers.append(scaler.state_dict()["_growth_tracker"])
    # The tracker rises by 1 per step: only other changes are written.
    resets = [
        [step, tracker] for step, tracker in enumerate(trackers) if tracker != (trackers[step - 1] if step else 0) + 1
    ]
    print(f"scaler, {taken} steps of {SCALER_STEPS} taken, scale from {min(scales):.3g} to {max(scales):.3g}")
    return {**case, "steps": SCALER_STEPS, "scales": changes(scales), "tracker_resets": resets, "skipped": changes(skipped)}


def write(path, about, cases):
    """Writes one case per line, so that a diff shows the changed case. `repr` of a float is exact."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items())
    path.write_text(json.dumps(about)[:-1] + ', "cases": {\n' + lines + "\n}}\n", encoding="utf-8")
    print(f"{path.name}: {path.stat().st_size} bytes")


def main():
    out = begin(__doc__)
    # SequentialLR steps its schedulers in a way that causes warnings.
    warnings.filterwarnings("ignore", module="torch.optim.lr_scheduler")
    write(out / "schedules.json", {"torch": version("torch")}, schedules_reference())
    write(out / "scaler.json", {"torch": version("torch")}, {name: scaler_trace(case) for name, case in scaler_cases().items()})


if __name__ == "__main__":
    main()
