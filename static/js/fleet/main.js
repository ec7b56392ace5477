// The fleet page: ties stream, map, card and figures together; what is shown is kept in the address.
import { readAddress, writeAddress } from "./address.js";
import { readFilter } from "./filter.js";
import { CONDITION } from "./frames.js";
import { showFigures } from "./figures.js";
import { chooseGroups, choosingColumns, holdersNeeded, moves, namesTypes, sameGroups } from "./groups.js";
import { Heatmap } from "./heatmap.js";
import { Holders } from "./holders.js";
import { CARD_COLUMNS, HoverCard } from "./hover.js";
import { MEASURES } from "./measures.js";
import { streamAddress } from "../socket.js";
import { FleetStream } from "./stream.js";
import { listenToKeys, press, showLegend, SIGN_PIXELS } from "./tools.js";

const ADDRESS_AFTER_MS = 250;
const CARD_RESTS_MS = 120;
const page = document.getElementById("fleet");
const heat = page.querySelector(".heat");
const empty = page.querySelector(".heat-empty");
const filter = page.querySelector("#fleet-filter");
const stateFilter = page.querySelector("#fleet-state");
const typeFilter = page.querySelector("#fleet-type");
const grouping = page.querySelector("#fleet-group");
const live = document.querySelector(".live");
const banner = document.getElementById("stream-banner");
const speech = page.querySelector("#fleet-speech");

const { place, ...view } = readAddress(location.search);
let placeToTake = place;
let layout = null;
let columns = null;
let groups = null;
let pointedRow = null;
let cardShown = false;
let sequence = -1;
let unsaid = null; // the row that the keyboard came to, until there is something to say of it

const chosen = () => ({ type: view.type, state: view.state, group: view.group, terms: readFilter(view.q) });
const card = new HoverCard(document.getElementById("device-card"), page.dataset.cardUrl);
const holders = new Holders(page.dataset.holdersUrl, () => choose());
const map = new Heatmap(heat, {
  onPoint(row, bounds, byKey) {
    pointedRow = row;
    rest();
    if (row !== unsaid) unsaid = null;
    if (row === null || !columns) return card.hide();
    card.show(layout.devices[row], row, columns, (name) => stream.has(name), bounds);
    if (byKey) unsaid = row;
    speak();
  },
  onOpen(row) {
    const device = layout.devices[row];
    keepInAddress();
    location.assign(`${page.dataset.nodeUrl.replace("NODE", encodeURIComponent(device.node.name))}#${device.type}-${device.minor}`);
  },
  onMove: later,
});

/** Say what the keyboard came to, once the stream has told it: columns not looked at hold what was, or nothing. */
function speak() {
  if (unsaid === null) return;
  const known = map.wordColumns.every((name) => stream.knows(name));
  if (!known && state === "live") return;
  speech.textContent = map.words(layout.devices[unsaid], unsaid, known);
  unsaid = null;
}

// the card's columns are asked for once the pointer rests, and left alone once it has gone
let resting = 0;
function rest() {
  clearTimeout(resting);
  resting = setTimeout(() => {
    cardShown = pointedRow !== null;
    stream.lookAt(wanted());
  }, CARD_RESTS_MS);
}

/** The columns that what is shown needs; the flags come by themselves. */
function wanted() {
  const names = [...MEASURES[view.by].columns, ...choosingColumns(chosen()), ...(cardShown ? CARD_COLUMNS : [])];
  return [...new Set(names)].sort();
}

/** Choose what is shown, once what it depends on is known; the map is arranged anew only when that differs. */
function choose() {
  const asked = chosen();
  if (!layout || !columns || !holders.knows(holdersNeeded(asked))) return;
  if (!choosingColumns(asked).every((name) => stream.knows(name))) return;
  const next = chooseGroups(layout, columns, asked, (key, device) => holders.of(key, device));
  if (sameGroups(groups, next)) return;
  groups = next;
  map.show(groups, layout.devices.length);
  if (placeToTake && groups.length) {
    map.camera.restore(placeToTake);
    placeToTake = null;
  }
  const none = layout.devices.length === 0;
  empty.hidden = groups.length > 0;
  empty.querySelector("strong").textContent = none ? "No devices yet" : "Nothing matches";
  empty.querySelector("p").textContent = none ? "Nodes appear here as soon as an agent reports them or an inventory is sent." : "Change the filter to see devices again.";
  tellCount();
}

function tellCount() {
  const shown = groups.reduce((sum, group) => sum + group.count, 0);
  const racks = new Set(layout.nodes.map((node) => node.rack).filter(Boolean)).size;
  const counted = new Intl.NumberFormat("en").format;
  const parts = [`${counted(layout.nodes.length)} nodes`, `${counted(layout.devices.length)} devices`];
  if (racks) parts.push(`${counted(racks)} racks`);
  if (view.q || view.state) parts.push(`${counted(shown)} shown`);
  document.querySelector("[data-fleet-size]").textContent = parts.join(" · ");
}

let waiting = 0;
function later() {
  clearTimeout(waiting);
  waiting = setTimeout(keepInAddress, ADDRESS_AFTER_MS);
}

function keepInAddress() {
  clearTimeout(waiting);
  const address = location.pathname + writeAddress(view, placeToTake ?? map.camera.position());
  if (address !== location.pathname + location.search) history.replaceState(null, "", address);
}

/** Show another view: part of {by, group, type, state, q}. What is in view starts over unless only the colours change. */
function change(part) {
  Object.assign(view, part);
  if (Object.keys(part).join() !== "by") map.camera.step(0);
  showView();
  choose();
  later();
}

function showView() {
  press(page, "measure", view.by);
  grouping.value = view.group;
  stateFilter.value = view.state;
  typeFilter.disabled = namesTypes(chosen().terms);
  if (filter.value !== view.q) filter.value = view.q;
  map.setMeasure(view.by);
  legend();
  holders.follow(holdersNeeded(chosen()));
  stream?.lookAt(wanted());
}

function legend() {
  showLegend(page, view.by, map.spritesOf(Math.round(SIGN_PIXELS * map.scale)));
}

function types() {
  if (!layout.types.includes(view.type)) view.type = layout.types.includes("gpu") || !layout.types.length ? "gpu" : layout.types[0];
  typeFilter.hidden = layout.types.length < 2;
  typeFilter.replaceChildren(...layout.types.map((name) => new Option(name.toUpperCase(), name, false, name === view.type)));
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

page.querySelectorAll("[data-measure]").forEach((button) => button.addEventListener("click", () => change({ by: button.dataset.measure })));
page.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => map.camera.step(Number(button.dataset.zoom))));
filter.addEventListener("input", () => change({ q: filter.value }));
stateFilter.addEventListener("change", () => change({ state: stateFilter.value }));
typeFilter.addEventListener("change", () => change({ type: typeFilter.value }));
grouping.addEventListener("change", () => change({ group: grouping.value }));
document.addEventListener("gpuplane:theme", legend);
listenToKeys(filter, (step) => map.camera.step(step));

let stream = null;
showView();
stream = new FleetStream(streamAddress(page.dataset.stream), wanted(), {
  onLayout(next) {
    if (map.plan && !placeToTake) placeToTake = map.camera.position();
    layout = next;
    columns = groups = pointedRow = unsaid = null;
    card.hide();
    map.point(-1);
    types();
  },
  onFrame(next, header) {
    columns = next;
    conditions = header.conditions;
    if (!groups || moves(chosen())) choose();
    map.update(next);
    showFigures(header.figures, header.sequence !== sequence);
    sequence = header.sequence;
    speak();
    if (pointedRow !== null && map.pointed >= 0) card.show(layout.devices[pointedRow], pointedRow, next, (name) => stream.has(name), map.boundsOf(map.pointed));
    page.dataset.frames = String(Number(page.dataset.frames ?? 0) + 1);
  },
  onState(next) {
    state = next;
    tell();
  },
});

// for tests, the bench and the curious: what the page holds, nothing more; `paints`: how long each took, in ms
window.gpuplaneFleet = { stream, map, view, paints: map.paints, get columns() { return columns; }, get layout() { return layout; } };
