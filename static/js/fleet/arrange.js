// Where every device sits at zoom 1: nodes as small trays, groups as blocks of trays side by side, in the largest cells
// with which the whole fleet is in view. Pure; in CSS pixels.
const SIZES = [34, 30, 27, 24, 22, 20, 18, 16, 14, 12, 10, 9, 8, 7, 6, 5, 4, 3];
const MARGIN = 14;
export const LABEL_FONT = 11;
/** Height that a tray's name needs above it. */
export const LABEL_ROOM = LABEL_FONT + 5;

/** Columns of cells inside a node: trays of up to four abreast, wider for many devices. */
const across = (count) => (count <= 4 ? Math.max(1, count) : count <= 8 ? 4 : 8);

/**
 * `groups` as `chooseGroups` gives them. Returns {cell, gap, labels, space, width, height, order (rows), x, y (by index of
 * `order`), placeOf (row → index, -1), trays: [{node, label, x, y, width, height, columns, first, count, above}], heads: [{name,
 * count, x, y, width}]}. A tray's cells are `first` … `first + count - 1` of `order`, from `y + above` on.
 */
export function arrange(groups, rows, width, height) {
  const prefix = sharedBeginning(groups);
  const most = Math.max(1, ...groups.map((group) => group.trays.length));
  const widths = [];
  for (let abreast = groups.length > 1 ? Math.min(2, most) : most; ; abreast = Math.min(most, abreast * 2)) {
    widths.push(abreast); // a group stands 2, 4, 8 … trays wide: the width that makes the whole the lowest wins
    if (abreast >= most) break;
  }
  const lowest = (cell) => {
    const plans = widths.map((abreast) => ({ cell, abreast, height: place(groups, width, cell, abreast) }));
    return plans.reduce((best, plan) => (plan.height < best.height ? plan : best));
  };
  let best = lowest(SIZES.at(-1));
  let [low, high] = [0, SIZES.length - 1]; // a larger cell is never lower: halve the list
  while (low < high) {
    const middle = (low + high) >> 1;
    const plan = lowest(SIZES[middle]);
    if (plan.height <= height) [best, high] = [plan, middle];
    else low = middle + 1;
  }
  const count = groups.reduce((sum, group) => sum + group.count, 0);
  const plan = { trays: [], heads: [], order: new Int32Array(count), x: new Float32Array(count), y: new Float32Array(count) };
  plan.placeOf = new Int32Array(rows).fill(-1);
  plan.width = width;
  plan.cell = best.cell;
  plan.height = Math.max(1, place(groups, width, best.cell, best.abreast, plan, prefix));
  return plan;
}

/** What all names begin with, up to a separator: it need not be written on every tray. */
function sharedBeginning(groups) {
  const names = groups.flatMap((group) => group.trays.map((tray) => tray.node.name));
  if (names.length < 2 || names.every((name) => name === names[0])) return 0;
  let length = names[0].length;
  for (const name of names) while (!name.startsWith(names[0].slice(0, length))) length -= 1;
  const end = Math.max(...["-", "."].map((mark) => names[0].slice(0, length).lastIndexOf(mark))) + 1;
  return names.every((name) => name.length > end) ? end : 0;
}

/** Place everything and give the height; without `plan` nothing is kept, which is enough to compare and costs little. */
function place(groups, width, cell, abreast, plan = null, prefix = 0) {
  const gap = cell >= 18 ? 3 : cell >= 9 ? 2 : 1;
  const labels = cell >= 9;
  const above = labels ? LABEL_ROOM : 0;
  const space = cell >= 16 ? 14 : cell >= 10 ? 10 : cell >= 5 ? 6 : 4;
  const between = space + (cell >= 5 ? 12 : 6);
  const named = groups.some((group) => group.name !== "");
  const head = named ? LABEL_FONT + (cell >= 5 ? 11 : 6) : 0;
  if (plan) Object.assign(plan, { gap, labels, space });
  const right = width - MARGIN;
  const pitch = cell + gap;
  let at = 0;
  let left = MARGIN;
  let top = 12;
  let lowest = top;
  for (const { name, count, trays } of groups) {
    const blockWidth = widest(trays, abreast, space, pitch, gap, right - MARGIN);
    if (left > MARGIN && left + blockWidth > right) {
      left = MARGIN;
      top = lowest + between;
    }
    if (plan && named) plan.heads.push({ name, count, x: left, y: top, width: blockWidth, room: head });
    let x = left;
    let y = top + head;
    let tallest = 0;
    let inLine = 0;
    for (const { node, rows } of trays) {
      const columns = across(rows.length);
      const trayWidth = columns * pitch - gap;
      const trayHeight = above + Math.ceil(rows.length / columns) * pitch - gap;
      if (inLine && (inLine >= abreast || x + trayWidth > right)) {
        x = left;
        y += tallest + space;
        tallest = inLine = 0;
      }
      if (plan) {
        plan.trays.push({ node, label: node.name.slice(prefix), x, y, width: trayWidth, height: trayHeight, columns, first: at, count: rows.length, above });
        for (let i = 0; i < rows.length; i++, at++) {
          plan.placeOf[rows[i]] = at;
          plan.order[at] = rows[i];
          plan.x[at] = x + (i % columns) * pitch;
          plan.y[at] = y + above + Math.floor(i / columns) * pitch;
        }
      }
      x += trayWidth + space;
      if (trayHeight > tallest) tallest = trayHeight;
      inLine += 1;
    }
    lowest = Math.max(lowest, y + tallest);
    left += blockWidth + between;
  }
  return lowest + 12;
}

/** Width of a group's widest line of trays. */
function widest(trays, abreast, space, pitch, gap, limit) {
  let most = 0;
  let line = 0;
  for (let i = 0; i < trays.length && most < limit; i++) {
    if (i % abreast === 0) line = -space;
    line += across(trays[i].rows.length) * pitch - gap + space;
    if (line > most) most = line;
  }
  return Math.min(most, limit);
}

/** Index of the cell at a point of the plan, -1 where there is none. Trays are few; the cell inside is reckoned. */
export function cellAt(plan, x, y) {
  const reach = plan.gap / 2;
  const pitch = plan.cell + plan.gap;
  for (const tray of plan.trays) {
    if (x < tray.x - reach || x > tray.x + tray.width + reach || y < tray.y - reach || y > tray.y + tray.height + reach) continue;
    const column = Math.min(tray.columns - 1, Math.max(0, Math.floor((x - tray.x + reach) / pitch)));
    const line = Math.floor((y - tray.y - tray.above + reach) / pitch);
    const place = line * tray.columns + column;
    return line >= 0 && place < tray.count ? tray.first + place : -1;
  }
  return -1;
}

/** Index of the nearest cell in a direction, for the arrow keys. */
export function neighbour(plan, at, direction) {
  const along = direction === "left" || direction === "right" ? plan.x : plan.y;
  const aside = along === plan.x ? plan.y : plan.x;
  const sign = direction === "right" || direction === "down" ? 1 : -1;
  let best = at;
  let cost = Infinity;
  for (let other = 0; other < plan.order.length; other++) {
    const ahead = (along[other] - along[at]) * sign;
    if (ahead <= 0) continue;
    const total = ahead + 3 * Math.abs(aside[other] - aside[at]);
    if (total < cost) [best, cost] = [other, total];
  }
  return best;
}
