// The parts of the page, from the data of `dtrain report`.
const COLOURS = 8;
const STATES = { succeeded: "good", running: "busy", requeue: "busy", "not-started": "busy", null: "muted" };

const part = (title, ...content) => content.flat(9).some(Boolean) ? [el("h2", {}, title), ...content] : null;
const box = (sentences, kind) => sentences.length > 0 && el("div", { class: "box " + (kind || "") }, sentences.map((text) => el("p", {}, text)));
const state = (run) => el("span", { class: "state " + (STATES[run.state] || "bad") }, run.state || "state unknown");
const time = (text) => text ? text.replace("T", " ").replace("Z", " UTC") : null;

function facts(run) {
  return el("div", { class: "facts" }, run.facts.filter((fact) => fact.value !== DASH || run.charts.length > 0).map((fact) => el("div", { class: "fact" },
    el("div", { class: "label" }, fact.label), el("div", { class: "value" }, fact.value), el("div", { class: "note" }, fact.note))));
}

// The lines of a run alone have a colour each.
function ofOne(run) {
  return run.charts.map((of) => ({ ...of, key: run.name + of.key, kind: of.key, lines: paint(of) }));
}

function paint(of) {
  let next = 0;
  let steps = 0;
  return of.lines.map((line) => {
    if (line.form === "mean") return { ...line, colour: "c" + steps, run: 0 };
    steps = next;
    next += 1;
    return { ...line, colour: "c" + (steps % COLOURS), run: line.form === "steps" ? 0 : 1 };
  });
}

// The lines of all runs over each other: the means in place of the steps, where there are means.
function ofAll(runs) {
  const keys = [];
  for (const of of runs.flatMap((run) => run.charts)) {
    if (!keys.some((other) => other.key === of.key)) keys.push(of);
  }
  return keys.map(({ key, title, unit }) => {
    const lines = runs.flatMap((run, number) => {
      const own = (run.charts.find((of) => of.key === key) || { lines: [] }).lines;
      const means = own.some((line) => line.form === "mean");
      const kept = own.filter((line, place) => !(means && line.form === "steps") && !(key === "step_ms" && place > 0));
      return kept.map((line, place) => ({
        ...line, label: kept.length > 1 ? run.name + ", " + line.label : run.name, colour: "c" + (number % COLOURS), run: number,
        dash: place > 0 || number >= COLOURS,
      }));
    });
    return { key, kind: key, title, unit, lines };
  });
}

function keysOfMarks(run) {
  const kinds = new Set(run.marks.map((mark) => mark.kind));
  const names = { stage: "stage", resume: "restart or resume", rollback: "rollback", oom: "out of memory, retried" };
  const key = (name, kind, tick) => el("span", {}, el("i", { class: tick && "tick", style: "--colour: var(--" + MARKS[kind] + ")" }), name);
  const shownKeys = Object.keys(names).filter((kind) => kinds.has(kind)).map((kind) => key(names[kind], kind, false));
  if (run.evaluations.length > 0) shownKeys.push(key("evaluation", "evaluation", true));
  return el("div", { class: "marks" }, shownKeys);
}

// The first and the last step of all curves.
function rangeOf(specs) {
  const ends = specs.flatMap((spec) => spec.lines.flatMap((line) => line.x.length > 0 ? [line.x[0], line.x[line.x.length - 1]] : []));
  return [Math.min(...ends), Math.max(...ends)];
}

function reduced(specs, spans) {
  const of = Math.max(0, ...specs.flatMap((spec) => spec.lines.map((line) => line.reduced_from || 0)));
  return of > 0 && el("p", { class: "note" }, "Curves are reduced: of " + number(of) + " steps, each of " + number(spans)
    + " equal spans shows its least and its largest value, and its gaps.");
}

function curves(run, spans) {
  const specs = ofOne(run);
  const range = rangeOf(specs);
  return specs.length > 0 && [
    keysOfMarks(run), el("div", { class: "charts" }, specs.map((spec) => chart(spec, run.marks, run.evaluations, range))), reduced(specs, spans),
    el("p", { class: "note screen" }, "From left to right: optimizer steps. Drag over a curve to zoom, double-click to see all of it."),
  ];
}

function events(run) {
  if (run.marks.length === 0) return null;
  return el("details", { id: run.name + " events" }, el("summary", {}, "Events, " + run.marks.length),
    table(["step", "event"].map((text, at) => at === 0 ? right(text) : text), run.marks.map((mark) => [right(number(mark.step)), { text: mark.text, class: "wide" }])));
}

function timing(run) {
  const { time } = run;
  if (!time) return null;
  const rows = time.rows.map((row) => [
    row.name, right(row.step_ms === null ? "" : number(row.step_ms) + " ms"), right(seconds(row.total_s)), right(row.percent),
    { text: el("div", { class: "bar measured", style: "width:" + Math.max(0, 100 * row.part).toFixed(2) + "%" }), class: "bars" },
  ]);
  return [
    time.conclusion && el("p", {}, time.conclusion + "."),
    table(["", right("a step"), right("the whole run"), right(""), ""], rows, { class: "full" }),
    el("p", { class: "note" }, "A step takes " + number(time.step_ms) + " ms, the mean of " + number(time.steps - time.first) + " steps"
      + (time.first > 0 ? " without the first of each process" : "") + ", on rank 0."
      + (time.checkpoints > 0 ? " Checkpoints: " + number(time.checkpoints) + ", the last of " + bytes(time.checkpoint_bytes) + "." : "")),
  ];
}

function memory(run) {
  if (run.memory.length === 0) return null;
  const one = (of) => {
    const most = Math.max(1, ...of.rows.flatMap((row) => [row.planned || 0, row.measured || 0]));
    const bar = (value, kind) => typeof value === "number" && el("div", { class: "bar " + kind, style: "width:" + (100 * value / most).toFixed(2) + "%" });
    const rows = of.rows.map((row) => [
      row.owner, right(bytes(row.planned)), right(bytes(row.measured)),
      { text: el("div", {}, bar(row.planned, ""), bar(row.measured, "measured")), class: "bars" },
    ]);
    const excess = typeof of.planned_peak === "number" && typeof of.measured_peak === "number"
      ? " (" + (of.measured_peak >= of.planned_peak ? "+" : "−") + percent(Math.abs(of.measured_peak / of.planned_peak - 1)) + ")" : "";
    rows.push([el("b", {}, "peak"), right(bytes(of.planned_peak)), right(bytes(of.measured_peak) + excess), ""]);
    return [
      of.stage && el("h3", {}, "Stage " + of.stage),
      table(["", right(el("span", { class: "key planned" }, "planned")), right(el("span", { class: "key", style: "--colour: var(--c0)" }, "measured")), { class: "bars" }], rows, { class: "full" }),
      el("p", { class: "note" }, typeof of.step === "number" ? "Measured on rank 0 at its largest peak, step " + number(of.step) + "." : "Nothing was measured.",
        typeof of.budget === "number" ? " The budget of a rank is " + bytes(of.budget) + "." : "",
        of.planned_peak !== null ? "" : of.rows.some((row) => typeof row.planned === "number")
          ? " The plan computed parameters, gradients and optimizer only, since the recipe states the micro-batch." : " No plan of it is known."),
    ];
  };
  const ranks = run.ranks.length > 1 && el("p", { class: "note" }, "Peak of each rank: " + run.ranks.slice(0, 64).map(bytes).join(", ") + (run.ranks.length > 64 ? ", ..." : "") + ".");
  return [run.memory.map(one), ranks];
}

function results(run) {
  if (run.results.length === 0) return null;
  const names = [...new Set(run.results.flatMap((row) => Object.keys(row.figures)))];
  const rows = run.results.map((row) => [row.set, { text: row.when, class: "wide" }, ...names.map((name) => right(number(row.figures[name]))),
    right(number(row.samples), row.unreadable > 0 ? row.unreadable + " more could not be read" : null)]);
  return table(["set", "", ...names.map((name) => right(name)), right("samples")], rows);
}

function classes(run) {
  return run.classes.map((of) => {
    const where = "Set " + of.set + ", step " + number(of.step);
    const tables = of.tables.map((one) => {
      const rows = one.classes.map((name, at) => [{ text: name, class: "wide" }, ...one.columns.map((column) => right(number(column.values[at])))]);
      const whole = table(["class", ...one.columns.map((column) => right(column.figure))], rows);
      return rows.length <= 40 ? whole : el("details", { id: run.name + of.set + one.classes.length }, el("summary", {}, rows.length + " classes"), whole);
    });
    return [el("h3", {}, where), el("div", { class: "side" }, tables, of.confusions.map(confusion))];
  });
}

function confusion(of) {
  if (of.errors) {
    const rows = of.errors.map(([target, predicted, count, all]) => [{ text: target, class: "wide" }, { text: predicted, class: "wide" }, right(number(count)), right(percent(count / all))]);
    return el("div", {}, el("p", { class: "note" }, "Most frequent confusions of " + of.size + " classes"), table(["class", "predicted as", right("samples"), right("of the class")], rows));
  }
  const most = Math.max(...of.counts.flat());
  const body = of.counts.map((row, target) => {
    const all = row.reduce((sum, count) => sum + count, 0);
    const cells = row.map((count, predicted) => {
      const share = all > 0 ? count / all : 0;
      const kind = (target === predicted ? "right " : "") + (share > 0.55 ? "dark" : "");
      const title = of.classes[target] + " predicted as " + of.classes[predicted] + ": " + number(count) + ", " + percent(share) + " of the class";
      return el("td", { class: kind, style: "background: rgba(var(--heat), " + share.toFixed(3) + ")", title }, count > 0 ? cell(count, share, most) : "");
    });
    return el("tr", {}, el("th", { scope: "row" }, of.classes[target]), cells);
  });
  const head = el("tr", {}, el("th", {}), of.classes.map((name) => el("th", { scope: "col" }, el("span", {}, name))));
  return el("div", {}, el("p", { class: "note" }, "Confusion: rows are the classes, columns the predictions"),
    el("div", { class: "scroll" }, el("table", { class: "heat" }, el("thead", {}, head), el("tbody", {}, body))));
}

// Counts while all are short; else, as of pixels, the part of the class.
const cell = (count, share, most) => most >= 10000 ? (share >= 0.005 ? Math.round(100 * share) + "%" : "·") : number(count);

function samples(run) {
  return run.samples.map((of) => [
    el("h3", {}, "Set " + of.set + ", step " + number(of.step)),
    el("div", { class: "samples" }, of.samples.map((one) => el("figure", { class: "sample" },
      one.picture && one.picture.startsWith("data:image/") && picture(one.picture, one.caption),
      one.text && el("pre", {}, one.text), one.problem && el("p", { class: "note" }, one.problem), el("figcaption", {}, one.caption)))),
  ]);
}

function picture(source, caption) {
  const image = el("img", { src: source, alt: caption });
  image.onload = () => image.classList.toggle("small", image.naturalWidth < 100);
  return image;
}

function failure(run) {
  const of = run.failure;
  if (!of) return null;
  const how = of.signal ? "by " + of.signal : typeof of.exit_code === "number" ? "with exit code " + of.exit_code : "";
  return el("div", { class: "box bad" },
    el("p", {}, el("b", {}, "Rank " + of.rank + " on " + of.host + " failed " + how), of.cause && el("span", { class: "muted" }, " · " + of.cause.kind)),
    of.cause && el("p", {}, of.cause.text), of.message && el("pre", {}, of.message));
}

function attempts(run) {
  const failed = run.attempts.some((attempt) => attempt.errors.length > 0);
  if (run.attempts.length < 2 && !failed) return null;
  const rows = run.attempts.map((attempt) => [
    right(String(attempt.number)), time(attempt.began) || DASH, attempt.host || DASH, right(number(attempt.nproc)),
    { class: "wide", text: el("div", {}, attempt.errors.map((error) => el("details", { id: run.name + attempt.number + " " + error.rank },
      el("summary", {}, "rank " + error.rank + ": " + error.text.split("\n")[0].slice(0, 160)), el("pre", {}, error.text))),
    attempt.more > 0 && el("p", { class: "note" }, attempt.more + " more ranks have errors")) },
  ]);
  return table([right("attempt"), "began", "host", right("ranks"), "errors"], rows);
}

const recipe = (run) => run.recipe && el("details", { id: run.name + " recipe" }, el("summary", {}, "The recipe as resolved"), el("pre", {}, run.recipe));

function head(run) {
  return [
    el("div", { class: "head" }, el("h1", {}, run.name), state(run)),
    el("p", { class: "muted subject" }, [...run.subject, run.began && "began " + time(run.began), run.host && "on " + run.host].filter(Boolean).join(" · ")),
    run.about && el("p", {}, run.about),
    facts(run), failure(run), box(run.problems), box(run.notes),
  ];
}

const sections = (run) => [
  part("Results", results(run)), part("A step’s time", timing(run)), part("Memory", memory(run)), part("By class", classes(run)),
  part("Predictions", samples(run)), part("Attempts", attempts(run)), part("Warnings of the plan", box(run.warnings)), part("Events and recipe", [events(run), recipe(run)]),
];

const one = (data) => [head(data.runs[0]), box(data.problems), part("Curves", curves(data.runs[0], data.spans)), sections(data.runs[0])];

function several(data) {
  const { runs } = data;
  const rows = runs.map((run, number) => [
    { class: "wide", text: el("span", { class: "key", style: "--colour: var(--c" + (number % COLOURS) + ")" }, run.name) }, state(run),
    ...run.facts.map((fact, place) => right(fact.value, place === 0 ? fact.label + ", " + fact.note : fact.note)),
  ]);
  const labels = runs[0].facts.map((fact, place) => {
    const own = new Set(runs.map((run) => run.facts[place].label));
    return right(own.size > 1 ? "figure" : fact.label);
  });
  const settings = data.differences.map((row) => [{ text: row.key, class: "wide" },
    ...row.values.map((value) => ({ text: value === null ? DASH : value, class: value !== row.values[0] ? "wide differs" : "wide" }))]);
  const specs = ofAll(runs);
  const range = rangeOf(specs);
  return [
    el("div", { class: "head" }, el("h1", {}, runs.length + " runs")), box(data.problems),
    part("Compared", table(["run", "state", ...labels], rows)),
    part("Settings that differ", settings.length > 0 ? table(["setting", ...runs.map((run) => run.name)], settings)
      : el("p", {}, runs.every((run) => run.is_comparable) ? "The recipes of these runs are equal." : "Not all of these runs have a recipe that can be read.")),
    part("Curves", el("div", { class: "charts" }, specs.map((spec) => chart(spec, [], [], range))), reduced(specs, data.spans)),
    runs.map((run) => el("details", { class: "run", id: run.name },
      el("summary", {}, run.name), head(run).slice(1), part("Curves", curves(run, data.spans)), sections(run))),
  ];
}

// Draws the page. What the reader has opened stays open.
function render(data) {
  const page = document.getElementById("page");
  const open = new Set([...page.querySelectorAll("details[open]")].map((details) => details.id));
  document.title = (data.runs.length === 1 ? data.runs[0].name : data.runs.length + " runs") + " · dtrain report";
  const footer = el("footer", {}, el("span", { id: "live" }), "Made by dtrain " + data.version + " on " + time(data.made) + ". Curves by uPlot, MIT licence.");
  page.replaceChildren(...[data.runs.length === 1 ? one(data) : several(data), footer].flat(9).filter(Boolean));
  for (const details of page.querySelectorAll("details")) details.open = open.has(details.id);
  drawCharts(false);
}

let data = JSON.parse(document.getElementById("data").textContent);
render(data);

// Asks for new data: soon while a run is running, seldom after.
async function refresh() {
  const began = performance.now();
  let words = "";
  try {
    const answer = await fetch("data.json", { cache: "no-store" });
    data = await answer.json();
    render(data);
    words = data.runs.some((run) => run.state === "running") ? "Live. " : "No run is running any more. ";
  } catch (error) {
    words = "The page has lost its server; these data are of " + time(data.made) + ". ";
  }
  document.getElementById("live").textContent = words;
  const isRunning = data.runs.some((run) => run.state === "running");
  setTimeout(refresh, Math.max(isRunning ? 3000 : 15000, 10 * (performance.now() - began)));
}
if (data.live) setTimeout(refresh, 1000);

let before = null;
addEventListener("beforeprint", () => {
  before = [...document.querySelectorAll("details")].filter((details) => !details.open);
  before.forEach((details) => { details.open = true; });
  drawCharts(true, 330);
});
addEventListener("afterprint", () => {
  (before || []).forEach((details) => { details.open = false; });
  drawCharts(true);
});
