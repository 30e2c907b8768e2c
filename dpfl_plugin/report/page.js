"use strict";
// Filters and sorting of the tables; the rows that are left, from the top, are drawn.
const data = JSON.parse(document.getElementById("data").textContent);
const element = id => document.getElementById(id);
const rows = id => [...element(id).tBodies[0].rows];
const filters = [...document.querySelectorAll("#filters select[data-key]")];
const COLOURS = ["#1f77b4", "#e8710a", "#2ca02c", "#d62728", "#9467bd", "#a0685c", "#d357a8", "#7f8794", "#98a11b", "#12a5b5"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const escaped = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
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
}

function sort(table, heading) {
  const column = heading.cellIndex;
  const descending = heading.getAttribute("aria-sort") !== "descending";
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
}

function traces(group, metric, axis, colour, dash, singly) {
  const found = [];
  const label = escaped(group.label);
  const band = (group.bands[axis] || {})[metric];
  if (band && band.std) {
    const edge = sign => band.mean.map((mean, i) => mean + sign * band.std[i]);
    found.push({x: [...band.x, ...[...band.x].reverse()], y: [...edge(1), ...edge(-1).reverse()], fill: "toself",
      fillcolor: colour + "26", line: {width: 0}, mode: "lines", hoverinfo: "skip", showlegend: false, legendgroup: label});
  }
  if (band) {
    const spread = band.std ? band.std.map(std => " ± " + std.toPrecision(2)) : band.x.map(() => "");
    found.push({x: band.x, y: band.mean, customdata: spread, mode: "lines", name: `${label} (n = ${group.n})`,
      line: {color: colour, dash, width: 2}, legendgroup: label,
      hovertemplate: `${label}<br>%{x}: %{y:.4g}%{customdata}<extra></extra>`});
  }
  for (const run of group.runs) {
    if (run.complete && !singly || !run.curve[metric] || !(run.curve[axis] || []).some(x => x !== null)) continue;
    const name = `${label}, seed ${run.seed}` + (run.complete ? "" : `: ${escaped(run.status)}`);
    found.push({x: run.curve[axis], y: run.curve[metric], mode: run.complete ? "lines" : "lines+markers",
      marker: {symbol: "x", size: 5}, name, showlegend: !run.complete, legendgroup: label, opacity: 0.8,
      line: {color: colour, width: 1, dash: run.complete ? "solid" : "dot"},
      hovertemplate: `${name}<br>%{x}: %{y:.4g}<extra></extra>`});
  }
  return found;
}

function draw() {
  const metric = element("metric").value, axis = element("axis").value, most = Number(element("most").value);
  const left = rows("groups").filter(shown);
  const drawn = [], missing = [];
  for (const row of rows("groups")) row.querySelector(".chip").style.background = "";
  let count = 0;
  for (const row of left) {
    if (count === most) break;
    const group = data.groups[row.dataset.group];
    const colour = COLOURS[count % COLOURS.length], dash = DASHES[Math.floor(count / COLOURS.length) % DASHES.length];
    const found = traces(group, metric, axis, colour, dash, element("singly").checked);
    if (!found.length) { missing.push(group.label); continue; }
    row.querySelector(".chip").style.background = colour;
    drawn.push(...found);
    count++;
  }
  element("drawn").textContent = `${count} of ${left.length} configurations drawn, in the order of the table` +
    (drawn.some(trace => trace.fill) ? "; bands: ± one standard deviation, as far as all runs reach" : "") +
    (missing.length ? `; no values on these axes (no guarantee, not finite, or not in this page): ${missing.slice(0, 8).join("; ")}` +
      (missing.length > 8 ? ` and ${missing.length - 8} more` : "") : "") + ".";
  const colours = getComputedStyle(document.documentElement);
  const [front, soft, line] = ["--front", "--soft", "--line"].map(name => colours.getPropertyValue(name).trim());
  const lines = {gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true};
  const narrow = window.innerWidth < 600;
  Plotly.react("plot", drawn, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: front, size: narrow ? 11 : 12},
    modebar: {bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: front},
    margin: {l: 55, r: 10, t: 10, b: 50}, hovermode: "closest",
    xaxis: {...lines, title: {text: data.axes[axis]}},
    yaxis: {...lines, title: {text: escaped(metric.replaceAll("_", " "))}},
    showlegend: !narrow || count <= 6,
    legend: {orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, font: {size: narrow ? 10 : 11}},
  }, {responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"]});
}

for (const id of ["filters", "axes"]) {
  element(id).addEventListener("submit", event => event.preventDefault());
}
element("filters").addEventListener("input", filter);
element("filters").addEventListener("reset", () => setTimeout(filter));
element("axes").addEventListener("change", draw);
for (const table of document.querySelectorAll("table")) {
  for (const heading of table.tHead.rows[0].cells) heading.querySelector("button").addEventListener("click", () => sort(table, heading));
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
const first = [...element("groups").tHead.rows[0].cells].find(cell => cell.textContent.trim() === data.metrics[0]?.replaceAll("_", " "));
if (first) sort(element("groups"), first); else draw();
