// The figures above the map, and the last minutes of the two that move.
import { figures } from "./measures.js";

const KEPT = 300;
const history = { allocated: [], utilisation: [] };

/** Counts over the fleet, written into [data-figure] elements. */
export function showFigures(layout, columns) {
  const now = figures(layout, columns);
  const shown = {
    total: String(now.total),
    used: String(now.used),
    free: String(now.free),
    unhealthy: String(now.unhealthy),
    allocated: now.allocated === null ? "–" : now.allocated.toFixed(1),
    utilisation: now.utilisation === null ? "–" : now.utilisation.toFixed(1),
  };
  for (const element of document.querySelectorAll("[data-figure]")) {
    const text = shown[element.dataset.figure];
    if (text !== undefined && element.textContent !== text) element.textContent = text;
  }
  document.querySelector("[data-alarm=unhealthy]")?.classList.toggle("alarm", now.unhealthy > 0);
  for (const [name, values] of Object.entries(history)) {
    values.push(now[name]);
    if (values.length > KEPT) values.shift();
    spark(document.querySelector(`[data-spark=${name}]`), values);
  }
}

function spark(svg, values) {
  const known = values.filter((value) => value !== null);
  if (!svg || known.length < 2) return;
  const low = Math.min(...known);
  const range = Math.max(4, Math.max(...known) - low);
  const step = 100 / Math.max(20, values.length - 1);
  const start = 100 - step * (values.length - 1);
  const points = values
    .map((value, index) => (value === null ? null : `${(start + index * step).toFixed(2)},${(19 - (16 * (value - low)) / range).toFixed(2)}`))
    .filter(Boolean);
  svg.querySelector("polyline").setAttribute("points", points.join(" "));
  svg.querySelector("polygon").setAttribute("points", `${points[0].split(",")[0]},22 ${points.join(" ")} 100,22`);
}
