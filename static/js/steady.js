// Parts of a page that are fetched again and again stay as they are under the hands of whoever uses them.
import { isInUse } from "./in_use.js";

const kept = new Map();

document.body.addEventListener("htmx:beforeRequest", (event) => {
  const { elt } = event.detail;
  const byClock = elt.getAttribute("hx-trigger")?.includes("every") && !event.detail.requestConfig?.triggeringEvent;
  if (byClock && isInUse(elt)) event.preventDefault(); // its turn comes again in a moment
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
