// A node's page: the devices' figures and charts move with its stream; the link matrix shows links that are down and
// who sends how much.
import { keepTimes } from "./ago.js";
import { Chart } from "./charts.js";
import { History, LIVE, LIVE_SECONDS, rangePicker, refreshed } from "./ranges.js";
import { Parts } from "./parts.js";
import { isOld, LiveStream, showState } from "./stream.js";
import { bytes, MEASURES, written } from "./units.js";

const page = document.getElementById("node");
const made = document.getElementById("node-head").dataset.gpus;
const gpus = JSON.parse(made);
const history = new History(page.querySelector("[data-history-note]"));
const charts = new Map();
for (const element of page.querySelectorAll("[data-chart]")) {
  const { title, write, low, high, binary } = MEASURES[element.dataset.chart];
  charts.set(
    element.dataset.chart,
    new Chart(element, { title, write, low, high, binary, lines: gpus.map((gpu) => ({ label: `GPU ${gpu.minor}` })) }),
  );
}

async function load(chosen) {
  const body = await history.get(page.dataset.history, { range: chosen, columns: [...charts.keys()].join() });
  if (!body) return;
  const place = new Map(body.devices.map((device, at) => [device.uuid, at]));
  for (const [name, chart] of charts) {
    chart.set(
      body.times,
      gpus.map((gpu) => body.columns[name]?.[place.get(gpu.uuid)] ?? body.times.map(() => null)),
      body.span,
    );
  }
}
const range = rangePicker(page.querySelector("[data-range]"), load);
refreshed(range, load, () => [...charts.values()].some((chart) => chart.zoomed));

let latest = null;
let quiet = false;
function showNow() {
  if (!latest && !quiet) return;
  const { devices, columns } = latest ?? { devices: [], columns: {} };
  const place = new Map(devices.map((uuid, at) => [uuid, at]));
  for (const cell of page.querySelectorAll("[data-uuid] [data-now]")) {
    const at = place.get(cell.closest("[data-uuid]").dataset.uuid);
    const text = at === undefined ? "–" : written(cell.dataset.now, columns[cell.dataset.now]?.[at]);
    if (cell.textContent !== text) cell.textContent = text;
  }
  for (const cell of page.querySelectorAll("[data-traffic]")) {
    const at = place.get(cell.dataset.traffic);
    const sent = columns.nvlink_tx_bytes?.[at];
    const received = columns.nvlink_rx_bytes?.[at];
    cell.textContent = known(sent) || known(received) ? `↑ ${rate(sent)}  ↓ ${rate(received)}` : "–";
    const most = Number(cell.dataset.most);
    cell.dataset.heat =
      most && (known(sent) || known(received))
        ? String(Math.min(4, Math.ceil((4 * Math.max(sent ?? 0, received ?? 0)) / most)))
        : "";
  }
}

const known = (value) => value !== null && value !== undefined;
const rate = (value) => (known(value) ? `${bytes(value)}/s` : "–");

/** Links that are down, on the matrix and beside each GPU. */
let details = {};
function showLinks(devices = details) {
  details = devices;
  for (const cell of page.querySelectorAll("[data-links]")) {
    const links = devices[cell.dataset.links]?.links ?? [];
    const down = links.filter(([, isUp]) => !isUp).length;
    const errors = links.reduce(
      (sum, [, , , replay, recovery, crc]) => sum + (replay ?? 0) + (recovery ?? 0) + (crc ?? 0),
      0,
    );
    cell.textContent = !links.length ? "–" : down ? `${down} of ${links.length} down` : `${links.length} up`;
    if (errors) cell.textContent += ` · ${errors} errors`;
    cell.classList.toggle("chip-bad", down > 0);
  }
}

const parts = new Parts(["node-head", "devices"]);
const stream = new LiveStream(page.dataset.stream, {
  onNow(devices, columns, time) {
    latest = { devices, columns };
    quiet = false;
    showNow();
    page.querySelector("[data-heard] time")?.setAttribute("datetime", new Date(1000 * time).toISOString());
    if (range() !== LIVE) return;
    const place = new Map(devices.map((uuid, at) => [uuid, at]));
    for (const [name, chart] of charts)
      chart.add(
        time,
        gpus.map((gpu) => columns[name]?.[place.get(gpu.uuid)] ?? null),
        LIVE_SECONDS,
      );
  },
  onDetails: showLinks,
  onChanged: () => parts.changed(),
  onState(state) {
    showState(state);
    if (!isOld(state, stream)) return;
    latest = null; // what was said then says nothing about now
    quiet = true;
    showNow();
  },
});
document.body.addEventListener("htmx:afterSettle", () => {
  // charts have a line for each GPU that was there when the page was made
  if (document.getElementById("node-head").dataset.gpus !== made) location.reload();
  showNow();
  showLinks();
});
keepTimes(page.dataset.served);
