// page_text: the fixed style and script of a report.  Light and dark follow the reader's system.
// The script only adds to the page: pointing at a chart shows the records there.
#pragma once

namespace lockstep {

inline constexpr const char* page_style = R"css(
:root { color-scheme: light dark; --back: #ffffff; --panel: #f6f7f9; --text: #1c2126; --soft: #5c6670; --line: #d9dee3; --accent: #2563a8;
  --c0: #2563a8; --c1: #c2571a; --c2: #2a7f48; --c3: #8b3fa8; --c4: #b3261e; --c5: #00798a; --c6: #7a6500; --c7: #596673; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171a; --panel: #1d2125; --text: #e4e7ea; --soft: #9aa4ae; --line: #363d44; --accent: #6ea8e8;
    --c0: #6ea8e8; --c1: #f0965a; --c2: #6cc48c; --c3: #c690e0; --c4: #f08078; --c5: #54c4d4; --c6: #d4bc50; --c7: #aab4be; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 15px/1.45 system-ui, "DejaVu Sans", Helvetica, Arial, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 20px 24px 60px; }
h1 { font-size: 24px; margin: 0 0 2px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 34px 0 10px; border-bottom: 1px solid var(--line); padding-bottom: 4px; }
p { margin: 6px 0; }
.soft, figcaption, th { color: var(--soft); }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; margin: 14px 0 0; }
.tile { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: 8px 14px; min-width: 130px; }
.tile b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(460px, 100%), 1fr)); gap: 18px; }
figure { margin: 0; }
.chart { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: 10px 10px 4px; }
.chart figcaption { font-size: 13px; display: flex; flex-wrap: wrap; gap: 2px 14px; }
.chart figcaption b { color: var(--text); font-size: 14px; }
.key::before { content: ""; display: inline-block; width: 14px; height: 3px; border-radius: 2px; background: var(--c); vertical-align: middle; margin-right: 5px; }
.key.dashed::before { width: 19px; height: 0; border-top: 2px dashed var(--soft); border-radius: 0; background: none; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
.grid, .resume, .cursor { fill: none; }
.grid { stroke: var(--line); stroke-width: 1; }
.curve, .dots { fill: none; stroke: var(--c); vector-effect: non-scaling-stroke; stroke-linejoin: round; stroke-linecap: round; }
.curve { stroke-width: 1.6; }
.dots { stroke-width: 6; }
.resume { stroke: var(--soft); stroke-width: 1.3; stroke-dasharray: 4 3; }
.cursor { stroke: var(--soft); stroke-width: 1; }
#tip { position: absolute; pointer-events: none; background: var(--back); border: 1px solid var(--line); border-radius: 5px; padding: 4px 8px; font-size: 12.5px;
  white-space: pre; font-variant-numeric: tabular-nums; box-shadow: 0 2px 8px #0004; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 10px; text-align: right; border-bottom: 1px solid var(--line); font-weight: normal; white-space: nowrap; }
th.name, td.name { text-align: left; white-space: normal; overflow-wrap: anywhere; max-width: 480px; }
thead th { position: sticky; top: 0; background: var(--back); vertical-align: bottom; }
.scroll { overflow: auto; max-height: 520px; max-width: 100%; }
.columns { display: flex; flex-wrap: wrap; gap: 18px 40px; align-items: flex-start; }
.columns > * { max-width: 100%; }
.matrix td { padding: 0; width: 34px; min-width: 34px; height: 30px; text-align: center; font-size: 12px; border: 1px solid var(--line); }
.matrix th { border: none; font-size: 13px; padding: 2px 6px; }
.matrix th.name { max-width: 190px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.matrix thead th { position: static; }
.matrix thead th div { writing-mode: vertical-rl; transform: rotate(180deg); max-height: 130px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.matrix td.strong { color: #fff; }
.heat { width: 560px; max-width: 100%; image-rendering: pixelated; border: 1px solid var(--line); display: block; }
.bar { display: inline-block; height: 9px; border-radius: 2px; background: var(--accent); vertical-align: middle; }
.track { display: inline-block; width: 90px; height: 9px; border-radius: 2px; background: var(--line); margin-left: 8px; text-align: left; line-height: 9px; vertical-align: middle; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 14px; }
.pictures img { width: 100%; aspect-ratio: 1; object-fit: contain; background: var(--panel); border: 1px solid var(--line); border-radius: 4px; }
.pictures img.small { image-rendering: pixelated; }
.pictures figcaption { font-size: 13px; overflow-wrap: anywhere; }
.pictures figcaption b { color: var(--text); }
.stack { display: flex; height: 22px; border-radius: 4px; overflow: hidden; margin: 4px 0 10px; background: var(--line); }
.stack div { background: var(--c); }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: 10px; overflow: auto; max-height: 420px; font-size: 13px; margin: 8px 0; }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 13px; }
summary { cursor: pointer; color: var(--accent); margin: 8px 0; }
@media print { .scroll, pre { max-height: none; } }
)css";

inline constexpr const char* page_script = R"js(
"use strict";
const tip = document.getElementById("tip");
for (const svg of document.querySelectorAll(".chart svg")) {
  const [ax, bx, perX, ay, by] = svg.dataset.map.split(" ").map(Number);
  const percent = svg.dataset.unit === "%";
  const curves = new Map();
  for (const line of svg.querySelectorAll(".curve")) {
    const points = line.getAttribute("points").split(" ").map(p => p.split(",").map(Number));
    curves.set(line.dataset.name, (curves.get(line.dataset.name) || []).concat(points));
  }
  const cursor = svg.querySelector(".cursor");
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    const x = ((event.clientX - box.left) / box.width * view.width - bx) / ax;
    let nearest = NaN;
    for (const points of curves.values())
      for (const p of points) if (!(Math.abs(p[0] - x) >= Math.abs(nearest - x))) nearest = p[0];
    if (isNaN(nearest)) return;
    const lines = [svg.dataset.axis + " " + +(nearest / perX).toFixed(3) + (perX !== 1 ? ", step " + nearest : "")];
    for (const [name, points] of curves) {
      let at = points[0];
      for (const p of points) if (Math.abs(p[0] - nearest) < Math.abs(at[0] - nearest)) at = p;
      lines.push(name + "  " + (percent ? (100 * at[1]).toFixed(2) + " %" : +at[1].toPrecision(5)));
    }
    cursor.setAttribute("d", "M" + (nearest * ax + bx) + " 10V" + (view.height - 40));
    tip.textContent = lines.slice(0, 24).join("\n");
    tip.hidden = false;
    const left = event.pageX + 16 + tip.offsetWidth > innerWidth + scrollX ? event.pageX - tip.offsetWidth - 12 : event.pageX + 16;
    tip.style.left = left + "px";
    tip.style.top = event.pageY + 12 + "px";
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; cursor.setAttribute("d", ""); });
}
)js";

}  // namespace lockstep
