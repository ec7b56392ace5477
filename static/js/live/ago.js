// Keeps `<time>` elements true on a page that is not fetched anew: the words of the server's filter `ago`.
const EVERY_MS = 5000;
const UNITS = [
  ["d", 86_400, "h", 3600],
  ["h", 3600, "min", 60],
  ["min", 60, "s", 1],
];

/** A length of time in its one or two largest units. */
export function span(seconds) {
  const whole = Math.trunc(seconds);
  const found = UNITS.find(([, length]) => whole >= length);
  if (!found) return `${whole} s`;
  const [unit, length, smaller, part] = found;
  const rest = Math.floor((whole % length) / part);
  return `${Math.floor(whole / length)} ${unit}${rest && whole < 10 * length ? ` ${rest} ${smaller}` : ""}`;
}

/** How long ago, or how long until. */
export function ago(seconds) {
  if (Math.abs(seconds) < 2) return "just now";
  return seconds > 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
}

/** `served`: when the page was written by the server's clock, which counts: the browser's may be wrong. */
export function keepTimes(served) {
  const [{ responseStart }] = performance.getEntriesByType("navigation");
  const ahead = Date.now() - (performance.now() - responseStart) - Date.parse(served);
  setInterval(() => {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const words = ago((Date.now() - ahead - Date.parse(time.dateTime)) / 1000);
      if (time.textContent !== words) time.textContent = words;
    }
  }, EVERY_MS);
}
