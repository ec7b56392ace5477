// Parts of a page that are fetched again and again stay as they are under the hands of whoever uses them.
import { isInUse } from "./in_use.js";

const kept = new Map();

/** Whether the clock asked for it: its turn comes again in a moment. */
const byClock = ({ elt, triggeringEvent }) => elt.getAttribute("hx-trigger")?.includes("every") && !triggeringEvent;

document.body.addEventListener("htmx:beforeRequest", (event) => {
  if (byClock(event.detail.requestConfig) && isInUse(event.detail.elt)) event.preventDefault();
});
// Somebody may have begun while the answer was on its way.
document.body.addEventListener("htmx:beforeSwap", ({ detail }) => {
  if (byClock(detail.requestConfig) && isInUse(detail.target)) detail.shouldSwap = false;
});
document.body.addEventListener("htmx:oobBeforeSwap", ({ detail }) => {
  if (isInUse(detail.target)) detail.shouldSwap = false;
});

// Tables that were moved sideways stay where they were.
document.body.addEventListener("htmx:beforeSwap", () => {
  kept.clear();
  for (const table of document.querySelectorAll("[id] .table-responsive")) {
    if (table.scrollLeft) kept.set(table.closest("[id]").id, table.scrollLeft);
  }
});
document.body.addEventListener("htmx:afterSettle", () => {
  for (const [id, left] of kept) {
    const table = document.getElementById(id)?.querySelector(".table-responsive");
    if (table) table.scrollLeft = left;
  }
});

// The row that the address names stays marked: :target is lost with the element that is replaced.
function markLinked() {
  for (const row of document.querySelectorAll("tr.linked")) row.classList.remove("linked");
  const id = location.hash.slice(1);
  if (id) document.getElementById(id)?.closest("tr")?.classList.add("linked");
}
markLinked();
window.addEventListener("hashchange", markLinked);
document.body.addEventListener("htmx:afterSettle", markLinked);
