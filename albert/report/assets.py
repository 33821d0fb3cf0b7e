"""The style sheet and the script of the page. The script shows tooltips on the charts and lets the reader hide runs."""

STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --ink: #1d1d1b; --faint: #65645f; --line: #deddd7; --panel: #f7f6f3; --mark: #fff1c9;
  --run-0: #2a78d6; --run-1: #d95926; --run-2: #168a59; --run-3: #b07a00; --run-4: #4a3aa7; --run-5: #e34948;
  --run-6: #c4508a; --run-7: #008b9b; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #171716; --ink: #ecebe6; --faint: #a3a29b; --line: #383835; --panel: #20201e; --mark: #40371a;
  --run-0: #5b9df0; --run-1: #f0803f; --run-2: #2fb57c; --run-3: #d9a520; --run-4: #9d93f2; --run-5: #ef7472;
  --run-6: #e07fb0; --run-7: #2fb8c6; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1280px; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; margin: .5rem 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1rem 0 .25rem; }
p, .faint { color: var(--faint); margin: .25rem 0; } code { font-size: .85em; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: normal; max-width: 32rem; }
td.number { text-align: right; white-space: nowrap; } .short { white-space: nowrap; }
thead th, tbody th { color: var(--faint); font-weight: 500; }
tr.differs td { background: var(--mark); }
.legend { position: sticky; top: 0; z-index: 1; background: var(--paper); display: flex; flex-wrap: wrap; gap: .4rem;
  padding: .4rem 0; }
.legend button { font: inherit; font-size: 13px; color: var(--ink); background: var(--panel); cursor: pointer;
  border: 1px solid var(--line); border-radius: 1rem; padding: .2rem .7rem; text-align: left; }
.legend button[aria-pressed=false] { opacity: .45; text-decoration: line-through; }
.swatch { display: inline-block; width: .7em; height: .7em; border-radius: 50%; background: var(--color);
  margin-right: .4em; }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); }
figure { margin: 0; position: relative; background: var(--panel); border: 1px solid var(--line); border-radius: 8px;
  padding: .6rem; min-width: 0; }
figcaption { font-weight: 600; font-size: 14px; }
svg { display: block; width: 100%; height: auto; touch-action: pan-y; }
svg text { font-size: 11px; fill: var(--faint); } svg .y { text-anchor: end; } svg .x { text-anchor: middle; }
svg .grid { stroke: var(--line); } svg .cursor { stroke: var(--faint); stroke-dasharray: 2 2; }
svg polyline { fill: none; stroke: var(--color); stroke-width: 1.6; stroke-linejoin: round;
  stroke-dasharray: var(--dashes, none); }
svg .stage line { stroke: var(--color); stroke-width: .6; opacity: .6; }
svg .stage text { font-size: 9px; text-anchor: end; }
svg .evaluation polyline { stroke-width: .8; } svg circle { fill: var(--color); }
.tip { position: absolute; pointer-events: none; background: var(--paper); border: 1px solid var(--line);
  border-radius: 6px; padding: .3rem .5rem; font-size: 12px; max-width: 90%; box-shadow: 0 2px 8px #0003; }
details { margin: .5rem 0; } summary { cursor: pointer; }
figure img { display: block; max-width: 100%; border-radius: 4px; background: #fff; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; } .pictures figure { max-width: min(100%, 420px); }
[hidden] { display: none; }
@media (max-width: 700px) { .legend { position: static; } }
"""

SCRIPT = """
"use strict";
const hidden = new Set();
for (const chart of document.querySelectorAll("figure.chart")) {
  const data = JSON.parse(chart.querySelector("script").textContent);
  const svg = chart.querySelector("svg"), cursor = svg.querySelector(".cursor");
  const tip = chart.appendChild(document.createElement("div"));
  tip.className = "tip";
  tip.hidden = true;
  const leave = () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); };
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const pointerX = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    const share = Math.min(1, Math.max(0, (pointerX - data.left) / (data.right - data.left)));
    const step = data.steps[0] + share * (data.steps[1] - data.steps[0]);
    tip.replaceChildren();
    for (const {run, name, points} of data.series.filter((curve) => !hidden.has(curve.run))) {
      let nearest = points[0];
      for (const point of points) if (Math.abs(point[0] - step) < Math.abs(nearest[0] - step)) nearest = point;
      const row = tip.appendChild(document.createElement("div"));
      const swatch = row.appendChild(document.createElement("span"));
      swatch.className = "swatch";
      swatch.style.setProperty("--color", `var(--run-${run % 8})`);
      row.append(`${name}: ${Number(nearest[1].toPrecision(5))} at step ${nearest[0]}`);
    }
    if (!tip.childElementCount) return leave();
    tip.hidden = false;
    const cursorX = data.left + share * (data.right - data.left);
    cursor.setAttribute("x1", cursorX);
    cursor.setAttribute("x2", cursorX);
    cursor.setAttribute("visibility", "visible");
    tip.style.top = "2rem";
    tip.style.left = share < .5 ? "auto" : ".6rem";
    tip.style.right = share < .5 ? ".6rem" : "auto";
  });
}
for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const run = Number(button.dataset.run), hide = !hidden.has(run);
    hide ? hidden.add(run) : hidden.delete(run);
    button.setAttribute("aria-pressed", String(!hide));
    for (const group of document.querySelectorAll(`svg g[data-run="${run}"]`)) group.style.display = hide ? "none" : "";
  });
}
"""
