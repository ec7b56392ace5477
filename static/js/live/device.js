// A device's page: its figures and charts move with its stream; longer ranges show means and the largest values.
import { keepTimes } from "./ago.js";
import { Chart } from "./charts.js";
import { History, LIVE, LIVE_SECONDS, rangePicker, refreshed } from "./ranges.js";
import { Parts } from "./parts.js";
import { isOld, LiveStream, showState } from "./stream.js";
import { MEASURES, written } from "./units.js";

const page = document.getElementById("device");
const history = new History(page.querySelector("[data-history-note]"));
const csv = page.querySelector("[data-csv]");

/** Charts by their columns: one alone has its largest values beside it, two are lines of their own. */
const charts = [...page.querySelectorAll("[data-chart]")].map((element) => {
  const columns = element.dataset.chart.split(" ");
  const { title, write, low, high, binary } = MEASURES[columns[0]];
  const lines =
    columns.length > 1
      ? columns.map((name) => ({ label: MEASURES[name].title }))
      : [{ label: title }, { label: "Largest", dashed: true }];
  return { columns, chart: new Chart(element, { title, write, low, high, binary, lines }) };
});
const values = (columns, of) =>
  columns.length > 1 ? columns.map((name) => of(name, "mean")) : [of(columns[0], "mean"), of(columns[0], "max")];

async function load(chosen) {
  csv.href = `${csv.dataset.base}?range=${chosen}`;
  const body = await history.get(page.dataset.history, { range: chosen });
  if (!body) return;
  const unknown = body.times.map(() => null);
  const alone = chosen === LIVE; // second by second the largest value is the value
  for (const { columns, chart } of charts) {
    chart.set(
      body.times,
      values(columns, (name, kind) => (kind === "max" && alone ? unknown : (body.columns[name]?.[kind] ?? unknown))),
      body.span,
    );
  }
}
const range = rangePicker(page.querySelector("[data-range]"), load);
refreshed(range, load, () => charts.some(({ chart }) => chart.zoomed));

const parts = new Parts(["device-state"]);
const stream = new LiveStream(page.dataset.stream, {
  onNow(_, columns, time) {
    for (const cell of page.querySelectorAll("[data-now]")) {
      const text = written(cell.dataset.now, columns[cell.dataset.now]?.[0]);
      if (cell.textContent !== text) cell.textContent = text;
    }
    if (range() !== LIVE) return;
    for (const { columns: names, chart } of charts) {
      chart.add(
        time,
        values(names, (name, kind) => (kind === "max" ? null : (columns[name]?.[0] ?? null))),
        LIVE_SECONDS,
      );
    }
  },
  onDetails() {}, // they are in the part that is fetched
  onChanged: () => parts.changed(),
  onState(state) {
    showState(state);
    if (isOld(state, stream)) for (const cell of page.querySelectorAll("[data-now]")) cell.textContent = "–";
  },
});
keepTimes(page.dataset.served);
