// Parts of a page that are fetched again and again stay as they are under the hands of whoever uses them.
const kept = new Map();

/** Whether somebody is at work in it: the focus is there, or words of it are selected. */
function isInUse(element) {
  const selection = document.getSelection();
  const selected = selection && !selection.isCollapsed && element.contains(selection.anchorNode);
  const focus = document.activeElement;
  return selected || (focus !== null && focus !== document.body && element.contains(focus));
}

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
