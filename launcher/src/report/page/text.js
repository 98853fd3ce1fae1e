// Elements and texts. Text becomes text nodes, never markup.
function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

const DASH = "–";

function number(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return DASH;
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return value.toLocaleString("en-US");
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replace("e+", "e");
  return size >= 1e4 ? Math.round(value).toLocaleString("en-US") : value.toPrecision(4);
}

function bytes(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return (unit === 0 ? value.toFixed(0) : value.toFixed(2)) + " " + units[unit];
}

function seconds(value) {
  if (typeof value !== "number") return DASH;
  if (value < 10) return value.toFixed(1) + " s";
  if (value < 60) return value.toFixed(0) + " s";
  if (value < 3600) return Math.floor(value / 60) + " min " + Math.floor(value % 60) + " s";
  return Math.floor(value / 3600) + " h " + Math.floor((value / 60) % 60) + " min";
}

function percent(part) {
  if (typeof part !== "number" || !Number.isFinite(part)) return DASH;
  const value = 100 * part;
  return (value > 0 && value < 9.95 ? value.toFixed(1) : value.toFixed(0)) + "%";
}

// Values on an axis, in as few characters as tell them apart.
function axisLabel(unit) {
  return (_, values) => values.map((value) => {
    if (value === null || value === undefined) return "";
    if (unit === "bytes") {
      const steps = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
      const [name, size] = steps.find(([, size]) => Math.abs(value) >= size) || ["B", 1];
      return +(value / size).toPrecision(4) + " " + name;
    }
    const size = Math.abs(value);
    if (size >= 1e4 && size < 1e6) return +(value / 1e3).toPrecision(5) + "k";
    if (size >= 1e6 && size < 1e9) return +(value / 1e6).toPrecision(5) + "M";
    if (size !== 0 && (size < 1e-3 || size >= 1e9)) return (+value.toPrecision(3)).toExponential().replace("e+", "e");
    return String(+value.toPrecision(5));
  });
}

function shown(value, unit) {
  if (unit === "bytes") return bytes(value);
  return number(value) + (unit && typeof value === "number" ? " " + unit : "");
}

function table(head, rows, attributes) {
  const cell = (tag) => (one) => {
    const given = one !== null && typeof one === "object" && !(one instanceof Node) ? one : { text: one };
    return el(tag, { class: given.class, title: given.title }, given.text === undefined ? "" : given.text);
  };
  const body = rows.map((row) => el("tr", {}, row.map(cell("td"))));
  const top = head && el("thead", {}, el("tr", {}, head.map(cell("th"))));
  return el("div", { class: "scroll" }, el("table", attributes, top, el("tbody", {}, body)));
}

const right = (text, title) => ({ text, class: "number", title });
