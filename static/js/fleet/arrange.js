// Where every device sits: nodes as small trays, racks as blocks of trays side by side, in the largest cells that fit.
const SIZES = [34, 30, 27, 24, 22, 20, 18, 16, 14, 12, 10, 9, 8, 7, 6, 5];
const READABLE = 9;
const SCREENS = 3;
const MARGIN = 16;
export const LABEL_FONT = 11;

/** Columns of cells inside a node: trays of up to four abreast, wider for many devices. */
const across = (count) => (count <= 4 ? Math.max(1, count) : count <= 8 ? 4 : 8);

/**
 * `groups`: [{node, rows: [row, …]}]. Returns {cell, gap, labels, height, x, y (by index of `order`), order (rows),
 * placeOf (row → index), blocks: [{node, label, x, y, width, height}], racks: [{name, x, y, width}]}.
 */
export function arrange(groups, width, height) {
  const racks = byRack(groups);
  const prefix = sharedBeginning(groups.map((group) => group.node.name));
  const most = Math.max(1, ...racks.map((rack) => rack.groups.length));
  let best = { cell: 0, height: Infinity, abreast: 1 };
  for (const cell of SIZES) {
    best = { cell, height: Infinity, abreast: 1 };
    // a rack stands 2, 4, 8 … trays wide: the width that makes the whole the lowest wins
    for (let abreast = racks.length > 1 ? Math.min(2, most) : most; ; abreast = Math.min(most, abreast * 2)) {
      const plan = place(racks, width, cell, abreast, prefix, false);
      if (plan.height < best.height) best = { cell, height: plan.height, abreast };
      if (abreast >= most) break;
    }
    if (best.height <= height) break;
    if (cell <= READABLE && best.height <= SCREENS * height) break; // scrolling a little reads better than squinting
  }
  return place(racks, width, best.cell, best.abreast, prefix, true);
}

function byRack(groups) {
  const racks = [];
  for (const group of groups) {
    if (racks.at(-1)?.name !== group.node.rack) racks.push({ name: group.node.rack, groups: [] });
    racks.at(-1).groups.push(group);
  }
  return racks;
}

/** What all names begin with, up to a separator: it need not be written on every tray. */
function sharedBeginning(names) {
  if (names.length < 2) return 0;
  let length = names[0].length;
  for (const name of names) while (!name.startsWith(names[0].slice(0, length))) length -= 1;
  const end = Math.max(...["-", "."].map((mark) => names[0].slice(0, length).lastIndexOf(mark))) + 1;
  return names.every((name) => name.length > end) ? end : 0;
}

/** The plan; without `cells` only its height is right, which is enough to compare and costs little. */
function place(racks, width, cell, abreast, prefix, cells) {
  const gap = cell >= 18 ? 3 : cell >= 9 ? 2 : 1;
  const labels = cell >= 9;
  const label = labels ? LABEL_FONT + 5 : 0;
  const space = cell >= 16 ? 14 : cell >= 10 ? 10 : 6;
  const between = space + 12;
  const named = racks.some((rack) => rack.name !== "");
  const head = named ? LABEL_FONT + 11 : 0;
  const plan = { cell, gap, labels, x: [], y: [], order: [], placeOf: new Map(), blocks: [], racks: [] };
  const right = width - MARGIN;
  let left = MARGIN;
  let top = 12;
  let lowest = top;
  for (const rack of racks) {
    const trays = rack.groups.map(({ rows }) => {
      const columns = across(rows.length);
      return { columns, width: columns * (cell + gap) - gap, height: label + Math.ceil(rows.length / columns) * (cell + gap) - gap };
    });
    const rackWidth = widest(trays, abreast, space, right - MARGIN);
    if (left > MARGIN && left + rackWidth > right) {
      left = MARGIN;
      top = lowest + between;
    }
    if (named) plan.racks.push({ name: rack.name || "no rack", x: left, y: top, width: rackWidth });
    let x = left;
    let y = top + head;
    let tallest = 0;
    let inLine = 0;
    rack.groups.forEach(({ node, rows }, index) => {
      const tray = trays[index];
      if (inLine && (inLine >= abreast || x + tray.width > right)) {
        x = left;
        y += tallest + space;
        tallest = inLine = 0;
      }
      if (cells) plan.blocks.push({ node, label: node.name.slice(prefix), x, y, width: tray.width, height: tray.height });
      if (cells) rows.forEach((row, place) => {
        plan.placeOf.set(row, plan.order.length);
        plan.order.push(row);
        plan.x.push(x + (place % tray.columns) * (cell + gap));
        plan.y.push(y + label + Math.floor(place / tray.columns) * (cell + gap));
      });
      x += tray.width + space;
      tallest = Math.max(tallest, tray.height);
      inLine += 1;
    });
    lowest = Math.max(lowest, y + tallest);
    left += rackWidth + between;
  }
  plan.height = lowest + 14;
  return plan;
}

/** Width of a rack's widest line of trays. */
function widest(trays, abreast, space, limit) {
  let most = 0;
  for (let start = 0; start < trays.length; start += abreast) {
    const line = trays.slice(start, start + Math.min(abreast, trays.length));
    most = Math.max(most, line.reduce((sum, tray) => sum + tray.width + space, -space));
  }
  return Math.min(most, limit);
}

/** Index of the cell at a point, -1 where there is none. Blocks are few; cells are looked for inside the one hit. */
export function cellAt(plan, x, y) {
  const reach = plan.gap / 2;
  for (const block of plan.blocks) {
    if (x < block.x - reach || x > block.x + block.width + reach || y < block.y || y > block.y + block.height + reach) continue;
    for (let row = block.node.first; row < block.node.first + block.node.count; row++) {
      const at = plan.placeOf.get(row);
      if (at === undefined) continue;
      const inside = x >= plan.x[at] - reach && x <= plan.x[at] + plan.cell + reach && y >= plan.y[at] - reach && y <= plan.y[at] + plan.cell + reach;
      if (inside) return at;
    }
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
