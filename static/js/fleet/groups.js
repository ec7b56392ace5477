// Which devices are shown, and what they stand together by. Pure.
import { FLAG } from "./frames.js";
import { asksFor, fits, HOLDER_KEYS } from "./filter.js";
import { allocated, isState, STATE_COLUMNS, stateOf } from "./measures.js";

const collator = new Intl.Collator(undefined, { numeric: true });
const byName = (one, other) => collator.compare(one, other);
const NOBODY = "free";
const OUTSIDE = "taken outside";
const SEVERAL = "several teams";
const OTHERS = "another team";
const JUST_NOW = "allocated just now"; // teams are asked for every ten seconds, the stream is faster

/** Name of a group → what it says of a device; `none`: what stands over those without. */
export const GROUPINGS = {
  node: { none: "" },
  rack: { of: (device) => device.node.rack, none: "no rack" },
  pool: { of: (device) => device.node.pool, none: "no pool" },
  model: { of: (device) => device.model, none: "model unknown" },
  team: { last: [OTHERS, SEVERAL, JUST_NOW, OUTSIDE, NOBODY] },
};

/** Whether the view must be chosen anew with every frame, since what it depends on moves. */
export const moves = (view) => Boolean(view.state) || view.group === "team" || asksFor(view.terms, "state");

/** By what it needs to be known who holds what. */
export const holdersNeeded = (view) => HOLDER_KEYS.filter((key) => view.group === key || asksFor(view.terms, key));

/** Whether the filter says which types are shown; what is chosen beside it does not hold then. */
export const namesTypes = (terms) => asksFor(terms, "type");

/** The columns that choosing needs. */
export const choosingColumns = (view) => (moves(view) ? STATE_COLUMNS : []);

/**
 * [{name, count, trays: [{node, rows}]}] of what `view` ({type, state, terms, group}) shows; a `type:` among its terms
 * decides instead of `type`. `holdersOf(key, device)` gives names. Nodes stay whole within a group, in the layout's
 * order.
 */
export function chooseGroups(layout, columns, view, holdersOf) {
  const grouping = GROUPINGS[view.group];
  const found = new Map();
  const anyType = namesTypes(view.terms);
  for (const node of layout.nodes) {
    let tray = null;
    let trayName = null;
    for (let row = node.first; row < node.first + node.count; row++) {
      const device = layout.devices[row];
      if (!anyType && device.type !== view.type) continue;
      if (view.state && !isState(stateOf(columns, row), view.state)) continue;
      if (view.terms.length && !fits(view.terms, device, row, columns, holdersOf)) continue;
      const name =
        view.group === "team"
          ? teamName(holdersOf("team", device), columns, row)
          : grouping.of
            ? grouping.of(device) || grouping.none
            : "";
      if (name !== trayName) {
        tray = trayIn(found, name, node);
        trayName = name;
      }
      tray.rows.push(row);
    }
  }
  const groups = [...found.values()].sort(
    (one, other) => place(grouping, one.name) - place(grouping, other.name) || byName(one.name, other.name),
  );
  if (view.group === "node")
    for (const group of groups) group.trays.sort((one, other) => byName(one.node.name, other.node.name));
  for (const group of groups) group.count = group.trays.reduce((sum, tray) => sum + tray.rows.length, 0);
  return groups;
}

function trayIn(found, name, node) {
  if (!found.has(name)) found.set(name, { name, trays: [] });
  const { trays } = found.get(name);
  if (trays.at(-1)?.node !== node) trays.push({ node, rows: [] });
  return trays.at(-1);
}

function teamName(teams, columns, row) {
  if (teams.length) return teams.length === 1 ? teams[0] : SEVERAL;
  if (columns.flags[row] & FLAG.STRANGER) return OUTSIDE;
  return allocated(columns, row) ? JUST_NOW : NOBODY;
}

/** Groups that are no names come last. */
function place(grouping, name) {
  if (grouping.last) return grouping.last.indexOf(name) + 1;
  return grouping.none && name === grouping.none ? 1 : 0;
}

/** How many devices these groups have. */
export const countOf = (groups) => groups.reduce((sum, group) => sum + group.count, 0);

/** Whether two choices show the same devices in the same company. */
export function sameGroups(one, other) {
  if (!one || one.length !== other.length) return false;
  return one.every((group, at) => {
    const twin = other[at];
    if (group.name !== twin.name || group.count !== twin.count || group.trays.length !== twin.trays.length)
      return false;
    return group.trays.every((tray, index) => {
      const rows = twin.trays[index].rows;
      return tray.rows.length === rows.length && tray.rows.every((row, i) => row === rows[i]);
    });
  });
}
