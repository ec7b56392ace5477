// The fleet page: ties stream, map, card and figures together; what is shown is kept in the address.
import { CONDITION } from "./frames.js";
import { showFigures } from "./figures.js";
import { Heatmap } from "./heatmap.js";
import { HoverCard } from "./hover.js";
import { MEASURES, stateOf } from "./measures.js";
import { palette } from "./scale.js";
import { FleetStream } from "./stream.js";

const page = document.getElementById("fleet");
const view = page.querySelector(".heat");
const empty = page.querySelector(".heat-empty");
const filter = page.querySelector("#fleet-filter");
const stateFilter = page.querySelector("#fleet-state");
const typeFilter = page.querySelector("#fleet-type");
const live = document.querySelector(".live");
const banner = document.getElementById("stream-banner");
const speech = page.querySelector("#fleet-speech");
const query = new URLSearchParams(location.search);

let layout = null;
let columns = null;
let pointedRow = null;
let measure = MEASURES[query.get("by")] ? query.get("by") : "allocated";
filter.value = query.get("q") ?? "";
stateFilter.value = query.get("state") ?? "";
let type = query.get("type") ?? "gpu";

const card = new HoverCard(document.getElementById("device-card"), page.dataset.cardUrl);
const map = new Heatmap(view, view.querySelector("canvas"), view.querySelector(".spacer"), {
  onPoint(row, bounds, byKey) {
    pointedRow = row;
    if (row === null || !columns) return card.hide();
    card.show(layout.devices[row], row, columns, bounds);
    if (byKey) speech.textContent = map.words(layout.devices[row], row);
  },
  onOpen(row) {
    const device = layout.devices[row];
    location.assign(`${page.dataset.nodeUrl.replace("NODE", encodeURIComponent(device.node.name))}#${device.type}-${device.minor}`);
  },
});

function matches(device, row, words) {
  if (device.type !== type) return false;
  if (stateFilter.value && columns) {
    const state = stateOf(columns, row);
    const wanted = stateFilter.value;
    const fits = { free: state === "free", used: ["in use", "shared", "held", "taken outside"].includes(state), trouble: ["unhealthy", "vanished", "node not ready"].includes(state) }[wanted];
    if (!fits) return false;
  }
  const text = `${device.node.name} ${device.model} ${device.node.rack}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

let shownKey = "";
function choose(force) {
  if (!layout) return;
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const groups = [];
  for (const node of layout.nodes) {
    const rows = [];
    for (let row = node.first; row < node.first + node.count; row++) if (matches(layout.devices[row], row, words)) rows.push(row);
    if (rows.length) groups.push({ node, rows });
  }
  const key = `${layout.version}|${type}|${groups.map((group) => group.rows.join()).join("|")}`;
  if (!force && key === shownKey) return;
  shownKey = key;
  map.show(groups);
  empty.hidden = groups.length > 0;
  const none = layout.devices.length === 0;
  empty.querySelector("strong").textContent = none ? "No devices yet" : "Nothing matches";
  empty.querySelector("p").textContent = none ? "Nodes appear here as soon as an agent reports them or an inventory is sent." : "Change the filter to see devices again.";
}

function keepInAddress() {
  const next = new URLSearchParams();
  if (measure !== "allocated") next.set("by", measure);
  if (filter.value) next.set("q", filter.value);
  if (stateFilter.value) next.set("state", stateFilter.value);
  if (type !== "gpu") next.set("type", type);
  const text = next.toString();
  history.replaceState(null, "", text ? `?${text}` : location.pathname);
}

function legend() {
  const { css } = palette(document.documentElement.dataset.bsTheme === "dark");
  const canvas = page.querySelector(".heat-legend canvas");
  const context = canvas.getContext("2d");
  for (let i = 0; i < canvas.width; i++) {
    context.fillStyle = css[Math.round((255 * i) / (canvas.width - 1))];
    context.fillRect(i, 0, 1, canvas.height);
  }
  const chosen = MEASURES[measure];
  page.querySelector("[data-legend=low]").textContent = `${chosen.low}${chosen.unit}`;
  page.querySelector("[data-legend=high]").textContent = `${chosen.high}${chosen.unit}`;
}

function setMeasure(name) {
  measure = name;
  page.querySelectorAll("[data-measure]").forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.measure === name)));
  map.setMeasure(name);
  legend();
  keepInAddress();
}

function types() {
  if (!layout.types.includes(type)) type = layout.types.includes("gpu") || !layout.types.length ? "gpu" : layout.types[0];
  typeFilter.hidden = layout.types.length < 2;
  typeFilter.replaceChildren(...layout.types.map((name) => new Option(name.toUpperCase(), name, false, name === type)));
}

function say(text, bad) {
  banner.hidden = !text;
  banner.classList.toggle("banner-bad", Boolean(bad));
  banner.querySelector("span").textContent = text;
}

let conditions = 0;
let state = "connecting";
function tell() {
  live.dataset.state = state;
  live.querySelector("span").textContent = { live: "live", stale: "not live", connecting: "connecting", "signed-out": "signed out" }[state];
  if (state === "signed-out") say("You are signed out. Sign in again to see the fleet live.", true);
  else if (state === "stale") say("The live stream is interrupted: what you see is the last known state. Reconnecting…", true);
  else if (conditions & CONDITION.DATABASE_DOWN) say("The database does not answer: allocations are shown as last read.", true);
  else if (conditions & CONDITION.REDIS_DOWN) say("Redis does not answer: measurements may be missing. Allocations are current.", false);
  else say("");
}

page.querySelectorAll("[data-measure]").forEach((button) => button.addEventListener("click", () => setMeasure(button.dataset.measure)));
filter.addEventListener("input", () => { choose(); keepInAddress(); });
stateFilter.addEventListener("change", () => { choose(); keepInAddress(); });
typeFilter.addEventListener("change", () => { type = typeFilter.value; choose(); keepInAddress(); });
document.addEventListener("gpuplane:theme", legend);
setMeasure(measure);

const scheme = location.protocol === "https:" ? "wss" : "ws";
const stream = new FleetStream(`${scheme}://${location.host}${page.dataset.stream}`, {
  onLayout(next) {
    layout = next;
    columns = null;
    pointedRow = null;
    card.hide();
    types();
    showCount();
  },
  onColumns(next, rows, header) {
    const first = columns === null;
    columns = next;
    conditions = header.conditions;
    map.columns = next;
    if (first) choose(true);
    else if (stateFilter.value) choose();
    map.update(next, rows);
    showFigures(layout, next);
    if (pointedRow !== null && map.pointed >= 0) card.show(layout.devices[pointedRow], pointedRow, next, map.boundsOf(map.pointed));
    page.dataset.frames = String(Number(page.dataset.frames ?? 0) + 1);
  },
  onState(next) {
    state = next;
    tell();
  },
});

function showCount() {
  const racks = new Set(layout.nodes.map((node) => node.rack).filter(Boolean)).size;
  const parts = [`${layout.nodes.length} nodes`, `${layout.devices.length} devices`];
  if (racks) parts.push(`${racks} racks`);
  document.querySelector("[data-fleet-size]").textContent = parts.join(" · ");
}

// for tests and for the curious: what the page holds, nothing more
window.gpuplaneFleet = { stream, map, get columns() { return columns; }, get layout() { return layout; } };
