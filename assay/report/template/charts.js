"use strict";
// Draws the charts of one or several runs as SVG, for the report and the viewer. Several runs share
// a frame: a color for each run, a dash for each line. Text enters the page as text only, never as
// markup. A drag over a chart zooms into its steps, and a double click resets the zoom.
(() => {
  const NS = "http://www.w3.org/2000/svg";
  const W = 560, H = 230, LEFT = 52, RIGHT = 8, TOP = 10, BOTTOM = 24;
  const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
  const RUN_COLORS = ["c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"];
  const MOST_LINES = 4; // for each of several runs
  const LEAST_DRAG = 8; // in the units of W; a shorter drag is a click
  const zooms = new Map(); // title of a chart to the shown range of its horizontal axis

  function node(name, attributes, text) {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }
  function html(name, className, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }
  const color = name => `var(--${name})`;
  const isNumber = value => typeof value === "number" && Number.isFinite(value);

  function format(value, chart) {
    if (!isNumber(value)) return "";
    if (chart.share) return `${Number((100 * value).toPrecision(3))} %`;
    const size = Math.abs(value);
    if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
    if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
    return String(Number(value.toPrecision(3)));
  }
  function ticks(low, high, count) {
    const raw = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= raw);
    const found = [];
    for (let n = Math.ceil(low / step); n * step <= high + step * 1e-9; n += 1) found.push(n * step);
    return found;
  }
  function logTicks(low, high) {
    const found = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p += 1) {
      for (const digit of [1, 2, 5]) {
        const value = digit * 10 ** p;
        if (value >= low && value <= high) found.push(value);
      }
    }
    return found.length > 7 ? found.filter(value => Math.log10(value) % 1 === 0) : found;
  }

  // The lines of a chart over all runs: name, color, dash, points, and lower edges where stacked.
  function linesOf(title, runs) {
    const found = [];
    runs.forEach((run, place) => {
      const chart = run.charts.find(one => one.title === title);
      if (!chart) return;
      const named = [...new Set(chart.traces.map(trace => trace.name))];
      let below = null;
      for (const trace of chart.traces) {
        const rank = named.indexOf(trace.name);
        if (runs.length > 1 && rank >= MOST_LINES) continue;
        const stacked = trace.stacked && runs.length === 1;
        const base = stacked ? below || trace.y.map(() => 0) : null;
        const y = stacked ? trace.y.map((value, n) => (value || 0) + (base[n] || 0)) : trace.y;
        if (stacked) below = y;
        found.push({
          ...trace, y, base, own: trace.y, run: place,
          name: runs.length > 1 ? `${run.name}: ${trace.name}` : trace.name,
          color: runs.length > 1 ? RUN_COLORS[place % 8] : trace.color,
          dash: runs.length > 1 ? DASHES[rank % 4] : trace.dotted ? DASHES[2] : "",
        });
      }
    });
    return found;
  }

  function ranges(lines, chart) {
    const xs = [], ys = [];
    for (const line of lines) {
      line.x.forEach((x, n) => {
        const value = line.y[n];
        if (!isNumber(value) || (chart.log && value <= 0)) return;
        xs.push(x);
        ys.push(value + ((line.above || [])[n] || 0), value - ((line.below || [])[n] || 0));
      });
    }
    if (!xs.length) return null;
    const bound = (values, pick) => values.reduce((a, b) => pick(a, b));
    let [low, high] = [bound(ys, Math.min), bound(ys, Math.max)];
    if (!chart.log) low = Math.min(0, low);
    if (high === low) high = low + (Math.abs(low) || 1);
    if (chart.unit && high > low) high += (high - low) * 0.08; // room for the unit
    return { x: [chart.plain ? 0 : Math.min(bound(xs, Math.min), 0), Math.max(bound(xs, Math.max), 1)], y: [low, high] };
  }

  function axes(svg, chart, range, px, py) {
    const marks = chart.log ? logTicks(...range.y) : ticks(...range.y, 4);
    for (const value of marks) {
      svg.append(node("line", { x1: LEFT, x2: W - RIGHT, y1: py(value), y2: py(value), stroke: color("line") }));
      svg.append(node("text", { x: LEFT - 6, y: py(value) + 4, "text-anchor": "end" }, format(value, chart)));
    }
    for (const value of ticks(...range.x, 6)) {
      if (!chart.plain && value % 1) continue;
      const shown = chart.plain ? format(value, chart) : String(value);
      svg.append(node("text", { x: px(value), y: H - 6, "text-anchor": "middle" }, shown));
    }
    if (chart.unit) svg.append(node("text", { x: LEFT, y: TOP, class: "unit" }, chart.unit));
  }

  function drawLine(svg, line, chart, px, py) {
    const points = line.x.map((x, n) => [x, line.y[n], n]).filter(([, y]) => isNumber(y) && !(chart.log && y <= 0));
    if (!points.length) return;
    const path = points.map(([x, y], n) => `${n ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("");
    if (line.base) {
      const back = points.map(([x, , n]) => `L${px(x).toFixed(1)} ${py(line.base[n] || 0).toFixed(1)}`).reverse().join("");
      svg.append(node("path", { d: `${path}${back}Z`, fill: color(line.color), "fill-opacity": 0.4 }));
    }
    svg.append(node("path", {
      d: path, fill: "none", stroke: color(line.color), "stroke-width": line.faint ? 1 : 2,
      "stroke-opacity": line.faint ? 0.3 : 1, "stroke-dasharray": line.dash, "stroke-linejoin": "round",
    }));
    const radius = line.marks || points.length === 1 ? 3.2 : 0;
    for (const [x, y, n] of points) {
      if (line.above && isNumber(line.above[n])) {
        svg.append(node("line", { x1: px(x), x2: px(x), y1: py(y + line.above[n]), y2: py(y - line.below[n]), stroke: color(line.color) }));
      }
      const r = line.sizes ? line.sizes[n] / 2 : radius;
      if (r) svg.append(node("circle", { cx: px(x), cy: py(y), r, fill: color(line.color) }));
    }
  }

  const MARKS = { guard_stop: "■", guard_pause: "▲", guard_note: "△", resumed: "↻", rolled_back: "↩" };
  function drawMarks(svg, runs, range, px) {
    runs.forEach((run, place) => {
      for (const mark of run.marks) {
        if (mark.step < range.x[0] || mark.step > range.x[1]) continue;
        const at = px(mark.step), tint = mark.kind.startsWith("guard") ? "fail" : "other";
        const drawn = node("g", {});
        drawn.append(node("line", { x1: at, x2: at, y1: TOP, y2: H - BOTTOM, stroke: color(tint), "stroke-dasharray": "3 3" }));
        drawn.append(node("text", { x: at, y: TOP + 2, "text-anchor": "middle" }, MARKS[mark.kind] || "|"));
        const who = runs.length > 1 ? `${run.name}, ` : "";
        drawn.append(node("title", {}, `${who}step ${mark.step}: ${mark.kind.replaceAll("_", " ")}: ${mark.text}`));
        svg.append(drawn);
      }
    });
  }

  // Shows the values at the pointer's step below the chart.
  function follow(svg, tip, lines, runs, chart, range, px) {
    const cross = node("line", { y1: TOP, y2: H - BOTTOM, stroke: color("ink"), "stroke-opacity": 0.4, visibility: "hidden" });
    svg.append(cross);
    const shown = lines.filter(line => !line.faint);
    svg.addEventListener("pointermove", event => {
      const box = svg.getBoundingClientRect();
      const share = ((event.clientX - box.left) / box.width * W - LEFT) / (W - LEFT - RIGHT);
      const wanted = range.x[0] + share * (range.x[1] - range.x[0]);
      const steps = shown.flatMap(line => line.x).filter(x => x >= range.x[0] && x <= range.x[1]);
      if (!steps.length) return;
      const step = steps.reduce((a, b) => (Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a));
      cross.setAttribute("x1", px(step));
      cross.setAttribute("x2", px(step));
      cross.setAttribute("visibility", "visible");
      tip.replaceChildren(html("b", "", chart.plain ? format(step, chart) : `step ${step}`));
      for (const line of shown) {
        const at = line.x.indexOf(step), value = at < 0 ? null : (line.measured || line.own)[at];
        if (!isNumber(value)) continue;
        const count = line.counts ? ` of ${line.counts[at]}` : "";
        tip.append(` · ${line.name} ${format(value, chart)}${count}`);
      }
      for (const run of runs) {
        for (const mark of run.marks) if (mark.step === step) tip.append(` · ${mark.kind.replaceAll("_", " ")}: ${mark.text}`);
      }
    });
    svg.addEventListener("pointerleave", () => {
      cross.setAttribute("visibility", "hidden");
      tip.replaceChildren();
    });
  }

  // Zooms into the steps of a drag; `redraw` draws the chart again.
  function zoomable(svg, title, range, redraw) {
    const band = node("rect", { y: TOP, height: H - TOP - BOTTOM, width: 0, fill: color("ink"), "fill-opacity": 0.08 });
    svg.append(band);
    const at = event => {
      const box = svg.getBoundingClientRect();
      return Math.min(Math.max((event.clientX - box.left) / box.width * W, LEFT), W - RIGHT);
    };
    const step = x => range.x[0] + (x - LEFT) / (W - LEFT - RIGHT) * (range.x[1] - range.x[0]);
    let from = null;
    svg.addEventListener("pointerdown", event => {
      if (event.pointerType !== "mouse") return;
      from = at(event);
      svg.setPointerCapture(event.pointerId); // so that a release outside of the chart is seen
    });
    svg.addEventListener("pointermove", event => {
      if (from === null) return;
      band.setAttribute("x", Math.min(from, at(event)));
      band.setAttribute("width", Math.abs(at(event) - from));
    });
    svg.addEventListener("pointerup", event => {
      if (from === null) return;
      const ends = [from, at(event)].sort((a, b) => a - b);
      from = null;
      band.setAttribute("width", 0);
      if (ends[1] - ends[0] < LEAST_DRAG) return;
      zooms.set(title, ends.map(step));
      redraw();
    });
    svg.addEventListener("dblclick", () => { if (zooms.delete(title)) redraw(); });
  }

  function legend(lines) {
    const place = html("div", "legend");
    const seen = new Set();
    for (const line of lines) {
      if (seen.has(line.name)) continue;
      seen.add(line.name);
      const entry = html("span");
      const sample = node("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" });
      sample.append(node("line", { x1: 0, x2: 22, y1: 5, y2: 5, stroke: color(line.color), "stroke-width": 3, "stroke-dasharray": line.dash }));
      entry.append(sample, line.name);
      place.append(entry);
    }
    return place;
  }

  function figure(chart, runs) {
    const lines = linesOf(chart.title, runs);
    let shown = lines;
    const zoom = zooms.get(chart.title);
    const inside = x => x >= zoom[0] && x <= zoom[1];
    const cut = (line, values) => values && values.filter((_, n) => inside(line.x[n]));
    // A zoomed chart holds only the points inside, so that its vertical axis fits them.
    const keys = ["y", "base", "own", "above", "below", "measured", "sizes", "counts"];
    if (zoom) {
      shown = lines.map(line => ({
        ...line, x: line.x.filter(inside), ...Object.fromEntries(keys.map(key => [key, cut(line, line[key])])),
      }));
    }
    const range = ranges(shown, chart) || ranges(lines, chart);
    if (!range) return null;
    if (zoom) range.x = zoom;
    const made = html("figure", chart.wide ? "chart wide" : "chart");
    const caption = html("figcaption");
    caption.append(html("h3", "", chart.title), html("p", "", chart.note));
    const svg = node("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${chart.title}. ${chart.note}` });
    const scale = chart.log ? Math.log10 : value => value;
    const [low, high] = range.y.map(scale);
    const px = x => LEFT + (x - range.x[0]) / (range.x[1] - range.x[0] || 1) * (W - LEFT - RIGHT);
    const py = y => H - BOTTOM - (scale(y) - low) / (high - low || 1) * (H - TOP - BOTTOM);
    axes(svg, chart, range, px, py);
    for (const line of shown) drawLine(svg, line, chart, px, py);
    if (!chart.plain) drawMarks(svg, runs, range, px);
    const tip = html("div", "tip");
    follow(svg, tip, shown, runs, chart, range, px);
    zoomable(svg, chart.title, range, () => made.replaceWith(figure(chart, runs) || made));
    made.append(caption, legend(lines), svg, tip);
    return made;
  }

  window.drawCharts = (place, runs) => {
    const charts = new Map();
    for (const run of runs) for (const chart of run.charts) if (!charts.has(chart.title)) charts.set(chart.title, chart);
    const found = [...charts.values()].map(chart => figure(chart, runs)).filter(Boolean);
    place.replaceChildren(...(found.length ? found : [html("p", "empty", "No finished step yet.")]));
  };
})();
