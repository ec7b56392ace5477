// The controls around the heatmap: what they show of a view, and the keys that work anywhere on the page.
import { MEASURES } from "./measures.js";
import { palette, statePalette } from "./scale.js";

/** Mark which of a group of buttons is on. */
export function press(page, attribute, value) {
  for (const button of page.querySelectorAll(`[data-${attribute}]`)) {
    const on = button.dataset[attribute] === value;
    button.setAttribute("aria-pressed", String(on));
    if (on && button.offsetParent) button.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

/** The colour scale of a measure in words and colours; for health, its states. */
export function showLegend(page, name) {
  const measure = MEASURES[name];
  const dark = document.documentElement.dataset.bsTheme === "dark";
  page.querySelector(".heat-legend .scale").hidden = Boolean(measure.states);
  const words = page.querySelector("[data-states]");
  words.hidden = !measure.states;
  if (measure.states) return showStates(words, measure.states, statePalette(dark).css);
  const canvas = page.querySelector(".heat-legend canvas");
  const context = canvas.getContext("2d");
  const { css } = palette(dark);
  for (let i = 0; i < canvas.width; i++) {
    context.fillStyle = css[Math.round((255 * i) / (canvas.width - 1))];
    context.fillRect(i, 0, 1, canvas.height);
  }
  const end = measure.unit === "%" ? "" : "+"; // a percentage ends there, other measures may go on
  page.querySelector("[data-legend=low]").textContent = `${measure.low}${measure.unit}`;
  page.querySelector("[data-legend=high]").textContent = `${measure.high}${end}${measure.unit}`;
}

function showStates(element, states, colours) {
  element.replaceChildren(...states.map((state, at) => {
    const sign = document.createElement("span");
    const box = document.createElement("i");
    sign.className = "sign";
    box.style.background = colours[at];
    sign.append(box, state);
    return sign;
  }));
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
