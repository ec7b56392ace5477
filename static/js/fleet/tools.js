// The controls around the heatmap: what they show of a view, and the keys that work anywhere on the page.
import { FLAG } from "./frames.js";
import { MEASURES } from "./measures.js";
import { palette } from "./scale.js";

export const SIGN_PIXELS = 14;
const { HEALTHY, PRESENT, STRANGER, NODE_READY } = FLAG;
/** By `MEASURES.health.states`. */
const STATE_FLAGS = [HEALTHY | PRESENT | NODE_READY, HEALTHY | PRESENT | NODE_READY | STRANGER, HEALTHY | PRESENT, PRESENT | NODE_READY, HEALTHY | NODE_READY];

/** Mark which of a group of buttons is on. */
export function press(page, attribute, value) {
  for (const button of page.querySelectorAll(`[data-${attribute}]`)) {
    const on = button.dataset[attribute] === value;
    button.setAttribute("aria-pressed", String(on));
    if (on && button.offsetParent) button.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

/** The colour scale of a measure in words and colours; for health, its states as the map paints them (by its `sprites`). */
export function showLegend(page, name, sprites) {
  const measure = MEASURES[name];
  const dark = document.documentElement.dataset.bsTheme === "dark";
  const legend = page.querySelector(".heat-legend");
  const words = legend.querySelector("[data-states]");
  legend.classList.toggle("of-states", Boolean(measure.states));
  legend.querySelector(".scale").hidden = Boolean(measure.states);
  words.hidden = !measure.states;
  if (measure.states) return words.replaceChildren(...measure.states.map((state, at) => sign(state, sprites.get(at, STATE_FLAGS[at]))));
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

/** Keys of the page: `/` to the filter, `+`, `-` and `0` for the zoom; not while somebody types, nor with a modifier. */
export function listenToKeys(filter, zoom) {
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target === filter) {
      if (filter.value) {
        filter.value = "";
        filter.dispatchEvent(new Event("input", { bubbles: true }));
      } else filter.blur();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea, dialog, [contenteditable]")) return;
    const step = { "+": 1, "=": 1, "-": -1, "−": -1, 0: 0 }[event.key];
    if (event.key === "/") filter.focus();
    else if (step !== undefined) zoom(step);
    else return;
    event.preventDefault();
  });
}
