#!/usr/bin/env python3
"""Draws the pictures of the documentation, as SVG, from recorded figures.

    python3 docs/pictures/draw.py            # writes docs/pictures/*.svg
    python3 docs/pictures/draw.py --check    # fails if a picture differs from its figures

Figures come from data/, which record.sh writes, and from tables in docs/benchmarks. A viewer may show the picture for light themes on
a dark page, and the reverse. So every colour is readable on both; the style for dark themes only improves the contrast of text.
"""

import csv
import json
import re
import sys
import textwrap
from functools import partial
from html import escape
from math import log10
from pathlib import Path

HERE = Path(__file__).parent
WIDTH = 520
STYLE = """
text { font: 16px system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: #67707b }
.title { font-size: 17px; font-weight: 600 } .strong { font-weight: 600 } .small { font-size: 15px } .end { text-anchor: end }
.middle { text-anchor: middle } .on { fill: #fff; font-weight: 600 }
.grid { stroke: #8b949e; stroke-opacity: .35 } .axis { stroke: #8b949e; stroke-width: 1.5 } .dash { stroke-dasharray: 5 4 }
.box { fill: #8b949e; fill-opacity: .12; stroke: #8b949e; stroke-width: 1.5 }
.mono { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #e6edf3; white-space: pre }
.prompt { fill: #7ee787; font-weight: 600 } .cut { fill: #9198a1 }
@media (prefers-color-scheme: dark) { text:not(.on, .mono) { fill: #868f99 } }
""".strip()
COLOURS = {"blue": "#3579c8", "orange": "#c2691a", "green": "#368f50", "purple": "#8f62c9", "grey": "#6e7781"}


def number(value):
    """Returns a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


class Picture:
    """The elements of one SVG. A `kind` is a list of classes of `STYLE`."""

    def __init__(self, title, width=WIDTH):
        self.title, self.width, self.height, self.parts = title, width, 0, []

    def add(self, tag, content=None, **attributes):
        words = [f'{name.rstrip("_").replace("_", "-")}="{value if isinstance(value, str) else number(value)}"'
                 for name, value in attributes.items() if value]
        self.parts.append(f'<{tag} {" ".join(words)}' + ("/>" if content is None else f">{escape(content, quote=False)}</{tag}>"))

    def text(self, x, y, content, kind="", **more):
        self.add("text", str(content), x=x, y=y, class_=kind, **more)
        self.height = max(self.height, y + 8)

    def rect(self, x, y, width, height, colour="", kind="", radius=3, **more):
        self.add("rect", x=x, y=y, width=width, height=height, rx=radius, fill=COLOURS.get(colour, colour), class_=kind, **more)
        self.height = max(self.height, y + height + 2)

    def label(self, x, y, width, height, colour, content):
        self.rect(x, y, width, height, colour)
        self.text(x + width / 2, y + height / 2 + 5, content, "on small middle")

    def line(self, start, end, kind="grid"):
        self.add("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], class_=kind)

    def arrow(self, start, end):
        """Draws a horizontal or vertical arrow."""
        right, down = ((b > a) - (b < a) for a, b in zip(start, end))
        (x, y), tip = end, ((0, 0), (-8, 4), (-8, -4))
        self.line(start, (x - 6 * right, y - 6 * down), "axis")
        points = [f"{number(x + a * right + b * down)},{number(y + a * down + b * right)}" for a, b in tip]
        self.add("polygon", points=" ".join(points), fill="#8b949e")

    def curve(self, points, colour, width=2.0, opacity=None):
        points = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self.add("polyline", points=points, fill="none", stroke=COLOURS[colour], stroke_width=width, stroke_opacity=opacity)

    def dots(self, points, colour, radius):
        for x, y in points:
            self.add("circle", cx=x, cy=y, r=radius, fill=COLOURS.get(colour, colour))

    def legend(self, y, entries):
        for x, colour, content in entries:
            self.rect(x, y - 11, 12, 12, colour)
            self.text(x + 18, y, content, "small")

    def chart(self, top, height, heading, x, y, xs, ys, log=(False, False), form="g", numbers=True):
        """Draws the scales of a chart. Returns a function from values to coordinates. Scales in `log` are of base 10."""
        left, width = 56, WIDTH - 66
        scales = [log10 if is_log else float for is_log in log]

        def at(*values):
            shares = [(scale(value) - scale(low)) / (scale(high) - scale(low)) for scale, value, (low, high) in zip(scales, values, (x, y))]
            return left + shares[0] * width, top + height - shares[1] * height

        self.text(0, top - 14, heading, "small")
        for value in ys:
            self.line(at(x[0], value), at(x[1], value))
            self.text(left - 7, at(x[0], value)[1] + 5, f"{value:{form}}".replace("e-0", "e-"), "small end")
        for value in xs:
            across = at(value, y[0])[0]
            self.line((across, top + height), (across, top + height + 5), "axis")
            if numbers:
                self.text(across, top + height + 21, value, "small middle")
        self.line(at(x[0], y[0]), at(x[1], y[0]), "axis")
        return at

    def svg(self):
        size = f'width="{self.width + 12}" height="{number(self.height)}" viewBox="-6 0 {self.width + 12} {number(self.height)}"'
        head = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">', f"<title>{self.title}</title>", f"<style>{STYLE}</style>"]
        return "\n".join([*head, *self.parts, "</svg>\n"])


def titled(title):
    picture = Picture(title)
    picture.text(0, 18, title, "title")
    return picture


def load(name):
    return json.loads((HERE / "data" / name).read_text())


def tables(page):
    """Returns the rows of all tables of a benchmark page, as lists of cells."""
    lines = (HERE.parent / "benchmarks" / page).read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def batch():
    """One effective batch on 1, 2 and 4 GPUs, each planned by `dtrain plan`."""
    plans = [load(f"batch-{ranks}.json") for ranks in (1, 2, 4)]
    total = plans[0]["subject"]["effective_batch"]
    picture = titled(f"A step of {total} samples on 1, 2 and 4 GPUs")
    pitch, left, y = 18, 84, 40
    for plan in plans:
        fit = plan["rows"][0]["fit"]
        micro, accum, ranks = fit["prediction"]["cut"]["micro_batch"], fit["grad_accum_steps"], plan["nproc"]
        assert micro * accum * ranks == total and plan["subject"] == plans[0]["subject"]
        for rank, colour in zip(range(ranks), ("blue", "orange", "green", "purple")):
            top = y + rank * 28
            picture.text(0, top + 17, f"GPU {rank}", "strong")
            for step in range(accum):
                x = left + step * (micro * pitch + 9)
                picture.rect(x - 4, top, micro * pitch + 5, 23, kind="box")
                for sample in range(micro):
                    picture.rect(x + sample * pitch, top + 4, 15, 15, colour)
        end, height = left + accum * (micro * pitch + 9), ranks * 28 - 5
        picture.label(end, y, 68, height, "grey", "update")
        if ranks == 1:
            picture.text(left, y + 44, f"{micro} x {accum} x {ranks} = {total}: micro-batch x accumulation x GPUs")
            y += 26
        else:
            picture.text(end + 84, y + height / 2 + 6, f"{micro} x {accum} x {ranks} = {total}")
        y += height + 22
    picture.arrow((left, y - 6), (left + 420, y - 6))
    picture.text(left, y + 14, "time", "small")
    picture.text(0, y + 40, "The same samples, learning rate and mean gradient.")
    return picture


OWNERS = {"activations": "blue", "workspace": "grey", "optimizer": "orange", "gradients": "purple", "parameters": "green"}


def owners(title, unit, columns, note, budget=None):
    """Draws a bar for each of `columns`: its name, its short name, its total and its memory by owner."""
    picture, y = titled(title), 34
    scale = WIDTH / max(total for _, _, total, _ in columns)
    digits = 1 if unit == "MiB" else 2
    for name, _, total, values in columns:
        x = 0.0
        picture.text(0, y + 18, name)
        picture.text(WIDTH, y + 18, f"{total:.{digits}f} {unit}", "strong end")
        for owner, colour in OWNERS.items():
            picture.rect(x, y + 26, max(values[owner] * scale - 1, 0.5), 30, colour)
            x += values[owner] * scale
        y += 66
    if budget:
        picture.line((budget * scale, y - 41), (budget * scale, y - 6), "axis dash")
        picture.text(budget * scale + 8, y - 20, f"budget {budget} {unit}", "small")
    ends = [WIDTH - 106 * index for index in reversed(range(len(columns)))]
    for end, (_, short, _, _) in zip(ends, columns):
        picture.text(end, y + 14, short, "small end")
    for index, (owner, colour) in enumerate(OWNERS.items()):
        row = y + 40 + 26 * index
        picture.rect(0, row - 12, 14, 14, colour)
        picture.text(22, row, owner)
        for end, (_, _, _, values) in zip(ends, columns):
            picture.text(end, row, f"{values[owner]:.{digits}f} {unit}", "end")
    picture.text(0, row + 30, note, "small")
    return picture


def memory_by_owner():
    """A U-Net without and under a budget, measured: the table of the memory report."""
    rows = tables("memory_2-cores_2026-11.md")
    start = next(index for index, row in enumerate(rows) if row[0].startswith("Owner"))
    names, values = rows[start], {row[0]: [float(cell.split()[0]) for cell in row[1:]] for row in rows[start + 2 :]}
    budget = int(re.search(r"Budget of (\d+) MiB", names[2])[1])
    columns = [(names[index + 1], short, values["together"][index], {owner: values[owner][index] for owner in OWNERS})
               for index, short in enumerate(("no budget", f"{budget} MiB"))]
    return owners("Memory of a U-Net by owner, at the peak", "MiB", columns, "Effective batch 8 in both runs. Measured on a CPU.", budget)


def plan_by_owner():
    """The ViT of docs/out-of-memory.md on two sizes of GPU, predicted."""
    plan, columns, gib = load("plan.json"), [], 1024**3
    fits = [(plan["plain"], "All samples at once", "at once")]
    for row in reversed(plan["rows"]):
        size, fit = f"{row['gpu']['bytes'] / gib:g} GiB", row["fit"]["prediction"]
        fits.append((fit, f"GPU of {size}: micro-batches of at most {fit['cut']['micro_batch']}", size))
    columns = [(name, short, fit["peak"] / gib, {owner: fit["owners"][owner] / gib for owner in OWNERS}) for fit, name, short in fits]
    note = f"Effective batch {plan['subject']['effective_batch']} on every GPU. Predicted by dtrain plan."
    return owners("Memory of a ViT-B/16 by owner, at the peak", "GiB", columns, note)


def prediction():
    """Predicted and measured peaks: the two tables of the memory report."""
    groups = []
    for row in tables("memory_2-cores_2026-11.md"):
        if row[0] == "Configuration":
            groups.append([])
        elif groups and len(row) == 4 and row[1].endswith("MiB") and row[3].endswith("%"):
            groups[-1].append([float(cell.split()[0].rstrip("%")) for cell in row[1:]])
    picture = titled(f"Predicted and measured peak memory, {sum(map(len, groups))} cases")
    limits, ticks = (30, 3000), (50, 100, 200, 500, 1000, 2000)
    peak = picture.chart(62, 250, "predicted, MiB", limits, limits, ticks, ticks, (True, True), numbers=False)
    error = picture.chart(356, 96, "error of the prediction", limits, (-0.03, 0.03), ticks, (-0.03, 0, 0.03), (True, False), ".0%")
    picture.line(peak(30, 30), peak(3000, 3000), "axis dash")
    for colour, rows in zip(("blue", "orange"), groups):
        picture.dots([peak(*row[:2]) for row in rows] + [error(row[0], row[2] / 100) for row in rows], colour, 4)
    worst = max(abs(row[2]) for rows in groups for row in rows)
    picture.text(WIDTH - 10, 262, f"largest error {worst:.2f}%", "strong end")
    picture.text(WIDTH - 10, 494, "measured, MiB", "small end")
    picture.legend(520, [(0, "blue", f"{len(groups[0])} of built-in networks"), (250, "orange", f"{len(groups[1])} of other networks")])
    return picture


def recorded(name):
    """Returns the losses and the accuracies of each run of a table, by step."""
    losses, accuracies = {}, {}
    for row in csv.DictReader((HERE / "data" / name).read_text().splitlines()):
        for column, runs in (("loss", losses), ("accuracy", accuracies)):
            if row[column]:
                runs.setdefault(row["run"], {})[int(row["step"])] = float(row[column])
    return losses, accuracies


def ranks():
    """The training loss of a GPT on 1 and 2 ranks, and the difference."""
    (one, two), picture = recorded("ranks.csv")[0].values(), titled("Training loss of a GPT on 1 and 2 ranks")
    difference = {step: abs(one[step] - two[step]) for step in one}
    x, ticks, least = (0, max(one)), range(0, max(one) + 1, 100), 1e-8
    loss = picture.chart(62, 190, "training loss", x, (2, 4.5), ticks, (2, 3, 4), numbers=False)
    picture.curve([loss(*point) for point in one.items()], "orange", 7, "0.55")
    picture.curve([loss(*point) for point in two.items()], "blue")
    picture.legend(78, [(310, "orange", "1 rank"), (420, "blue", "2 ranks")])
    words = f"difference of the losses: at most {max(difference.values()):.1g}"
    below = picture.chart(298, 90, words, x, (least, 1e-2), ticks, (least, 1e-5, 1e-2), (False, True))
    picture.dots([below(step, max(value, least)) for step, value in difference.items()], "green", 1.6)
    picture.text(WIDTH - 10, 430, "step", "small end")
    return picture


def killed():
    """A run that was killed and resumed on another number of ranks, beside one that was not killed."""
    losses, accuracies = recorded("killed.csv")
    last, kill, resume = max(losses["whole"]), max(losses["killed"]), min(losses["resumed"])
    picture, x, ticks = titled(f"Killed after step {kill} of {last}, resumed on one rank"), (0, last), range(0, last + 1, last // 4)
    loss = picture.chart(62, 190, "training loss", x, (2.5, 5), ticks, (3, 4, 5), numbers=False)
    accuracy = picture.chart(298, 100, "test accuracy", x, (0, 0.2), ticks, (0, 0.1, 0.2), form=".0%")
    for at, low, high in ((loss, 2.5, 5), (accuracy, 0, 0.2)):
        picture.line(at(kill, low), at(kill, high), "axis dash")
    picture.text(loss(kill, 5)[0] + 6, 76, "SIGKILL", "strong small")
    for name, colour, width, opacity in (("whole", "grey", 7, "0.7"), ("killed", "blue", 2, None), ("resumed", "orange", 2, None)):
        picture.curve([loss(*point) for point in losses[name].items()], colour, width, opacity)
        points = [accuracy(*point) for point in accuracies[name].items()]
        picture.curve(points, colour, width, opacity)
        picture.dots(points, colour, 3)
    picture.text(WIDTH - 10, 440, "step", "small end")
    entries = [(0, "grey", "not killed"), (116, "blue", "2 ranks, until the kill"), (310, "orange", f"1 rank, from step {resume}")]
    picture.legend(466, entries)
    return picture


def finetune():
    """Fine-tuning with and without changes, mixing, smoothing, layer decay and a moving average: three seeds each."""
    (losses, accuracies), picture = recorded("finetune.csv"), titled("Fine-tuning on 50 classes, three seeds each")
    last = max(losses["full-1"])
    x, ticks = (0, last), range(0, last + 1, last // 4)
    accuracy = picture.chart(62, 190, "test accuracy", x, (0.1, 0.4), ticks, (0.1, 0.2, 0.3, 0.4), form=".0%", numbers=False)
    loss = picture.chart(298, 100, "test loss", x, (2.5, 4.5), ticks, (2.5, 3.5, 4.5))
    for run, points in accuracies.items():
        colour = "blue" if run.startswith("full") else "orange"
        picture.curve([accuracy(*point) for point in points.items()], colour, 1.6, "0.85")
        picture.curve([loss(*point) for point in losses[run].items()], colour, 1.6, "0.85")
    picture.text(WIDTH - 10, 440, "step", "small end")
    picture.legend(466, [(56, "blue", "with all of them"), (250, "orange", "without")])
    return picture


def gallery(entry):
    """The figures of an entry of docs/examples/README.md, by step."""
    shown = load("gallery.json")[entry]
    lines = (HERE / "data" / "gallery.csv").read_text().splitlines()
    rows = [row for row in csv.DictReader(lines) if row["entry"] == entry]
    picture, last = titled(shown["title"]), max(int(row["step"]) for row in rows)
    for top, chart in zip((62, 266), shown["charts"]):
        steps, numbers = [round(last * quarter / 4) for quarter in range(5)], chart is shown["charts"][-1]
        at = picture.chart(top, 150, chart["words"], (0, last), chart["limits"], steps, chart["ticks"], form=chart["form"], numbers=numbers)
        for run, (_, colour) in shown["runs"].items():
            found = [row for row in rows if (row["run"], row["figure"]) == (run, chart["figure"])]
            picture.curve([at(int(row["step"]), float(row["value"])) for row in found], colour)
    picture.text(WIDTH - 10, top + 192, "step", "small end")
    picture.legend(top + 218, [(56 + 116 * place, colour, words) for place, (words, colour) in enumerate(shown["runs"].values())])
    return picture


def architecture():
    """The processes of a run, and the crates of which they are built, as docs/architecture.md describes them."""
    picture = titled("The processes of a run")
    boxes = [
        (0, 34, 130, 98, "guardian", ["kills what", "remains of", "the run"]),
        (160, 34, 360, 98, "dtrain, the launcher", ["recipe, plan, GPUs, report"]),
        (0, 302, 520, 58, "run directory", ["checkpoints, metrics.jsonl, plan.json, logs, result.json"]),
        *((x, 188, 122, 58, name, ["dtrain-worker"]) for x, name in ((0, "rank 0"), (186, "rank 1"), (372, "rank N-1"))),
    ]
    for x, y, width, height, name, lines in boxes:
        picture.rect(x, y, width, height, kind="box", radius=7)
        picture.text(x + 12, y + 24, name, "strong")
        for index, line in enumerate(lines):
            picture.text(x + 12, y + 45 + 19 * index, line, "small")
    picture.label(172, 92, 336, 30, "blue", "dtrain-agent: starts and watches")
    arrows = [((130, 83), (160, 83)), ((220, 132), (220, 188)), ((280, 188), (280, 132)), ((507, 132), (507, 302))]
    arrows += [((x, 217), (x + way * 32, 217)) for x in (154, 340) for way in (1, -1)] + [((x, 246), (x, 302)) for x in (61, 247, 433)]
    for start, end in arrows:
        picture.arrow(start, end)
    for x, y, words, kind in (
        (211, 155, "to each rank: RANK,", "small end"), (211, 173, "WORLD_SIZE, ...", "small end"),
        (290, 155, "output, heartbeats,", "small"), (290, 173, "exit codes", "small"),
        (70, 270, "gradients by shared", "small"), (70, 288, "memory, Gloo, NCCL", "small"), (0, 400, "Their crates", "title"),
        (0, 433, "dtrain", "strong"), (281, 433, "do not link libtorch", "small"), (0, 471, "dtrain-worker", "strong"),
        (400, 507, "binds libtorch", "small"),
    ):
        picture.text(x, y, words, kind)
    for y, names in ((413, ["agent", "batch", "job"]), (451, ["models", "collectives", "data"]), (487, ["shared-memory", "torch-shim"])):
        x = 130
        for name in names:
            width = 9.5 * len(name) + 16
            picture.label(x, y, width, 30, "blue" if y == 413 else "orange", name)
            x += width + 8
    picture.label(0, 527, 520, 32, "green", "dtrain-common: recipe, environment, files, exit codes")
    return picture


def terminal(name, title, hidden, columns=84):
    """A recorded terminal. Lines that match `hidden` are left out, and the picture shows dots for them."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", (HERE / "data" / f"{name}.txt").read_text().replace("\r", ""))
    lines = []
    for line in text.rstrip("\n").split("\n"):
        if not re.search(hidden, line):
            kind = "mono prompt" if line.startswith("$ ") else "mono"
            lines += [(part, kind) for part in textwrap.wrap(line, columns, subsequent_indent="    ", break_on_hyphens=False) or [""]]
        elif lines[-1][1] != "mono cut":
            lines.append((re.match(r" *(\[rank \d\] )?", line)[0] + "...", "mono cut"))
    picture = Picture(title, round(columns * 7.8 + 32))
    picture.rect(0, 0, picture.width, len(lines) * 18 + 42, "#161b22", radius=9, stroke="#57606a")
    picture.dots([(20, 17)], "#ff5f57", 5), picture.dots([(38, 17)], "#febc2e", 5), picture.dots([(56, 17)], "#28c840", 5)
    for row, (line, kind) in enumerate(lines):
        start, words = len(line) - len(line.lstrip()), line.strip()
        if words:
            picture.text(16 + 7.8 * start, 46 + row * 18, words, kind, textLength=7.8 * len(words), lengthAdjust="spacingAndGlyphs")
    return picture


PICTURES = {
    "batch": batch, "memory-by-owner": memory_by_owner, "plan-by-owner": plan_by_owner, "prediction": prediction, "ranks": ranks,
    "killed": killed, "finetune": finetune, "architecture": architecture,
    **{f"example-{entry}": partial(gallery, entry) for entry in load("gallery.json")},
    "plan": lambda: terminal("plan", "dtrain plan in a terminal", r"^  (ema|buffers)|progressive|model\.freeze|images of|image_size"),
    "failing-rank": lambda: terminal("failing-rank", "A rank fails", r"^\[rank \d\] \[rank\d\]: ( |Traceback)"),
}


def main(check):
    stale = {path.name for path in HERE.glob("*.svg") if path.stem not in PICTURES}
    for name, draw in PICTURES.items():
        path, svg = HERE / f"{name}.svg", draw().svg()
        if not path.exists() or path.read_text() != svg:
            stale.add(path.name)
            if not check:
                path.write_text(svg)
    if check and stale:
        sys.exit(f"pictures differ from their figures: {', '.join(sorted(stale))}; run python3 docs/pictures/draw.py")


if __name__ == "__main__":
    main(sys.argv[1:] == ["--check"])
