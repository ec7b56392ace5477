// The view as the page's address: measure, grouping, type, state, filter, zoom and place, each only where it is not the
// usual. Pure.
import { GROUPINGS } from "./groups.js";
import { MEASURES, STATES } from "./measures.js";

const USUAL = { by: "allocated", group: "rack", type: "gpu", state: "", q: "" };

/** {by, group, type, state, q, place: {zoom, x, y} | null} of `?…`; what makes no sense is the usual. */
export function readAddress(search) {
  const query = new URLSearchParams(search);
  const view = Object.fromEntries(Object.entries(USUAL).map(([name, usual]) => [name, query.get(name) ?? usual]));
  if (!Object.hasOwn(MEASURES, view.by)) view.by = USUAL.by;
  if (!Object.hasOwn(GROUPINGS, view.group)) view.group = USUAL.group;
  if (!Object.hasOwn(STATES, view.state)) view.state = USUAL.state;
  const zoom = Number(query.get("zoom") ?? 1);
  const [x, y] = (query.get("at") ?? "").split(",").map(Number);
  const placed = zoom > 0 && Number.isFinite(zoom) && [x, y].every((part) => part >= 0 && part <= 1);
  return { ...view, place: placed ? { zoom, x, y } : null };
}

/**
 * `?…` of a view, empty when all of it is usual, at the beginning of a fleet that is whole in view. `position`: {zoom,
 * x, y}.
 */
export function writeAddress(view, position) {
  const query = new URLSearchParams();
  for (const [name, usual] of Object.entries(USUAL)) if (view[name] !== usual) query.set(name, view[name]);
  if (position.zoom !== 1 || position.x || position.y) {
    query.set("zoom", String(Number(position.zoom.toFixed(3))));
    query.set("at", [position.x, position.y].map((part) => Math.min(1, Math.max(0, part)).toFixed(4)).join());
  }
  const text = query.toString().replaceAll("%2C", ",").replaceAll("%3A", ":");
  return text ? `?${text}` : "";
}
