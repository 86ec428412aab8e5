"use strict";
// Keys, filters without a new page, and live curves. Every page works without this script,
// except for the curves.
(() => {
  const LIVE_MS = 3000, PENDING_MS = 700, TYPING_MS = 200;
  const content = document.getElementById("content");

  // Live curves
  const live = document.body.dataset.live, charts = document.getElementById("charts");
  let tag = null;
  function told(text) {
    const place = document.getElementById("live-state");
    if (place) place.textContent = text;
  }
  function missing(runs) {
    const place = document.getElementById("notices");
    const faults = runs.flatMap(run => run.missing.map(text => (runs.length > 1 ? `${run.key}: ${text}` : text)));
    if (!place) return;
    place.replaceChildren();
    if (!faults.length) return;
    const box = document.createElement("div"), list = document.createElement("ul");
    box.className = "missing";
    box.textContent = "Not shown:";
    for (const fault of faults) list.appendChild(document.createElement("li")).textContent = fault;
    box.append(list);
    place.append(box);
  }
  async function follow() {
    try {
      const reply = await fetch(live, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
      if (reply.status === 200) {
        tag = reply.headers.get("ETag");
        const found = await reply.json();
        if (found.runs.length) {
          window.drawCharts(charts, found.runs);
          missing(found.runs);
          const last = document.getElementById("last-step");
          if (last) last.textContent = found.runs[0].step;
        }
        const gone = found.gone.map(key => `${key} is gone; the curves are its last.`);
        const running = found.runs.some(run => run.state === "running");
        told([running ? "Live." : "Not running.", ...gone].join(" "));
      }
    } catch (error) {
      told("The viewer has stopped; the curves are the last that it sent.");
    }
    setTimeout(follow, LIVE_MS);
  }
  if (live && charts) follow();

  // Filters: the same URL as the form's, of which only the results are replaced.
  const form = document.querySelector("form[data-swap]");
  let newest = 0;
  async function load(url, isNew) {
    const number = ++newest;
    const reply = await fetch(url, { cache: "no-store" });
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    if (number !== newest) return; // an older answer than the last question
    const place = document.getElementById("results"), made = page.getElementById("results");
    if (!place || !made) { location.assign(url); return; }
    place.replaceWith(made);
    if (isNew) history.replaceState(null, "", url);
    here = -1;
    wait();
  }
  function asked() {
    const words = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value && !(name === "order" && value === "newest")) words.append(name, value);
    return `${location.pathname}?${words}`;
  }
  function wait() {
    const place = document.getElementById("results");
    if (place && Number(place.dataset.pending) > 0) setTimeout(() => load(location.href, false).catch(() => {}), PENDING_MS);
  }
  if (form) {
    let timer = 0;
    const soon = delay => {
      clearTimeout(timer);
      timer = setTimeout(() => load(asked(), true).catch(() => {}), delay);
    };
    form.addEventListener("input", event => soon(event.target.type === "search" ? TYPING_MS : 0));
    form.addEventListener("submit", event => { event.preventDefault(); soon(0); });
    wait();
  }

  // Keys
  let here = -1;
  function move(by) {
    const items = [...document.querySelectorAll(".item")];
    if (!items.length) return;
    here = Math.min(Math.max(here + by, 0), items.length - 1);
    items.forEach((item, n) => item.classList.toggle("here", n === here));
    const link = items[here].querySelector("a");
    if (link) link.focus({ preventScroll: true });
    items[here].scrollIntoView({ block: "nearest" });
  }
  const button = document.getElementById("help-button"), help = document.getElementById("help");
  function toggleHelp() {
    help.hidden = !help.hidden;
    button.setAttribute("aria-expanded", String(!help.hidden));
  }
  button.addEventListener("click", toggleHelp);
  document.addEventListener("keydown", event => {
    const typing = event.target.closest("input[type=search], select, textarea");
    if (event.key === "Escape" && typing) { event.target.blur(); return; }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    // Marks of steps: a key marks the first step without a mark.
    const step = [...document.querySelectorAll("fieldset.step")].find(one => !one.querySelector(":checked"));
    const mark = step && [...step.querySelectorAll("[data-mark]")].find(one => one.dataset.mark === event.key);
    if (mark) {
      if (!event.repeat) mark.click();
      (step.nextElementSibling || step).scrollIntoView({ block: "center" });
      event.preventDefault();
      return;
    }
    // Shift with an arrow key selects text.
    if (event.shiftKey && event.key.startsWith("Arrow")) return;
    const moves = { j: 1, k: -1 };
    if (moves[event.key]) move(moves[event.key]);
    else if (event.key === "?") toggleHelp();
    else {
      const found = [...document.querySelectorAll("[data-key]")].find(one => one.dataset.key === event.key);
      if (!found) return;
      if (found.tagName === "BUTTON") {
        // A key that is held down must not answer the next page too.
        if (!event.repeat) found.click();
      } else if (found.tagName === "A") found.click();
      else found.focus();
    }
    event.preventDefault();
  });
})();
