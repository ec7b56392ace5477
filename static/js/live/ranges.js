// The row of buttons that says how far back charts look; what is chosen is kept in the address.
import { span } from "./ago.js";

export const LIVE = "3m";
export const LIVE_SECONDS = 180;

/** Calls `choose(range)` at once and whenever another button is pressed. Returns () → the range chosen. */
export function rangePicker(element, choose) {
  let chosen = element.dataset.range;
  const show = () => {
    for (const button of element.querySelectorAll("button"))
      button.setAttribute("aria-pressed", String(button.dataset.value === chosen));
  };
  element.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-value]");
    if (!button) return;
    chosen = button.dataset.value;
    const query = new URLSearchParams(location.search);
    query.set("range", chosen);
    history.replaceState(null, "", `?${query}${location.hash}`);
    show();
    choose(chosen);
  });
  show();
  choose(chosen);
  return () => chosen;
}

/**
 * What of a range is shown, `span` [first, last] in seconds since 1970, and what is said of it: a chart starts where
 * measuring began, if that is within the range. `times` are those of points of `step` seconds, `until` its end.
 */
export function shown({ times, step, seconds, until }) {
  const first = until - seconds;
  if (!times.length) return { span: [first, until], note: "Nothing was measured in this range." };
  const began = times[0] - step;
  if (began <= first + step) return { span: [first, until], note: "" };
  return { span: [began, until], note: `The first figures of this range are ${span(until - times[0])} old.` };
}

const MINUTE_MS = 60_000;

/** Loads a range anew as minutes come, while the page is seen and nobody looks at a part of it. */
export function refreshed(range, load, isLookedAt) {
  setInterval(
    () => document.visibilityState === "visible" && range() !== LIVE && !isLookedAt() && load(range()),
    MINUTE_MS,
  );
}

/** The answer of a history address; an error is said in `note`. Only the answer to the newest question counts. */
export class History {
  constructor(note) {
    this.note = note;
    this.asked = 0;
  }

  async get(url, parameters) {
    this.asked += 1;
    const number = this.asked;
    try {
      const answer = await fetch(`${url}?${new URLSearchParams(parameters)}`, {
        headers: { Accept: "application/json" },
      });
      if (!answer.ok) throw new Error(`${answer.status}`);
      const body = await answer.json();
      if (number !== this.asked) return null;
      const { span, note } = shown(body);
      if (parameters.range !== LIVE) body.span = span;
      this.say(body.times.length && parameters.range === LIVE ? "" : note);
      return body;
    } catch (error) {
      if (number === this.asked) this.say(`The history cannot be read (${error.message}).`);
      return null;
    }
  }

  say(text) {
    this.note.hidden = !text;
    if (this.note.textContent !== text) this.note.textContent = text;
  }
}
