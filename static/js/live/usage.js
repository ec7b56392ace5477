// The usage page: the fleet's totals over time, by group and range; a new minute is fetched when it is due.
import { Chart } from "./charts.js";
import { History, rangePicker, refreshed } from "./ranges.js";
import { bytes } from "./units.js";

const page = document.getElementById("usage");
const history = new History(page.querySelector("[data-history-note]"));
const group = page.querySelector("#usage-group");
const csv = page.querySelector("[data-csv]");
const count = (value) => (Number.isInteger(value) ? String(value) : value.toFixed(1));

const CHARTS = {
  gpus: { title: "GPUs", write: count, columns: { gpus: "All", held: "Held", used: "Used", idle: "Held and idle" } },
  memory: {
    title: "GPU memory",
    write: bytes,
    binary: true,
    columns: { memory: "All", memory_given: "Allocated", memory_used: "In use" },
  },
  power: {
    title: "Power",
    write: (value) => (value >= 10_000 ? `${(value / 1000).toFixed(1)} kW` : `${Math.round(value)} W`),
    columns: { power: "Power" },
  },
};
const charts = [...page.querySelectorAll("[data-chart]")].map((element) => {
  const { columns, ...look } = CHARTS[element.dataset.chart];
  const lines = Object.values(columns).map((label) => ({ label }));
  return { columns: Object.keys(columns), chart: new Chart(element, { ...look, low: 0, lines }) };
});

async function load(chosen) {
  csv.href = `${csv.dataset.base}?${new URLSearchParams({ range: chosen, group: group.value })}`;
  const body = await history.get(page.dataset.history, { range: chosen, group: group.value });
  if (!body) return;
  for (const { columns, chart } of charts)
    chart.set(
      body.times,
      columns.map((name) => body.columns[name]),
      body.span,
    );
  const last = (name) => body.columns[name]?.at(-1) ?? null;
  for (const element of page.querySelectorAll("[data-total]")) {
    const [part, whole] = element.dataset.total.split("/");
    const above = last(part);
    const below = whole ? last(whole) : null;
    element.textContent =
      above === null ? "–" : whole ? (below ? ((100 * above) / below).toFixed(0) : "–") : count(above);
  }
}

const range = rangePicker(page.querySelector("[data-range]"), load);
group.addEventListener("change", () => {
  const query = new URLSearchParams(location.search);
  query.set("group", group.value);
  window.history.replaceState(null, "", `?${query}`);
  load(range());
});
refreshed(range, load, () => charts.some(({ chart }) => chart.zoomed));
