import assert from "node:assert/strict";
import { describe, test } from "node:test";
import {
  anchorAt,
  breakLines,
  cellAt,
  layOut,
  neighbour,
  placeOfAnchor,
} from "../../../../../static/js/fleet/arrange.js";
import { chooseGroups } from "../../../../../static/js/fleet/groups.js";
import { freeColumns, layoutOf } from "./fleet.js";

/** The plan of a fleet that is whole in a view. */
function planOf(nodes, { gpus = 4, width = 1000, height = 500, group = "rack", zoom = 1 } = {}) {
  const layout = layoutOf(nodes, gpus);
  const groups = chooseGroups(layout, freeColumns(layout), { type: "gpu", state: "", group, terms: [] }, () => []);
  const lines = breakLines(groups, width, height);
  return { layout, groups, lines, plan: layOut(groups, layout.devices.length, lines, lines.cell * zoom) };
}

describe("every device has a place of its own, in view", () => {
  const cases = {
    "one GPU": [1, { gpus: 1 }],
    "a few nodes": [5, {}],
    "a node of many GPUs": [1, { gpus: 256 }],
    "by node": [10, { group: "node" }],
    "a narrow page": [10, { width: 360, height: 600 }],
    "nodes without GPUs": [3, { gpus: 0 }],
    "a thousand nodes": [1000, { gpus: 8, width: 1300, height: 600 }],
  };
  for (const [name, [nodes, options]] of Object.entries(cases)) {
    test(name, () => {
      const { plan, layout } = planOf(nodes, options);
      const { width = 1000, height = 500 } = options;
      assert.deepEqual(
        [...plan.order].sort((one, other) => one - other),
        layout.devices.map((_, row) => row),
      );
      const places = new Set();
      for (const [at, row] of plan.order.entries()) {
        assert.equal(plan.placeOf[row], at);
        places.add(`${plan.x[at]},${plan.y[at]}`);
        assert.ok(plan.x[at] + plan.cell <= width && plan.y[at] + plan.cell <= height, `row ${row} is out of view`);
      }
      assert.equal(places.size, layout.devices.length);
    });
  }
});

test("a point in a cell is that cell's, at any size; beside all there is none", () => {
  for (const zoom of [1, 1.7, 4]) {
    const { plan } = planOf(9, { zoom });
    for (let at = 0; at < plan.order.length; at++) {
      assert.equal(cellAt(plan, plan.x[at] + 0.1, plan.y[at] + 0.1), at);
      assert.equal(cellAt(plan, plan.x[at] + plan.cell - 0.1, plan.y[at] + plan.cell - 0.1), at);
    }
    assert.equal(cellAt(plan, 1, 1), -1);
    assert.equal(cellAt(plan, plan.width + 50, 10), -1);
  }
});

test("the lines stay as they are while cells grow", () => {
  const { groups, layout, lines, plan } = planOf(9);
  const nearer = layOut(groups, layout.devices.length, lines, 3 * plan.cell);
  assert.deepEqual([...nearer.order], [...plan.order]);
  assert.ok(nearer.width > 2 * plan.width);
});

test("arrow keys go to the nearest device in their direction, and stay at the edge", () => {
  const { plan } = planOf(1, { gpus: 8 }); // two lines of four
  const from = (at) => ["left", "right", "up", "down"].map((direction) => neighbour(plan, at, direction));
  assert.deepEqual(from(0), [0, 1, 0, 4]);
  assert.deepEqual(from(5), [4, 6, 1, 5]);
  assert.deepEqual(from(7), [6, 7, 3, 7]);
});

test("a point of a tray stays at its part of the tray", () => {
  const { groups, layout, lines, plan } = planOf(9);
  const nearer = layOut(groups, layout.devices.length, lines, 2 * plan.cell);
  const tray = plan.trays[5];
  const anchor = anchorAt(plan, tray.x + tray.width / 2, tray.y + tray.height / 4);
  const { x, y } = placeOfAnchor(nearer, anchor);
  const grown = nearer.trays[5];
  assert.deepEqual([anchor.tray, x, y], [5, grown.x + grown.width / 2, grown.y + grown.height / 4]);
  assert.equal(anchorAt({ ...plan, trays: [] }, 1, 1), null);
});

test("what all names begin with is not written on every tray; groups have heads", () => {
  const { plan } = planOf(4);
  assert.deepEqual(
    plan.trays.map((tray) => tray.label),
    ["0", "1", "2", "3"],
  );
  assert.deepEqual(
    plan.heads.map(({ name, count }) => [name, count]),
    [
      ["r0", 8],
      ["r1", 8],
    ],
  );
  assert.deepEqual(planOf(4, { group: "node" }).plan.heads, []);
  assert.deepEqual(
    planOf(1).plan.trays.map((tray) => tray.label),
    ["gpu-a-0"],
  );
});
