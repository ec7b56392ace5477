// The figures above the map as the server reckons them, and the last minutes of the two that move.
const KEPT = 300;
const counted = new Intl.NumberFormat("en");
const history = { allocated: [], utilisation: [] };

/** Numbers over the fleet, written into [data-figure] elements; `anew`: a tick not shown yet. */
export function showFigures(figures, anew) {
  const percent = (value) => (value === null ? "–" : value.toFixed(1));
  const shown = { ...figures, allocated: percent(figures.allocated), utilisation: percent(figures.utilisation) };
  for (const element of document.querySelectorAll("[data-figure]")) {
    const value = shown[element.dataset.figure];
    const text = typeof value === "number" ? counted.format(value) : value;
    if (element.textContent !== text) element.textContent = text;
  }
  document.querySelector("[data-alarm=unhealthy]")?.classList.toggle("alarm", figures.unhealthy > 0);
  if (!anew) return;
  for (const [name, values] of Object.entries(history)) {
    values.push(figures[name]);
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
    .map((value, index) =>
      value === null ? null : `${(start + index * step).toFixed(2)},${(19 - (16 * (value - low)) / range).toFixed(2)}`,
    )
    .filter(Boolean);
  svg.querySelector("polyline").setAttribute("points", points.join(" "));
  svg.querySelector("polygon").setAttribute("points", `${points[0].split(",")[0]},22 ${points.join(" ")} 100,22`);
}
