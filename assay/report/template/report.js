"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts-data").textContent);
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // Traces name their colors ("c1", "pass", "c1-fill"); the page's scheme says what they are.
  function color(name) {
    const plain = name.replace(/-fill$/, "");
    return plain === name ? css(name) : css(plain) + "66";
  }
  function colored(value, key = "") {
    if (Array.isArray(value)) return value;
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, colored(v, k)]));
    }
    return key === "color" || key === "fillcolor" ? color(value) : value;
  }
  function axis(own) {
    return {
      gridcolor: css("line"), zerolinecolor: css("line"), linecolor: css("line"), tickcolor: css("line"),
      automargin: true, nticks: 6, ...own, title: { font: { size: 12 }, standoff: 8, ...(own.title || {}) },
    };
  }
  function layout(chart) {
    const named = chart.traces.filter(trace => trace.showlegend !== false);
    return {
      autosize: true, margin: { l: 44, r: 10, t: named.length > 1 ? 34 : 12, b: 36 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: css("sans"), size: 12, color: css("soft") },
      showlegend: named.length > 1,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", itemsizing: "constant" },
      hovermode: "x unified",
      hoverlabel: { bgcolor: css("card"), bordercolor: css("line"), font: { color: css("ink"), size: 12 } },
      xaxis: axis((chart.layout && chart.layout.xaxis) || { title: { text: "step" }, showgrid: false, rangemode: "tozero", tickformat: ",d", hoverformat: ",d", unifiedhovertitle: { text: "step %{x:,d}" } }),
      yaxis: axis((chart.layout && chart.layout.yaxis) || {}),
    };
  }
  function draw() {
    document.querySelectorAll(".plot").forEach(place => {
      const chart = charts[Number(place.dataset.chart)];
      const options = { displayModeBar: false, responsive: true };
      Plotly.react(place, chart.traces.map(trace => colored(trace)), layout(chart), options);
    });
  }
  if (charts.length) {
    draw();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  }

  const filters = document.getElementById("filters");
  if (!filters) return;
  const buttons = [...filters.querySelectorAll("button")];
  const step = filters.querySelector("select");
  const search = filters.querySelector("input");
  const sections = [...document.querySelectorAll("#rollouts .step")];
  let status = "";
  function hideWhatIsEmpty(place, inner) {
    place.hidden = !place.querySelector(`${inner}:not([hidden])`);
  }
  function show() {
    const words = search.value.toLowerCase();
    const has = node => node.textContent.toLowerCase().includes(words);
    for (const section of sections) {
      const here = !step.value || section.dataset.step === step.value;
      for (const group of section.querySelectorAll(".group")) {
        const all = has(group.querySelector(".prompt"));
        for (const rollout of group.querySelectorAll(".rollout")) {
          const wanted = here && (!status || rollout.dataset.status === status);
          rollout.hidden = !(wanted && (all || has(rollout)));
        }
        hideWhatIsEmpty(group, ".rollout");
      }
      hideWhatIsEmpty(section, ".group");
    }
    document.getElementById("no-rollouts").hidden = sections.some(section => !section.hidden);
  }
  for (const button of buttons) {
    button.addEventListener("click", () => {
      status = button.dataset.status;
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      show();
    });
  }
  step.addEventListener("change", show);
  search.addEventListener("input", show);
})();
