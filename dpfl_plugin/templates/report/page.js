"use strict";
// Filters and sorting of each section's tables; the rows that are left are drawn.
const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["#1f77b4", "#e8710a", "#2ca02c", "#d62728", "#9467bd", "#a0685c", "#d357a8", "#7f8794", "#98a11b", "#12a5b5"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const MOST_BANDS = 5;  // as in plots
const escaped = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

// Plotly, which the page holds compressed.
async function library() {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), byte => byte.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

// The mean of as many points around each, fewer at the ends.
function smoothed(values, window) {
  const half = (window - 1) / 2;
  return values.map((_, i) => {
    const near = values.slice(Math.max(0, i - half), i + half + 1).filter(value => value !== null);
    return near.length ? near.reduce((sum, value) => sum + value, 0) / near.length : null;
  });
}

class Section {
  constructor(root) {
    this.root = root;
    this.data = data.sections[root.dataset.section];
    this.style = this.styles();
    this.hidden = new Set();  // configurations that were switched off in the legend
    this.choices = root.querySelector(".choices").elements;
    this.filters = [...root.querySelectorAll(".filters select[data-key]")];
    for (const form of root.querySelectorAll("form")) form.addEventListener("submit", event => event.preventDefault());
    root.querySelector(".choices").addEventListener("change", () => this.draw());
    const filters = root.querySelector(".filters form");
    if (filters) {
      filters.addEventListener("input", () => this.filter());
      filters.addEventListener("reset", () => setTimeout(() => this.filter()));
    }
    root.querySelector(".columns").addEventListener("change", event => {
      root.querySelector(".groups").classList.toggle("whole", event.target.checked);
    });
    for (const table of root.querySelectorAll("table")) {
      for (const heading of table.tHead.rows[0].cells) {
        heading.querySelector("button").addEventListener("click", () => this.sort(table, heading));
      }
    }
  }

  rows(name) { return [...this.root.querySelector(name).tBodies[0].rows]; }

  filter() {
    const words = this.root.querySelector("[name=search]").value.toLowerCase().split(/\s+/).filter(Boolean);
    const left = new Set();
    for (const row of this.rows(".groups")) {
      const text = row.textContent.toLowerCase();
      row.hidden = !(
        this.filters.every((select, i) => !select.value || row.dataset["k" + i] === select.value) &&
        words.every(word => text.includes(word)));
      if (!row.hidden) left.add(row.dataset.group);
    }
    for (const row of this.rows(".runs")) row.hidden = !left.has(row.dataset.group);
    this.draw();
  }

  sort(table, heading) {
    const descending = heading.getAttribute("aria-sort") !== "descending";
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const key = row => {
      const text = row.cells[heading.cellIndex].textContent.trim();
      if (text === "no guarantee") return Infinity;
      if (/^(-$|not )/.test(text)) return null;
      return /^[-+]?[\d.]+(e[-+]?\d+)?( |$)/.test(text) ? parseFloat(text) : text;
    };
    const compare = (a, b) => {
      if (a === null || b === null) return (a === null) - (b === null);  // what is missing comes last either way
      const order = typeof a === "number" && typeof b === "number" ? a - b || 0 : String(a).localeCompare(String(b));
      return descending ? -order : order;
    };
    const sorted = [...table.tBodies[0].rows].map(row => [key(row), row]).sort((a, b) => compare(a[0], b[0]));
    table.tBodies[0].append(...sorted.map(pair => pair[1]));
  }

  // A colour for each line against epsilon, and a dash for each of its points, as long as these are enough.
  styles() {
    const groups = this.data.groups, lines = new Map();
    const places = groups.map(group => {
      const [line, place] = lines.get(group.series) || [lines.size, -1];
      lines.set(group.series, [line, place + 1]);
      return [line, place + 1];
    });
    const enough = places.every(([line, place]) => line < COLOURS.length && place < DASHES.length);
    return places.map(([line, place], i) => enough ? [COLOURS[line], DASHES[place]] :
      [COLOURS[i % COLOURS.length], DASHES[Math.floor(i / COLOURS.length) % DASHES.length]]);
  }

  // Cut off where the measure ends.
  clipped(metric, value) {
    const [least, most] = this.data.range[metric] || [null, null];
    return Math.min(most ?? Infinity, Math.max(least ?? -Infinity, value));
  }

  traces(group, colour, dash) {
    const metric = this.choices.metric.value, axis = this.choices.axis.value, window = Number(this.choices.window.value);
    const bands = [], lines = [], label = escaped(group.label), band = (group.bands[axis] || {})[metric];
    if (band && band.half) {
      const mean = smoothed(band.mean, window), half = smoothed(band.half, window);
      const edge = sign => mean.map((value, i) => this.clipped(metric, value + sign * half[i]));
      bands.push({x: [...band.x, ...[...band.x].reverse()], y: [...edge(1), ...edge(-1).reverse()], fill: "toself",
        fillcolor: colour + "1f", line: {width: 0}, mode: "lines", hoverinfo: "skip"});
    }
    if (band) {
      const spread = band.half ? band.half.map(half => " ± " + half.toPrecision(2)) : band.x.map(() => "");
      lines.push({x: band.x, y: smoothed(band.mean, window), customdata: spread, name: label, mode: band.x.length > 1 ? "lines" : "markers",
        line: {color: colour, dash, width: 2}, marker: {color: colour},
        hovertemplate: `%{y:.4g}%{customdata} ${label}<extra></extra>`});
    }
    for (const run of group.runs) {
      if (run.complete && !this.choices.singly.checked || !run.curve[metric]) continue;
      if (!(run.curve[axis] || []).some(x => x !== null)) continue;
      const name = `${label}, seed ${run.seed}` + (run.complete ? "" : `: ${escaped(run.status)}`);
      lines.push({x: run.curve[axis], y: smoothed(run.curve[metric], window), name, mode: run.complete ? "lines" : "lines+markers",
        marker: {symbol: "x", size: 5}, opacity: 0.8, line: {color: colour, width: 1, dash: run.complete ? "solid" : "dot"},
        hovertemplate: `%{y:.4g} ${name}<extra></extra>`});
    }
    return {bands, lines};
  }

  draw() {
    const metric = this.choices.metric.value, axis = this.choices.axis.value;
    const left = this.rows(".groups").filter(row => !row.hidden);
    const bands = [], lines = [], missing = [], legend = this.root.querySelector(".legend.names");
    legend.replaceChildren();
    let count = 0;
    for (const row of left) {
      const index = Number(row.dataset.group), group = this.data.groups[index];
      const [colour, dash] = this.style[index];
      const found = this.traces(group, colour, dash);
      row.querySelector(".chip").style.background = found.lines.length ? colour : "";
      if (!found.lines.length) { missing.push(group.label); continue; }
      this.entry(legend, index, group, colour, dash);
      if (this.hidden.has(index)) continue;
      bands.push(...found.bands);
      lines.push(...found.lines);
      count++;
    }
    const shown = bands.length <= MOST_BANDS ? bands : [];
    this.root.querySelector(".drawn").textContent = `${count} of ${left.length} configurations` +
      (shown.length ? "; bands: 95 % confidence intervals of the mean, as far as all runs reach" :
        bands.length ? `; select ${MOST_BANDS} or fewer (click names, or filter) for 95 % confidence bands` : "") + without(missing) + ".";
    // All bands first: none lies over a curve.
    this.show(this.root.querySelector(".curves"), [...shown, ...lines], data.axes[axis], metric);
    this.drawPoints(left);
  }

  // The names stand below the picture, as long as they are; one that is clicked is switched off.
  entry(legend, index, group, colour, dash) {
    const item = document.createElement("li"), button = document.createElement("button");
    button.append(...this.named(colour, dash, `${group.label} (n = ${group.n})`).childNodes);
    button.setAttribute("aria-pressed", String(!this.hidden.has(index)));
    button.addEventListener("click", () => {
      if (!this.hidden.delete(index)) this.hidden.add(index);
      this.draw();
    });
    item.append(button);
    legend.append(item);
  }

  named(colour, dash, text) {
    const item = document.createElement("li"), line = document.createElement("span");
    line.className = "line " + dash;
    line.style.borderColor = colour;
    item.append(line, text);
    return item;
  }

  // A point for each configuration; those that differ in nothing but the noise are one line.
  drawPoints(left) {
    const place = this.root.querySelector(".tradeoff");
    if (!place) return;
    const metric = this.data.points, series = new Map(), missing = [];
    for (const row of left) {
      const index = Number(row.dataset.group), group = this.data.groups[index];
      if (!group.point) { missing.push(group.label); continue; }
      if (!series.has(group.series)) series.set(group.series, []);
      series.get(group.series).push([...group.point, group, index]);
    }
    const at = [...series.values()].flat().map(point => point[0]);
    const step = (window.innerWidth < 600 ? 0.02 : 0.008) * (Math.max(...at) - Math.min(...at)), legend = this.root.querySelector(".legend.lines");
    legend.replaceChildren();
    const drawn = [...series].map(([name, points], place) => {
      points.sort((a, b) => a[0] - b[0]);
      const [colour] = this.style[points[0][4]];
      legend.append(this.named(colour, "solid", name));
      // Beside each other, so that no interval hides another one.
      return {x: points.map(p => p[0] + step * (place - (series.size - 1) / 2)), y: points.map(p => p[1]),
        name: escaped(name), mode: "lines+markers", line: {color: colour, width: 1.5},
        error_y: {array: points.map(p => this.clipped(metric, p[1] + p[2]) - p[1]), symmetric: false, color: colour,
          arrayminus: points.map(p => p[1] - this.clipped(metric, p[1] - p[2])), thickness: 1.5, width: 5},
        marker: {size: 8}, customdata: points.map(p => [`± ${p[2].toPrecision(2)} ${escaped(p[3].label)} (n = ${p[3].n})`, p[0]]),
        hovertemplate: "%{y:.4g} %{customdata[0]}<br>epsilon %{customdata[1]}<extra></extra>"};
    });
    const count = drawn.reduce((sum, trace) => sum + trace.x.length, 0);
    this.root.querySelector("figcaption.points").textContent = `${count} of ${left.length} configurations, with 95 % confidence intervals, ` +
      "at the epsilon of the whole run towards the server, side by side where it is equal" + without(missing) + ".";
    this.show(place, drawn, "epsilon of the whole run, server's view", metric);
  }

  show(place, drawn, across, metric) {
    if (!window.Plotly) return;  // it is being unpacked, and what it draws is drawn then
    const colours = getComputedStyle(document.documentElement);
    const [front, soft, line] = ["--front", "--soft", "--line"].map(name => colours.getPropertyValue(name).trim());
    const grid = {gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true};
    const [least, most] = this.data.range[metric] || [null, null], baseline = this.data.baseline[metric];
    const values = baseline === undefined ? [] : [baseline];
    for (const trace of drawn) {
      trace.y.forEach((y, i) => {
        if (y === null) return;
        values.push(y);
        if (trace.error_y) values.push(y + trace.error_y.array[i], y - trace.error_y.arrayminus[i]);
      });
    }
    const low = Math.min(...values), high = Math.max(...values), room = 0.15 * (high - low || 1);
    const range = values.length ? [Math.max(low - room, least ?? -Infinity), Math.min(high + room, most ?? Infinity)] : undefined;
    const shapes = baseline === undefined ? [] : [{type: "line", xref: "paper", x0: 0, x1: 1, y0: baseline, y1: baseline,
      line: {color: soft, width: 1, dash: "dot"}}];
    const annotations = baseline === undefined ? [] : [{xref: "paper", x: 1, y: baseline, text: "no features", showarrow: false,
      xanchor: "right", yanchor: "bottom", font: {size: 10, color: soft}}];
    const several = place.classList.contains("curves") && drawn.length <= 2 * MOST_BANDS;
    const hovermode = several && window.innerWidth >= 600 ? "x unified" : "closest";
    Plotly.react(place, drawn, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: front, size: window.innerWidth < 600 ? 11 : 12},
      modebar: {bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: front}, shapes, annotations,
      margin: {l: 55, r: 10, t: 10, b: 45}, hovermode, hoverlabel: {bgcolor: colours.getPropertyValue("--field"), font: {size: 11}}, showlegend: false,
      xaxis: {...grid, title: {text: across}},
      yaxis: {...grid, title: {text: escaped(this.data.titles[metric] || metric)}, range},
    }, {
      responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
      // Nothing leaves the page: no button uploads what is drawn.
      showSendToCloud: false, showEditInChartStudio: false, plotlyServerURL: "",
    });
  }
}

function without(labels) {
  return labels.length ? `; no values on these axes (no guarantee, not finite, or not in this page): ${labels.join("; ")}` : "";
}

const sections = [...document.querySelectorAll("section.data")].map(root => new Section(root));
const draw = () => sections.forEach(section => section.draw());
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
library().then(draw, error => {
  for (const text of document.querySelectorAll(".drawn")) {
    text.textContent = `Nothing can be drawn: ${error}. The tables are whole; a newer browser draws, too.`;
  }
});
