// The models page: tokens a second and waiting time in the last hour.
import { Chart } from "./charts.js";

const source = document.getElementById("served-by-minute");

/** One chart of a series by minute. */
function draw(name, title, write, times, values) {
  const element = document.querySelector(`[data-chart="${name}"]`);
  if (!element) return;
  const chart = new Chart(element, { title, write, low: 0, lines: [{ label: title }] });
  chart.set(times, [values], [times[0], times.at(-1)]);
}

if (source) {
  const { times, tokens, waited } = JSON.parse(source.dataset.values);
  draw("tokens", "Tokens a second", (value) => String(Math.round(value)), times, tokens);
  draw("waited", "Waited", (value) => `${value.toFixed(1)} s`, times, waited);
}
