// What stands around the heatmap: its controls, legend and words, and the keys that work anywhere on the page.
import { FLAG } from "./frames.js";
import { namesTypes } from "./groups.js";
import { MEASURES } from "./measures.js";
import { palette } from "./scale.js";

const SIGN_PIXELS = 14;
const { HEALTHY, PRESENT, STRANGER, NODE_READY } = FLAG;
/** By `MEASURES.health.states`. */
const STATE_FLAGS = [
  HEALTHY | PRESENT | NODE_READY,
  HEALTHY | PRESENT | NODE_READY | STRANGER,
  HEALTHY | PRESENT,
  PRESENT | NODE_READY,
  HEALTHY | NODE_READY,
];
const counted = new Intl.NumberFormat("en");

export class Controls {
  /**
   * `onChange(part)`: another part of the view was chosen; `onZoom(step)`: nearer (1), further (-1), everything (0).
   */
  constructor(page, { onChange, onZoom }) {
    this.page = page;
    this.filter = page.querySelector("#fleet-filter");
    this.state = page.querySelector("#fleet-state");
    this.type = page.querySelector("#fleet-type");
    this.group = page.querySelector("#fleet-group");
    for (const button of page.querySelectorAll("[data-measure]")) {
      button.addEventListener("click", () => onChange({ by: button.dataset.measure }));
    }
    for (const button of page.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => onZoom(Number(button.dataset.zoom)));
    }
    this.filter.addEventListener("input", () => onChange({ q: this.filter.value }));
    for (const name of ["state", "type", "group"]) {
      this[name].addEventListener("change", () => onChange({ [name]: this[name].value }));
    }
    listenToKeys(this.filter, onZoom);
  }

  /** Show which view is chosen. `terms`: of its filter. */
  show(view, terms) {
    press(this.page, "measure", view.by);
    this.group.value = view.group;
    this.state.value = view.state;
    this.type.disabled = namesTypes(terms);
    if (this.filter.value !== view.q) this.filter.value = view.q;
  }

  /** The colours of a measure as the map paints them. */
  showLegend(name, map) {
    showLegend(this.page, name, map.spritesOf(Math.round(SIGN_PIXELS * map.scale)));
  }

  /** Offer the types that the fleet has; returns the one that is chosen now. */
  offerTypes(types, wanted) {
    const chosen = types.includes(wanted) ? wanted : types.includes("gpu") || !types.length ? "gpu" : types[0];
    this.type.hidden = types.length < 2;
    this.type.replaceChildren(...types.map((name) => new Option(name.toUpperCase(), name, false, name === chosen)));
    return chosen;
  }

  /** How large the fleet is, how much of it is shown, and why nothing is. */
  showCount(layout, shown, isFiltered) {
    const racks = new Set(layout.nodes.map((node) => node.rack).filter(Boolean)).size;
    const parts = [`${counted.format(layout.nodes.length)} nodes`, `${counted.format(layout.devices.length)} devices`];
    if (racks) parts.push(`${counted.format(racks)} racks`);
    if (isFiltered) parts.push(`${counted.format(shown)} shown`);
    document.querySelector("[data-fleet-size]").textContent = parts.join(" · ");
    const empty = this.page.querySelector(".heat-empty");
    const [title, text] = layout.devices.length
      ? ["Nothing matches", "Change the filter to see devices again."]
      : ["No devices yet", "Nodes appear here as soon as an agent reports them or an inventory is sent."];
    empty.hidden = shown > 0;
    empty.querySelector("strong").textContent = title;
    empty.querySelector("p").textContent = text;
  }

  /** To whoever listens instead of looking. */
  say(words) {
    this.page.querySelector("#fleet-speech").textContent = words;
  }
}

/** Mark which of a group of buttons is on. */
function press(page, attribute, value) {
  for (const button of page.querySelectorAll(`[data-${attribute}]`)) {
    const on = button.dataset[attribute] === value;
    button.setAttribute("aria-pressed", String(on));
    if (on && button.offsetParent) button.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

/** The colour scale of a measure in words and colours; for health, its states as the map paints them (`sprites`). */
function showLegend(page, name, sprites) {
  const measure = MEASURES[name];
  const dark = document.documentElement.dataset.bsTheme === "dark";
  const legend = page.querySelector(".heat-legend");
  const words = legend.querySelector("[data-states]");
  legend.classList.toggle("of-states", Boolean(measure.states));
  legend.querySelector(".scale").hidden = Boolean(measure.states);
  words.hidden = !measure.states;
  if (measure.states) {
    words.replaceChildren(...measure.states.map((state, at) => sign(state, sprites.get(at, STATE_FLAGS[at]))));
    return;
  }
  const canvas = legend.querySelector(".scale canvas");
  const context = canvas.getContext("2d");
  const { css } = palette(dark);
  for (let i = 0; i < canvas.width; i++) {
    context.fillStyle = css[Math.round((255 * i) / (canvas.width - 1))];
    context.fillRect(i, 0, 1, canvas.height);
  }
  const end = measure.unit === "%" ? "" : "+"; // a percentage ends there, other measures may go on
  legend.querySelector("[data-legend=low]").textContent = `${measure.low}${measure.unit}`;
  legend.querySelector("[data-legend=high]").textContent = `${measure.high}${end}${measure.unit}`;
}

function sign(words, pixels) {
  const element = document.createElement("span");
  const canvas = document.createElement("canvas");
  const size = Math.sqrt(pixels.length);
  Object.assign(canvas, { width: size, height: size });
  canvas.style.width = canvas.style.height = `${SIGN_PIXELS}px`;
  canvas.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), size), 0, 0);
  element.className = "sign";
  element.append(canvas, words);
  return element;
}

/** Keys of the page: `/` to the filter, `+`, `-`, `0` for the zoom; not while somebody types, nor with a modifier. */
function listenToKeys(filter, zoom) {
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target === filter) {
      if (filter.value) {
        filter.value = "";
        filter.dispatchEvent(new Event("input", { bubbles: true }));
      } else filter.blur();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.("input, select, textarea, dialog, [contenteditable]")) return;
    const step = { "+": 1, "=": 1, "-": -1, "−": -1, 0: 0 }[event.key];
    if (event.key === "/") filter.focus();
    else if (step !== undefined) zoom(step);
    else return;
    event.preventDefault();
  });
}
