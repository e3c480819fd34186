// Charts as SVG elements, for the page of the server and for the reports of bench. Knows nothing about what is
// shown. Colours are classes (s0 to s7) that charts.css sets for light and dark. Every chart has a title for
// screen readers, and its values as text where one points.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 640;
const RATIO = 300 / 640;
const EDGE = { left: 56, right: 16, top: 12, bottom: 44 };
const LINE = 16; // height of a line of text
const COLOURS = 8;
const BAR = 24; // height, in units of the drawing

/** An SVG element with these attributes and children. */
function shape(name, attributes, ...children) {
  const found = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    found.setAttribute(key, typeof value === "number" ? String(Math.round(10 * value) / 10) : value);
  }
  found.append(...children);
  return found;
}

function drawing(title, [width, height], parts) {
  const box = { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title };
  return shape("svg", box, shape("title", {}, title), ...parts);
}

function label(x, y, text, anchor = "middle") {
  return shape("text", { x, y, "text-anchor": anchor }, text);
}

const significant = (value) => String(Number(value.toPrecision(4)));
const share = (value) => `${Math.round(100 * value)} %`;

/** Maps values to coordinates, and has four to ten ticks at round values. whole: ticks at integers only. */
function axis(high, begin, end, whole = false) {
  const top = Math.max(high, 1e-12);
  let step = 10 ** Math.floor(Math.log10(top / 4));
  step *= [1, 2, 2.5, 5, 10].find((factor) => top / (step * factor) <= 8);
  if (whole) step = Math.max(1, Math.ceil(step));
  const n = Math.ceil(top / step - 1e-9);
  const place = (value) => begin + (value * (end - begin)) / (n * step);
  return { place, ticks: Array.from({ length: n + 1 }, (_, i) => i * step) };
}

function grid(width, y, percent) {
  return y.ticks.flatMap((tick) => [
    shape("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y.place(tick), y2: y.place(tick) }),
    label(EDGE.left - 8, y.place(tick) + 4, percent ? share(tick) : significant(tick), "end"),
  ]);
}

/** The colours of these names, in order. */
export function legend(names) {
  const found = document.createElement("p");
  found.className = "legend";
  names.forEach((name, i) => {
    const key = document.createElement("i");
    key.className = `key s${i % COLOURS}`;
    const item = document.createElement("span");
    item.append(key, name);
    found.append(item);
  });
  return found;
}

function figure(...parts) {
  const found = document.createElement("figure");
  found.className = "chart";
  found.append(...parts);
  return found;
}

/**
 * A line through the points of each series; both axes begin at 0.
 * series: [[name, [[x, y], …]], …]. y_name: what the values are, or their unit, "" for none. percent: they are shares
 * of 1. marks: x values to mark, each with a text.
 * width: in units of the drawing, of which a letter has about 12.
 */
export function lines({ series, title, x_name, y_name = "", percent = false, marks = [], width = WIDTH }) {
  const height = RATIO * width;
  const top = EDGE.top + (y_name ? LINE : 0);
  const every = series.flatMap(([, points]) => points);
  const x = axis(Math.max(...every.map(([a]) => a)), EDGE.left, width - EDGE.right, true);
  const y = axis(percent ? 1 : Math.max(...every.map(([, b]) => b)), height - EDGE.bottom, top);
  const parts = grid(width, y, percent);
  if (y_name) parts.push(label(EDGE.left - 8, EDGE.top, y_name, "end"));
  parts.push(...x.ticks.map((tick) => label(x.place(tick), height - EDGE.bottom + 18, significant(tick))));
  parts.push(label((width + EDGE.left - EDGE.right) / 2, height - 6, x_name));
  for (const [at, text] of marks) {
    const line = { class: "mark", x1: x.place(at), x2: x.place(at), y1: top, y2: height - EDGE.bottom };
    parts.push(shape("line", line, shape("title", {}, text)));
  }
  series.forEach(([name, points], i) => {
    const colour = `s${i % COLOURS}`;
    const path = points.map(([a, b]) => `${x.place(a).toFixed(1)},${y.place(b).toFixed(1)}`).join(" ");
    parts.push(shape("polyline", { class: `${colour} line`, points: path }));
    for (const [a, b] of points) {
      const tip = `${name}: ${significant(a)}, ${percent ? share(b) : significant(b)}`;
      const dot = { class: `${colour} dot`, cx: x.place(a), cy: y.place(b), r: 3.5 };
      parts.push(shape("circle", dot, shape("title", {}, tip)));
    }
  });
  const found = drawing(title, [width, height], parts);
  return series.length > 1 ? figure(found, legend(series.map(([name]) => name))) : figure(found);
}

/** A stacked bar for each row: [[label, [[name, share of 1], …]], …]; all rows have the same names. */
export function bars({ rows, title, width = WIDTH }) {
  const left = rows.some(([name]) => name) ? EDGE.left : 0;
  const whole = width - left - (left ? EDGE.right : 0);
  const parts = [];
  rows.forEach(([name, shares], i) => {
    const top = i * (BAR + 6) + 4;
    parts.push(label(left - 8, top + BAR / 2 + 4, name, "end"));
    let x = left;
    shares.forEach(([what, value], j) => {
      const box = { class: `s${j % COLOURS} fill`, x, y: top, width: whole * value, height: BAR };
      parts.push(shape("rect", box, shape("title", {}, `${name} ${what} ${share(value)}`.trim())));
      x += whole * value;
    });
  });
  const names = rows[0][1].map(([what, value]) => (rows.length > 1 ? what : `${what} ${share(value)}`));
  return figure(drawing(title, [width, rows.length * (BAR + 6) + 8], parts), legend(names));
}

/** A point with its interval for each label, and a dashed line across at `line`. values: [value, low, high]. */
export function whiskers({ labels, values, title, line = 1, width = WIDTH }) {
  const height = RATIO * width;
  const ends = values.flat().filter((value) => value !== null);
  const y = axis(Math.max(...ends, line), height - EDGE.bottom, EDGE.top);
  const across = { x1: EDGE.left, x2: width - EDGE.right, y1: y.place(line), y2: y.place(line) };
  const parts = [...grid(width, y, false), shape("line", { class: "mark", ...across })];
  const step = (width - EDGE.left - EDGE.right) / labels.length;
  values.forEach(([value, low, high], i) => {
    const x = EDGE.left + (i + 0.5) * step;
    if (low !== null && high !== null) {
      parts.push(shape("line", { class: "s0 thick", x1: x, x2: x, y1: y.place(low), y2: y.place(high) }));
    }
    parts.push(shape("circle", { class: "s0 dot", cx: x, cy: y.place(value), r: 5 }));
    parts.push(label(x + 9, y.place(value) + 4, value.toFixed(2), "start"));
    parts.push(label(x, height - EDGE.bottom + 18, labels[i]));
  });
  return figure(drawing(title, [width, height], parts));
}

const KINDS = { lines, bars, whiskers };

/** Draw the charts that a document describes: the JSON in data-chart of each such element. */
export function drawAll(root) {
  for (const place of root.querySelectorAll("[data-chart]")) {
    const { kind, ...chart } = JSON.parse(place.dataset.chart);
    place.replaceChildren(KINDS[kind](chart));
  }
}
