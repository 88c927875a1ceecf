#include "tune/study_page.h"

namespace orca::tune {

const std::string_view kStudyPage = R"page(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Orca study</title>
<style>
:root { --ink: #1c2733; --soft: #6b7885; --line: #d9dfe5; --back: #fff; --best: #d1495b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf0; --soft: #93a1ae; --line: #35414d; --back: #14191f; --best: #ff7b89; }
}
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--back);
       margin: 0 auto; padding: 24px; max-width: 1100px; }
h1 { font-size: 20px; margin: 0 0 4px; }
h2 { font-size: 15px; margin: 28px 0 6px; }
p { margin: 4px 0; color: var(--soft); }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 11px; paint-order: stroke; stroke: var(--back);
           stroke-width: 3px; }
svg .axis { stroke: var(--line); }
svg .best { stroke: var(--best); fill: none; stroke-width: 1.5; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 3px 10px 3px 0; border-bottom: 1px solid var(--line);
         vertical-align: top; overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 600; }
.scroll { max-height: 480px; overflow: auto; }
#tip { position: fixed; pointer-events: none; background: var(--back); color: var(--ink);
       border: 1px solid var(--line); padding: 4px 8px; border-radius: 4px; max-width: 420px;
       font-size: 12px; white-space: pre-wrap; display: none; }
</style>
</head>
<body>
<h1 id="title"></h1>
<p id="summary"></p>
<p id="best"></p>
<h2>History</h2><div id="history"></div>
<h2>Learning curves</h2><div id="curves"></div>
<h2>Parallel coordinates</h2><div id="parallel"></div>
<h2>Trials</h2><div class="scroll"><table id="table"></table></div>
<div id="tip"></div>
<script type="application/json" id="data">@DATA@</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const study = data.study, trials = data.trials, larger = study.mode === "max";
const known = trials.filter(t => t.value !== null && (t.state === "finished" || t.state === "pruned"));
const W = 1050, SVG = "http://www.w3.org/2000/svg";
const byId = id => document.getElementById(id);

function el(name, attributes, parent, text) {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}
const short = x => x === null || x === undefined ? "" : typeof x === "number" ?
  String(Number(x.toPrecision(5))) : typeof x === "string" ? x : JSON.stringify(x);
function describe(t) {
  const lines = ["trial " + t.number + ", " + t.state, study.metric + " = " + short(t.value)];
  for (const key in t.config) lines.push(key + " = " + short(t.config[key]));
  if (t.error) lines.push(t.error);
  return lines.join("\n");
}
function tip(node, t) {
  node.addEventListener("mousemove", event => {
    const box = byId("tip");
    box.textContent = describe(t);
    box.style.display = "block";
    box.style.left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8) + "px";
    box.style.top = Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 8) + "px";
  });
  node.addEventListener("mouseleave", () => { byId("tip").style.display = "none"; });
}

// Bad to good: blue-grey to orange, by rank, so that outliers do not hide the rest.
const place = new Map();
known.slice().sort((a, b) => larger ? a.value - b.value : b.value - a.value)
  .forEach((t, i) => place.set(t.number, known.length > 1 ? i / (known.length - 1) : 1));
function colour(t) {
  if (!place.has(t.number)) return "rgb(150,150,150)";
  const p = place.get(t.number), mix = (a, b) => Math.round(a + (b - a) * p);
  return "rgb(" + mix(120, 242) + "," + mix(150, 112) + "," + mix(190, 32) + ")";
}

// A scale over numbers: logarithmic where they are positive and span two decades or more.
function scale(values, from, to) {
  let low = Infinity, high = -Infinity;
  for (const v of values) { low = Math.min(low, v); high = Math.max(high, v); }
  const log = low > 0 && high / low >= 100;
  const f = log ? Math.log10 : x => x;
  if (low === high) { low -= Math.abs(low) * 0.1 || 1; high += Math.abs(high) * 0.1 || 1; }
  const a = f(low), b = f(high);
  const at = x => from + (f(x) - a) / (b - a) * (to - from);
  at.ticks = [];
  if (log) {
    const step = Math.max(1, Math.ceil((b - a) / 6));
    for (let e = Math.ceil(a); e <= b; e += step) at.ticks.push(Math.pow(10, e));
  } else {
    const raw = (b - a) / 5, unit = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = [1, 2, 5, 10].map(k => k * unit).find(s => s >= raw);
    for (let x = Math.ceil(a / step) * step; x <= b + step * 1e-9; x += step) at.ticks.push(x);
  }
  return at;
}
function frame(id, height, xs, ys, xName, yName) {
  const svg = el("svg", {viewBox: `0 0 ${W} ${height}`, role: "img"}, byId(id));
  const x = scale(xs, 70, W - 15), y = scale(ys, height - 35, 10);
  for (const tick of y.ticks) {
    el("line", {x1: 70, x2: W - 15, y1: y(tick), y2: y(tick), class: "axis"}, svg);
    el("text", {x: 64, y: y(tick) + 4, "text-anchor": "end"}, svg, short(tick));
  }
  for (const tick of x.ticks)
    el("text", {x: x(tick), y: height - 18, "text-anchor": "middle"}, svg, short(tick));
  el("text", {x: (W + 55) / 2, y: height - 3, "text-anchor": "middle"}, svg, xName);
  el("text", {x: 12, y: height / 2, "text-anchor": "middle",
              transform: `rotate(-90 12 ${height / 2})`}, svg, yName);
  return {svg, x, y};
}
function nothing(id, text) {
  const line = document.createElement("p");
  line.textContent = text;
  byId(id).appendChild(line);
}

function history() {
  if (!known.length) return nothing("history", "No trial has a value yet.");
  const {svg, x, y} = frame("history", 280, known.map(t => t.number), known.map(t => t.value),
                            "trial", study.metric);
  let best = null, path = "";
  for (const t of known.slice().sort((a, b) => a.number - b.number)) {
    if (best === null || (larger ? t.value > best : t.value < best)) {
      if (best !== null) path += `L${x(t.number)} ${y(best)}`;
      best = t.value;
      path += (path ? "L" : "M") + `${x(t.number)} ${y(best)}`;
    }
  }
  path += `L${W - 15} ${y(best)}`;
  for (const t of known)
    tip(el("circle", {cx: x(t.number), cy: y(t.value), r: 3.5, fill: colour(t),
                      "fill-opacity": t.state === "pruned" ? 0.45 : 1}, svg), t);
  el("path", {d: path, class: "best"}, svg);
}

function curves() {
  const drawn = trials.filter(t => t.curve.some(p => p[2] !== null));
  if (!drawn.length) return nothing("curves", "No trial has reported yet.");
  const points = drawn.flatMap(t => t.curve.filter(p => p[2] !== null));
  const {svg, x, y} = frame("curves", 320, points.map(p => p[1]), points.map(p => p[2]), "step",
                            study.metric);
  // The best last, on top. A clone begins a new line.
  for (const t of drawn.slice().reverse()) {
    let path = "", clones = null;
    for (const [clone, step, value] of t.curve) {
      if (value === null) continue;
      path += (clone === clones ? "L" : "M") + `${x(step)} ${y(value)}`;
      clones = clone;
    }
    const line = {d: path, fill: "none", stroke: colour(t), "stroke-width": 1.3,
                  "stroke-opacity": drawn.length > 40 ? 0.6 : 0.9};
    tip(el("path", line, svg), t);
    const only = t.curve.filter(p => p[2] !== null);
    if (only.length === 1)
      tip(el("circle", {cx: x(only[0][1]), cy: y(only[0][2]), r: 2.5, fill: colour(t)}, svg), t);
  }
}

function parallel() {
  if (!known.length) return nothing("parallel", "No trial has a value yet.");
  const keys = [...new Set(known.flatMap(t => Object.keys(t.config)))].sort();
  // A key with one value everywhere says nothing.
  const varied = keys.filter(k => new Set(known.map(t => JSON.stringify(t.config[k]))).size > 1);
  const height = 360, top = 40, bottom = height - 20, axes = [];
  const svg = el("svg", {viewBox: `0 0 ${W} ${height}`, role: "img"}, byId("parallel"));
  const columns = [...varied.map(k => ({name: k, get: t => t.config[k]})),
                   {name: study.metric || "value", get: t => t.value}];
  columns.forEach((column, i) => {
    const at = columns.length > 1 ? 60 + i * (W - 130) / (columns.length - 1) : W / 2;
    const values = known.map(column.get).filter(v => v !== undefined && v !== null);
    let y, labels;
    if (values.every(v => typeof v === "number")) {
      y = scale(values, bottom, top);
      labels = y.ticks.map(v => [short(v), y(v)]);
    } else {
      const names = [...new Set(values.map(v => JSON.stringify(v)))].sort();
      const step = names.length > 1 ? (bottom - top) / (names.length - 1) : 0;
      y = v => bottom - names.indexOf(JSON.stringify(v)) * step;
      labels = names.slice(0, 30).map(n => [short(JSON.parse(n)).slice(0, 18), y(JSON.parse(n))]);
    }
    el("line", {x1: at, x2: at, y1: top, y2: bottom, class: "axis"}, svg);
    axes.push({at, y, labels, column});
  });
  for (const t of known.slice().reverse()) {
    let path = "", joined = false;
    for (const {at, y, column} of axes) {
      const value = column.get(t);
      if (value === undefined || value === null) { joined = false; continue; }
      path += (joined ? "L" : "M") + `${at} ${y(value)}`;
      joined = true;
    }
    tip(el("path", {d: path, fill: "none", stroke: colour(t), "stroke-width": 1.2,
                    "stroke-opacity": known.length > 100 ? 0.35 : 0.75}, svg), t);
  }
  for (const {at, labels, column} of axes) {
    el("text", {x: at, y: 16, "text-anchor": "middle", "font-weight": 600}, svg, column.name);
    for (const [label, y] of labels) el("text", {x: at + 5, y: y + 4}, svg, label);
  }
}

function table() {
  const add = (row, kind, text) => {
    const cell = document.createElement(kind);
    cell.textContent = text;
    row.appendChild(cell);
  };
  const head = byId("table").insertRow();
  for (const name of ["trial", "state", study.metric || "value", "seconds", "configuration"])
    add(head, "th", name);
  for (const t of trials.slice(0, 500)) {
    const row = byId("table").insertRow();
    add(row, "td", t.number);
    add(row, "td", t.state);
    add(row, "td", short(t.value));
    add(row, "td", t.seconds === null ? "" : t.seconds.toFixed(1));
    add(row, "td", Object.keys(t.config).map(k => k + "=" + short(t.config[k])).join("  ") +
                   (t.error ? "  " + t.error : ""));
  }
}

document.title = "Orca study " + study.name;
byId("title").textContent = "Study " + study.name;
byId("summary").textContent = data.total + " trials: " +
  ["running", "paused", "finished", "pruned", "failed"].map(s => data.counts[s] + " " + s).join(", ") +
  ". " + (larger ? "Largest " : "Smallest ") + study.metric + " wins." +
  (data.total > trials.length ? " The best " + trials.length + " are shown." : "") +
  (trials.length > data.curves ? " Curves of the best " + data.curves + "." : "");
byId("best").textContent = known.length ? "Best: " + short(known[0].value) + " in trial " +
  known[0].number + ": " + Object.keys(known[0].config).map(k => k + "=" +
  short(known[0].config[k])).join(", ") : "";
history(); curves(); parallel(); table();
</script>
</body>
</html>
)page";

}  // namespace orca::tune
