// Where every device sits: nodes in rows, a line per rack where racks are known, in the largest cells that fit.
const SIZES = [34, 30, 26, 23, 20, 18, 16, 14, 12, 10, 8, 7, 6, 5];
const READABLE = 9;
export const LABEL_FONT = 11;

/** Columns of cells inside a node: trays of up to four abreast, wider for many devices. */
const across = (count) => (count <= 4 ? Math.max(1, count) : count <= 8 ? 4 : 8);

/**
 * `groups`: [{node, rows: [row, …]}]. Returns {cell, gap, labels, height, x, y (by index of `order`), order (rows),
 * placeOf (row → index), blocks: [{node, x, y, width, height}], racks: [{name, y}]}.
 */
export function arrange(groups, width, height) {
  let result = null;
  for (const cell of SIZES) {
    result = place(groups, width, cell);
    if (result.height <= height) break;
    if (cell <= READABLE) break; // below this, scrolling reads better than squinting
  }
  return result;
}

function place(groups, width, cell) {
  const gap = cell >= 16 ? 3 : cell >= 9 ? 2 : 1;
  const labels = cell >= 10;
  const label = labels ? LABEL_FONT + 6 : 0;
  const space = cell >= 16 ? 16 : cell >= 10 ? 11 : 7;
  const named = groups.some((group) => group.node.rack !== "");
  const gutter = named ? 74 : 0;
  const left = 16 + gutter;
  const order = [];
  const xs = [];
  const ys = [];
  const blocks = [];
  const racks = [];
  const placeOf = new Map();
  let x = left;
  let y = 14;
  let tallest = 0;
  let rack = null;
  for (const { node, rows } of groups) {
    const columns = across(rows.length);
    const lines = Math.ceil(rows.length / columns);
    const blockWidth = columns * (cell + gap) - gap;
    const blockHeight = label + lines * (cell + gap) - gap;
    const newRack = named && node.rack !== rack;
    if ((newRack && rack !== null) || (x > left && x + blockWidth > width - 14)) {
      x = left;
      y += tallest + space;
      tallest = 0;
    }
    if (newRack) {
      rack = node.rack;
      racks.push({ name: rack || "no rack", y: y + label });
    }
    blocks.push({ node, x, y, width: blockWidth, height: blockHeight });
    rows.forEach((row, index) => {
      placeOf.set(row, order.length);
      order.push(row);
      xs.push(x + (index % columns) * (cell + gap));
      ys.push(y + label + Math.floor(index / columns) * (cell + gap));
    });
    x += blockWidth + space;
    tallest = Math.max(tallest, blockHeight);
  }
  return { cell, gap, labels, height: y + tallest + 14, x: xs, y: ys, order, placeOf, blocks, racks };
}

/** Index of the cell at a point, -1 where there is none. */
export function cellAt(plan, x, y) {
  // blocks are few; cells are found inside the one that was hit
  const reach = plan.gap;
  for (const block of plan.blocks) {
    if (x < block.x - reach || x > block.x + block.width + reach || y < block.y || y > block.y + block.height + reach) continue;
    for (let row = block.node.first; row < block.node.first + block.node.count; row++) {
      const at = plan.placeOf.get(row);
      if (at === undefined) continue;
      if (x >= plan.x[at] - reach / 2 && x <= plan.x[at] + plan.cell + reach / 2 && y >= plan.y[at] - reach / 2 && y <= plan.y[at] + plan.cell + reach / 2) return at;
    }
  }
  return -1;
}

/** Index of the nearest cell in a direction, for the arrow keys. */
export function neighbour(plan, at, direction) {
  if (direction === "left") return Math.max(0, at - 1);
  if (direction === "right") return Math.min(plan.order.length - 1, at + 1);
  const sign = direction === "down" ? 1 : -1;
  let best = at;
  let cost = Infinity;
  for (let other = 0; other < plan.order.length; other++) {
    const dy = (plan.y[other] - plan.y[at]) * sign;
    if (dy <= 0) continue;
    const total = dy * 3 + Math.abs(plan.x[other] - plan.x[at]);
    if (total < cost) [best, cost] = [other, total];
  }
  return best;
}
