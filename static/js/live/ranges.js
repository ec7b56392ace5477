// The row of buttons that says how far back charts look; what is chosen is kept in the address.
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
      if (parameters.range !== LIVE) body.span = [body.until - body.seconds, body.until];
      this.say(body.times.length ? "" : "Nothing was measured in this range.");
      return body;
    } catch (error) {
      if (number === this.asked) this.say(`The history cannot be read (${error.message}).`);
      return null;
    }
  }

  say(text) {
    this.note.hidden = !text;
    this.note.textContent = text;
  }
}
