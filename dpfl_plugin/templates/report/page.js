"use strict";
// Filters and sorting of the tables; the rows that are left, from the top, are drawn.
const data = JSON.parse(document.getElementById("data").textContent);
const element = id => document.getElementById(id);
const rows = id => [...element(id).tBodies[0].rows];
const filters = [...document.querySelectorAll("#filters select[data-key]")];
const COLOURS = ["#1f77b4", "#e8710a", "#2ca02c", "#d62728", "#9467bd", "#a0685c", "#d357a8", "#7f8794", "#98a11b", "#12a5b5"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const escaped = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
// Plotly, which the page holds compressed.
async function library() {
  const packed = Uint8Array.from(atob(element("plotly").textContent), byte => byte.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

const shown = row => !row.hidden;

function filter() {
  const words = element("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const state = element("state").value;
  const left = new Set();
  for (const row of rows("groups")) {
    const text = row.textContent.toLowerCase();
    row.hidden = !(
      filters.every((select, i) => !select.value || row.dataset["k" + i] === select.value) &&
      (!state || row.dataset.state === state) &&
      words.every(word => text.includes(word)));
    if (shown(row)) left.add(row.dataset.group);
  }
  for (const row of rows("runs")) row.hidden = !left.has(row.dataset.group);
  draw();
  remember();
}

function sort(table, heading, descending = heading.getAttribute("aria-sort") !== "descending") {
  const column = heading.cellIndex;
  for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const key = row => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent.trim() : cell.dataset.value === "" ? null : Number(cell.dataset.value);
  };
  const compare = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null);  // what is missing comes last either way
    const order = typeof a === "number" ? a - b : a.localeCompare(b);
    return descending ? -order : order;
  };
  const sorted = rows(table.id).map(row => [key(row), row]).sort((a, b) => compare(a[0], b[0]));
  table.tBodies[0].append(...sorted.map(pair => pair[1]));
  draw();
  remember();
}

// What was chosen is in the address, after #, so that a link or a reload shows the same.
const CHOICES = ["search", "state", "metric", "axis", "most"];
const DEFAULTS = Object.fromEntries(CHOICES.map(id => [id, element(id).value]));
const title = heading => heading.textContent.trim();
let restoring = true;

function remember() {
  if (restoring) return;
  const said = new URLSearchParams();
  for (const id of CHOICES) if (element(id).value !== DEFAULTS[id]) said.set(id, element(id).value);
  for (const select of filters) if (select.value) said.set("key." + select.dataset.key, select.value);
  for (const id of ["singly", "columns"]) if (element(id).checked) said.set(id, "1");
  const by = element("groups").tHead.querySelector("[aria-sort]");
  if (by) said.set("sort", (by.getAttribute("aria-sort") === "descending" ? "-" : "") + title(by));
  history.replaceState(null, "", "#" + said);
}

function restore() {
  const said = new URLSearchParams(location.hash.slice(1));
  const choose = (field, value) => {  // a value that this page does not have changes nothing
    if (field.tagName !== "SELECT" || [...field.options].some(option => option.value === value)) field.value = value;
  };
  restoring = true;
  for (const id of CHOICES) choose(element(id), said.get(id) ?? DEFAULTS[id]);
  for (const select of filters) choose(select, said.get("key." + select.dataset.key) ?? "");
  for (const id of ["singly", "columns"]) element(id).checked = said.get(id) === "1";
  element("groups").classList.toggle("whole", element("columns").checked);
  filter();
  const headings = [...element("groups").tHead.rows[0].cells];
  const first = data.metrics[0], best = data.lower.includes(first) ? "" : "-";  // the best come first
  const by = said.get("sort") ?? best + first?.replaceAll("_", " ");
  const heading = headings.find(cell => title(cell) === by.replace(/^-/, ""));
  if (heading) sort(element("groups"), heading, by.startsWith("-"));
  restoring = false;
}

function traces(group, metric, axis, colour, dash, singly) {
  const bands = [], lines = [];
  const label = escaped(group.label);
  const band = (group.bands[axis] || {})[metric];
  if (band && band.std) {
    const edge = sign => band.mean.map((mean, i) => mean + sign * band.std[i]);
    bands.push({x: [...band.x, ...[...band.x].reverse()], y: [...edge(1), ...edge(-1).reverse()], fill: "toself",
      fillcolor: colour + "1f", line: {width: 0}, mode: "lines", hoverinfo: "skip", showlegend: false, legendgroup: label});
  }
  if (band) {
    const spread = band.std ? band.std.map(std => " ± " + std.toPrecision(2)) : band.x.map(() => "");
    lines.push({x: band.x, y: band.mean, customdata: spread, mode: "lines", name: `${label} (n = ${group.n})`,
      line: {color: colour, dash, width: 2}, legendgroup: label,
      hovertemplate: `${label}<br>%{x}: %{y:.4g}%{customdata}<extra></extra>`});
  }
  for (const run of group.runs) {
    if (run.complete && !singly || !run.curve[metric] || !(run.curve[axis] || []).some(x => x !== null)) continue;
    const name = `${label}, seed ${run.seed}` + (run.complete ? "" : `: ${escaped(run.status)}`);
    lines.push({x: run.curve[axis], y: run.curve[metric], mode: run.complete ? "lines" : "lines+markers",
      marker: {symbol: "x", size: 5}, name, showlegend: !run.complete, legendgroup: label, opacity: 0.8,
      line: {color: colour, width: 1, dash: run.complete ? "solid" : "dot"},
      hovertemplate: `${name}<br>%{x}: %{y:.4g}<extra></extra>`});
  }
  return {bands, lines};
}

function draw() {
  const metric = element("metric").value, axis = element("axis").value, most = Number(element("most").value);
  const left = rows("groups").filter(shown);
  const bands = [], lines = [], missing = [];
  for (const row of rows("groups")) row.querySelector(".chip").style.background = "";
  let count = 0;
  for (const row of left) {
    if (count === most) break;
    const group = data.groups[row.dataset.group];
    const colour = COLOURS[count % COLOURS.length], dash = DASHES[Math.floor(count / COLOURS.length) % DASHES.length];
    const found = traces(group, metric, axis, colour, dash, element("singly").checked);
    if (!found.lines.length) { missing.push(group.label); continue; }
    row.querySelector(".chip").style.background = colour;
    bands.push(...found.bands);
    lines.push(...found.lines);
    count++;
  }
  element("drawn").textContent = `${count} of ${left.length} configurations drawn, in the order of the table` +
    (bands.length ? "; bands: ± one standard deviation, as far as all runs reach" : "") + without(missing) + ".";
  // All bands first: none lies over a curve.
  show("plot", [...bands, ...lines], data.axes[axis], metric, count);
  drawPoints(left, metric, most);
}

function without(labels) {
  return !labels.length ? "" :
    `; no values on these axes (no guarantee, not finite, or not in this page): ${labels.slice(0, 8).join("; ")}` +
    (labels.length > 8 ? ` and ${labels.length - 8} more` : "");
}

// A point for each configuration; those that differ in nothing but the noise are one line.
function drawPoints(left, metric, most) {
  if (!element("tradeoff")) return;
  const series = new Map(), missing = [];
  for (const row of left) {
    const group = data.groups[row.dataset.group], point = group.points[metric];
    if (!point) { missing.push(group.label); continue; }
    if (!series.has(group.series)) {
      if (series.size === most) continue;
      series.set(group.series, []);
    }
    series.get(group.series).push([...point, group]);
  }
  const drawn = [...series].map(([name, points], i) => {
    points.sort((a, b) => a[0] - b[0]);
    const colour = COLOURS[i % COLOURS.length], label = escaped(name);
    return {x: points.map(p => p[0]), y: points.map(p => p[1]), mode: "lines+markers", name: label,
      error_y: {array: points.map(p => p[2]), color: colour, thickness: 1.5, width: 5},
      line: {color: colour, width: 1.5, dash: DASHES[Math.floor(i / COLOURS.length) % DASHES.length]}, marker: {size: 8},
      customdata: points.map(p => `${escaped(p[3].label)} (n = ${p[3].n})` + (p[3].n > 1 ? `, ± ${p[2].toPrecision(2)}` : "")),
      hovertemplate: "%{customdata}<br>epsilon %{x}: %{y:.4g}<extra></extra>"};
  });
  const count = drawn.reduce((sum, trace) => sum + trace.x.length, 0);
  element("drawn-points").textContent = `${count} of ${left.length} configurations: the mean of each over its complete ` +
    "runs, with one standard deviation, at the epsilon of the whole run towards the server" + without(missing) + ".";
  show("tradeoff", drawn, "epsilon of the whole run, server's view", metric, series.size);
}

function show(place, drawn, across, metric, count) {
  const colours = getComputedStyle(document.documentElement);
  const [front, soft, line] = ["--front", "--soft", "--line"].map(name => colours.getPropertyValue(name).trim());
  const grid = {gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true};
  const narrow = window.innerWidth < 600;
  if (!window.Plotly) return;  // it is being unpacked, and what it draws is drawn then
  Plotly.react(place, drawn, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: front, size: narrow ? 11 : 12},
    modebar: {bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: front},
    margin: {l: 55, r: 10, t: 10, b: 50}, hovermode: "closest",
    xaxis: {...grid, title: {text: across}},
    yaxis: {...grid, title: {text: escaped(metric.replaceAll("_", " "))}},
    showlegend: !narrow || count <= 6,
    legend: {orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, font: {size: narrow ? 10 : 11}},
  }, {
    responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
    // Nothing leaves the page: no button uploads what is drawn.
    showSendToCloud: false, showEditInChartStudio: false, plotlyServerURL: "",
  });
}

for (const id of ["filters", "measure", "axes"]) {
  element(id).addEventListener("submit", event => event.preventDefault());
}
element("filters").addEventListener("input", filter);
element("filters").addEventListener("reset", () => setTimeout(filter));
for (const id of ["measure", "axes"]) element(id).addEventListener("change", () => { draw(); remember(); });
element("columns").addEventListener("change", event => {
  element("groups").classList.toggle("whole", event.target.checked);
  remember();
});
for (const table of document.querySelectorAll("table")) {
  for (const heading of table.tHead.rows[0].cells) heading.querySelector("button").addEventListener("click", () => sort(table, heading));
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
addEventListener("hashchange", () => { if (location.hash.includes("=")) restore(); });  // not a link within the page
library().then(draw, error => {
  element("drawn").textContent = `Nothing can be drawn: ${error}. The tables are whole; a newer browser draws, too.`;
});
restore();
