// Curves by uPlot. A chart lives as long as its lines stay the same, so that its zoom stays when data come.
const known = new Map();
const colours = () => getComputedStyle(document.documentElement);
const colour = (name) => colours().getPropertyValue("--" + name).trim();
const MARKS = { stage: "c3", resume: "c4", rollback: "c5", oom: "bad", evaluation: "c2" };
const HEIGHT = 210;
// Of more evaluations each is a thin tick, and no point.
const CROWD = 60;

// `spec`: key of the chart on the page and kind, title, unit, lines of {label, form, x, y, run, colour, dash}. `marks` and `evaluations`
// are steps with vertical lines and ticks; `range` is that of all steps of the page.
function chart(spec, marks, evaluations, range) {
  const names = JSON.stringify(spec.lines.map((line) => [line.label, line.form, line.colour]));
  let found = known.get(spec.key);
  if (!found || found.names !== names) {
    if (found && found.plot) found.plot.destroy();
    found = { names, log: found ? found.log : false, root: null, plot: null };
    known.set(spec.key, found);
    frame(found, spec);
  }
  found.spec = spec;
  found.marks = marks;
  found.evaluations = evaluations;
  const zoomed = found.range && found.plot && (found.plot.scales.x.min > found.range[0] || found.plot.scales.x.max < found.range[1])
    ? { min: found.plot.scales.x.min, max: found.plot.scales.x.max } : null;
  found.range = range;
  found.button.hidden = !canBeLog(spec);
  if (found.plot) {
    found.plot.setData(joined(spec), true);
    if (zoomed) found.plot.setScale("x", zoomed);
  }
  return found.root;
}

const canBeLog = (spec) => ["loss", "grad_norm", "lr"].includes(spec.kind)
  && spec.lines.every((line) => line.y.every((value) => value === null || value > 0));

function frame(found, spec) {
  found.now = el("span", { class: "now" });
  found.button = el("button", { type: "button", "aria-pressed": String(found.log), title: "logarithmic scale" }, "log");
  found.button.onclick = () => {
    found.log = !found.log;
    found.button.setAttribute("aria-pressed", String(found.log));
    draw(found);
  };
  found.place = el("div", { class: "plot" });
  found.values = spec.lines.map(() => el("span", { class: "at" }));
  const keys = spec.lines.map((line, number) => el(
    "span",
    {
      class: line.label === spec.title ? "" : line.form === "steps" && isSmoothed(spec, line) ? "key faint" : line.dash ? "key dashed" : "key",
      style: "--colour: var(--" + line.colour + ")",
    },
    line.label === spec.title ? "" : line.label + " ", found.values[number],
  ));
  found.root = el("div", { class: "chart" },
    el("h3", {}, el("span", {}, spec.title), el("span", {}, found.now, " ", found.button)),
    el("div", { class: "keys" }, keys), found.place);
}

// Whether a line is drawn faint, since its mean is drawn too.
const isSmoothed = (spec, line) => spec.lines.some((other) => other.form === "mean" && other.run === line.run);

const joined = (spec) => uPlot.join(spec.lines.map((line) => [line.x, line.y]));

function draw(found) {
  if (found.plot) found.plot.destroy();
  const { spec } = found;
  const muted = colour("muted"), grid = colour("grid"), line = colour("line");
  const faint = (name) => colour(name) + "59";
  const axis = (more) => Object.assign({
    stroke: muted, font: "12px system-ui, sans-serif", grid: { stroke: grid, width: 1 }, ticks: { stroke: line, width: 1, size: 4 }, gap: 4,
  }, more);
  const width = (label) => 14 + 7 * Math.max(3, ...(label || []).map((text) => text.length));
  const series = spec.lines.map((one) => ({
    label: one.label,
    stroke: one.form === "steps" && isSmoothed(spec, one) ? faint(one.colour) : colour(one.colour),
    width: one.form === "steps" && isSmoothed(spec, one) ? 1 : 1.6,
    dash: one.dash ? [6, 4] : undefined,
    points: { show: one.form === "points" && one.x.length <= CROWD, size: 5, fill: colour(one.colour), stroke: colour(one.colour), width: 1 },
  }));
  const options = {
    width: Math.max(200, found.place.clientWidth), height: HEIGHT, legend: { show: false }, padding: [10, 18, 0, 0],
    scales: { x: { time: false, range: (_, min, max) => whole(found, min, max) }, y: { distr: found.log ? 3 : 1 } },
    series: [{}, ...series],
    axes: [
      axis({ size: 26, values: axisLabel(""), space: 60 }),
      axis({ size: (_, values) => width(values), values: found.log ? logLabel : axisLabel(spec.unit), space: 28, incrs: spec.unit === "bytes" ? POWERS : undefined }),
    ],
    cursor: { sync: { key: "steps", scales: ["x", null] }, points: { size: 6 }, y: false },
    hooks: {
      draw: [(plot) => drawMarks(plot, found)],
      setCursor: [(plot) => showValues(plot, found)],
    },
  };
  found.place.replaceChildren();
  found.plot = new uPlot(options, joined(spec), found.place);
}

const POWERS = Array.from({ length: 48 }, (_, power) => 2 ** power);

// The range of steps: that of the page until the reader zooms, so that the same step is at the same place of every chart.
function whole(found, min, max) {
  const x = found.plot ? found.plot.data[0] : [];
  const isAll = !found.plot || (min <= x[0] && max >= x[x.length - 1]);
  const [first, last] = isAll ? [Math.min(found.range[0], min), Math.max(found.range[1], max)] : [min, max];
  return first === last ? [first - 1, last + 1] : [first, last];
}

const logLabel = (plot, values) => axisLabel("")(plot, values).map((text, at) => {
  const digit = values[at] === null || values[at] === undefined ? 0 : values[at] / 10 ** Math.floor(Math.log10(values[at]) + 1e-9);
  return values.length > 12 && Math.round(digit) !== 1 ? "" : text;
});

function drawMarks(plot, found) {
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio || 1;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top - 8 * scale, bbox.width, bbox.height + 8 * scale);
  ctx.clip();
  ctx.lineWidth = 1.5 * scale;
  ctx.setLineDash([4 * scale, 3 * scale]);
  for (const mark of found.marks) {
    const x = plot.valToPos(mark.step, "x", true);
    ctx.strokeStyle = colour(MARKS[mark.kind] || "muted");
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.fillStyle = colour(MARKS.evaluation);
  const base = bbox.top + bbox.height, size = 4 * scale;
  for (const step of found.evaluations) {
    const x = plot.valToPos(step, "x", true);
    if (found.evaluations.length > CROWD) {
      ctx.fillRect(x - scale / 2, base - size, scale, size);
      continue;
    }
    ctx.beginPath();
    ctx.moveTo(x - size, base);
    ctx.lineTo(x + size, base);
    ctx.lineTo(x, base - 1.6 * size);
    ctx.fill();
  }
  ctx.restore();
}

// Shows the values under the cursor: of each line the last one that is not later.
function showValues(plot, found) {
  const { idx } = plot.cursor;
  const isOver = idx !== null && idx !== undefined && plot.cursor.left >= 0;
  found.now.replaceChildren(isOver ? "step " + number(plot.data[0][idx]) : "");
  found.values.forEach((place, line) => {
    let text = "";
    if (isOver) {
      let at = idx;
      while (at > 0 && plot.data[line + 1][at] === undefined) at -= 1;
      text = shown(plot.data[line + 1][at], found.spec.unit);
    }
    place.replaceChildren(text);
  });
}

// Draws all charts of the page that are new, or all again, such as with other colours. `width`: of print.
function drawCharts(again, width) {
  for (const [key, found] of known) {
    if (!found.root.isConnected) {
      if (found.plot) found.plot.destroy();
      known.delete(key);
    } else if (again || !found.plot) {
      draw(found);
    }
    if (width && found.plot) found.plot.setSize({ width, height: HEIGHT });
  }
}

new ResizeObserver(() => {
  for (const found of known.values()) {
    const width = found.place.clientWidth;
    if (found.plot && width > 0 && Math.abs(found.plot.width - width) > 1) found.plot.setSize({ width, height: HEIGHT });
    if (!found.plot && width > 0) draw(found);
  }
}).observe(document.getElementById("page"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawCharts(true));
