"use strict";
(() => {
  const place = document.getElementById("charts");
  window.drawCharts(place, [JSON.parse(document.getElementById("charts-data").textContent)]);

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
