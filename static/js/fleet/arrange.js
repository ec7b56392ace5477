// Where every device sits: nodes as small trays, groups as blocks of trays side by side. Lines are broken once, so that
// the whole fleet is in view with the largest cells possible; nearer, the same lines are laid out in larger cells.
// Pure; in CSS pixels.
const SIZES = [36, 33, 30, 28, 26, 24, 22, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2];
const MARGIN = 14;
const NAMES_FROM = 9;
const NAMES_LATER = 20;
export const LABEL_FONT = 11;

/** Columns of cells inside a node: trays of up to four abreast, wider for many devices. */
const across = (count) => (count <= 4 ? Math.max(1, count) : count <= 8 ? 4 : 8);
const within = (low, value, high) => Math.min(high, Math.max(low, value));

/**
 * What lies between cells of a size: grows with them, up to what a gap needs. `above`: a tray's name; `head`: a
 * group's, none for specks.
 */
function spaces(cell, namesFrom) {
  const space = within(2, 0.9 * cell, 20);
  return {
    gap: within(1, Math.round(cell / 7), 6),
    space,
    between: space + within(3, 2.2 * cell, 14),
    above: cell < namesFrom ? 0 : LABEL_FONT + 5,
    head: cell < 4 ? 0 : LABEL_FONT + within(5, 2 * cell, 12),
  };
}

/**
 * How `groups` (as `chooseGroups` gives them) break into lines in a view of this size, to be laid out: {cell: the size
 * of cells with which all is in view, newRow: groups that begin a line, newLine: trays that do, namesFrom: the size
 * from which trays have names}. Names wait for the zoom where cells can be much larger without them.
 */
export function breakLines(groups, width, height) {
  const named = largest(groups, width, height, NAMES_FROM);
  if (named.cell * 1.3 > NAMES_LATER) return named;
  const bare = largest(groups, width, height, NAMES_LATER);
  return bare.cell >= 1.3 * named.cell ? bare : named;
}

function largest(groups, width, height, namesFrom) {
  const most = Math.max(1, ...groups.map((group) => group.trays.length));
  const widths = [];
  for (
    let abreast = groups.length > 1 ? Math.min(2, most) : most;
    ;
    abreast = Math.min(most, Math.ceil(abreast * 1.5))
  ) {
    widths.push(abreast); // a group stands 2, 3, 5 … trays wide: the width that makes the whole the lowest wins
    if (abreast >= most) break;
  }
  const lowest = (cell) =>
    widths
      .map((abreast) => broken(groups, width, cell, abreast, namesFrom))
      .reduce((best, plan) => (plan.height < best.height ? plan : best));
  let best = lowest(SIZES.at(-1));
  let [low, high] = [0, SIZES.length - 1]; // a larger cell is hardly ever lower: halve the list
  while (low < high) {
    const middle = (low + high) >> 1;
    const plan = lowest(SIZES[middle]);
    if (plan.height <= height) [best, high] = [plan, middle];
    else low = middle + 1;
  }
  return best;
}

/** Break into lines at the right edge. */
function broken(groups, width, cell, abreast, namesFrom) {
  const { gap, space, between, above, head } = spaces(cell, namesFrom);
  const lines = { cell, namesFrom, newRow: [], newLine: [] };
  const room = width - 2 * MARGIN;
  const named = groups.some((group) => group.name !== "");
  let left = 0;
  let [top, lowest] = [0, 0];
  for (const { trays } of groups) {
    const starts = [];
    let [line, inLine, tallest, wide, high] = [0, 0, 0, 0, named ? head : 0];
    for (const { rows } of trays) {
      const columns = across(rows.length);
      const trayWidth = columns * (cell + gap) - gap;
      const begins = inLine > 0 && (inLine >= abreast || line + trayWidth > room);
      if (begins) {
        high += tallest + space;
        line = inLine = tallest = 0;
      }
      starts.push(begins);
      line += trayWidth + space;
      inLine += 1;
      wide = Math.max(wide, line - space);
      tallest = Math.max(tallest, above + Math.ceil(rows.length / columns) * (cell + gap) - gap);
    }
    const wraps = left > 0 && left + wide > room;
    if (wraps) {
      left = 0;
      top = lowest + between;
    }
    lines.newRow.push(wraps);
    lines.newLine.push(starts);
    left += wide + between;
    lowest = Math.max(lowest, top + high + tallest);
  }
  lines.height = lowest + 24;
  return lines;
}

/**
 * Lay lines out in cells of a size: {cell, gap, width, height, order (rows), x, y (by index of `order`), placeOf (row →
 * index, -1), trays: [{label, x, y, width, height, columns, first, count}], heads: [{name, count, x, y, width}], above,
 * head}. A tray's cells are `first` … `first + count - 1` of `order`, from `y + above` on. `rows`: how many there are
 * in all.
 */
export function layOut(groups, rows, lines, cell) {
  const { gap, space, between, above, head: headRoom } = spaces(cell, lines.namesFrom);
  const count = groups.reduce((sum, group) => sum + group.count, 0);
  const plan = {
    cell,
    gap,
    above,
    space,
    trays: [],
    heads: [],
    order: new Int32Array(count),
    x: new Float32Array(count),
    y: new Float32Array(count),
  };
  plan.placeOf = new Int32Array(rows).fill(-1);
  const named = groups.some((group) => group.name !== "");
  const head = named ? headRoom : 0;
  plan.head = head;
  const prefix = sharedBeginning(groups);
  const pitch = cell + gap;
  let at = 0;
  let [left, top, lowest, rightmost] = [MARGIN, 12, 12, 0];
  groups.forEach(({ name, count: devices, trays }, number) => {
    if (lines.newRow[number]) {
      left = MARGIN;
      top = lowest + between;
    }
    let [x, y, tallest, wide] = [left, top + head, 0, 0];
    trays.forEach(({ node, rows: shown }, place) => {
      const columns = across(shown.length);
      const width = columns * pitch - gap;
      const height = above + Math.ceil(shown.length / columns) * pitch - gap;
      if (lines.newLine[number][place]) {
        x = left;
        y += tallest + space;
        tallest = 0;
      }
      plan.trays.push({ label: node.name.slice(prefix), x, y, width, height, columns, first: at, count: shown.length });
      for (let i = 0; i < shown.length; i++, at++) {
        plan.placeOf[shown[i]] = at;
        plan.order[at] = shown[i];
        plan.x[at] = x + (i % columns) * pitch;
        plan.y[at] = y + above + Math.floor(i / columns) * pitch;
      }
      x += width + space;
      wide = Math.max(wide, x - space - left);
      tallest = Math.max(tallest, height);
    });
    if (head) plan.heads.push({ name, count: devices, x: left, y: top, width: wide });
    lowest = Math.max(lowest, y + tallest);
    rightmost = Math.max(rightmost, left + wide);
    left += wide + between;
  });
  plan.height = lowest + 12;
  plan.width = rightmost + MARGIN;
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

/** Index of the cell at a point of the plan, -1 where there is none. Trays are few; the cell inside is reckoned. */
export function cellAt(plan, x, y) {
  const reach = plan.gap / 2;
  const pitch = plan.cell + plan.gap;
  for (const tray of plan.trays) {
    if (x < tray.x - reach || x > tray.x + tray.width + reach || y < tray.y - reach || y > tray.y + tray.height + reach)
      continue;
    const column = Math.min(tray.columns - 1, Math.max(0, Math.floor((x - tray.x + reach) / pitch)));
    const line = Math.floor((y - tray.y - plan.above + reach) / pitch);
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

/**
 * The tray nearest to a point, and where in it the point lies, as parts of it: what stays in place while cells grow.
 */
export function anchorAt(plan, x, y) {
  let best = 0;
  let least = Infinity;
  plan.trays.forEach((tray, at) => {
    const away = Math.hypot(
      Math.max(tray.x - x, 0, x - tray.x - tray.width),
      Math.max(tray.y - y, 0, y - tray.y - tray.height),
    );
    if (away < least) [best, least] = [at, away];
  });
  const tray = plan.trays[best];
  return tray ? { tray: best, x: (x - tray.x) / tray.width, y: (y - tray.y) / tray.height } : null;
}

/** Where an anchor lies in another layout of the same lines. */
export function placeOfAnchor(plan, anchor) {
  const tray = plan.trays[anchor.tray];
  return { x: tray.x + anchor.x * tray.width, y: tray.y + anchor.y * tray.height };
}
