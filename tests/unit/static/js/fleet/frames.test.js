import assert from "node:assert/strict";
import { describe, test } from "node:test";
import {
  applyFrame,
  COLUMNS,
  noColumns,
  readHeader,
  readLayout,
  UNKNOWN,
} from "../../../../../static/js/fleet/frames.js";

const WHOLE = 0;
const ROWS = 1;
const MARKS = 2;

/** A frame as docs/fleet-stream.md has it. `blocks`: [column, coding, places as bytes, values]. */
function frame({ sequence = 1, rows = 4, blocks = [], magic = "GF", version = 2, allocated = NaN } = {}) {
  const bytes = [];
  for (const [column, coding, places, values] of blocks) {
    bytes.push(column, coding, 0, 0, values.length, 0, 0, 0, ...places, ...values);
    while (bytes.length % 4) bytes.push(0);
  }
  const buffer = new ArrayBuffer(52 + bytes.length);
  const view = new DataView(buffer);
  [...magic].forEach((letter, at) => {
    view.setUint8(at, letter.charCodeAt(0));
  });
  view.setUint8(2, version);
  view.setUint8(4, 1);
  view.setUint8(5, blocks.length);
  view.setUint32(8, sequence, true);
  view.setUint32(12, 7, true);
  view.setFloat64(16, 1767225600.5, true);
  view.setUint32(24, rows, true);
  [4, 3, 1, 2].forEach((figure, at) => {
    view.setUint32(28 + 4 * at, figure, true);
  });
  view.setFloat32(44, allocated, true);
  view.setFloat32(48, 12.5, true);
  new Uint8Array(buffer, 52).set(bytes);
  return buffer;
}

const apply = (buffer, columns) => applyFrame(buffer, readHeader(buffer), columns);

test("the header is read field by field", () => {
  assert.deepEqual(readHeader(frame({ sequence: 9 })), {
    conditions: 1,
    blocks: 0,
    sequence: 9,
    layout: 7,
    time: 1767225600.5,
    rows: 4,
    figures: { total: 4, used: 3, free: 1, unhealthy: 2, allocated: null, utilisation: 12.5 },
  });
});

describe("what is no frame is refused", () => {
  const cases = {
    "too short": new ArrayBuffer(51),
    "another magic": frame({ magic: "XX" }),
    "another version": frame({ version: 3 }),
  };
  for (const [name, buffer] of Object.entries(cases))
    test(name, () => assert.throws(() => readHeader(buffer), /fleet frame/));
});

describe("a block is written into its column", () => {
  const utilisation = COLUMNS.indexOf("utilisation");
  const cases = {
    whole: { block: [utilisation, WHOLE, [], [1, 2, 3, 4]], want: [1, 2, 3, 4] },
    rows: { block: [utilisation, ROWS, [3, 0, 0, 0, 1, 0, 0, 0], [40, 20]], want: [9, 20, 9, 40] },
    marks: { block: [utilisation, MARKS, [0b1010], [20, 40]], want: [9, 20, 9, 40] },
    "nothing changed": { block: [utilisation, ROWS, [], []], want: [9, 9, 9, 9] },
  };
  for (const [name, { block, want }] of Object.entries(cases)) {
    test(name, () => {
      const columns = noColumns(4);
      apply(frame({ blocks: [[utilisation, WHOLE, [], [9, 9, 9, 9]]] }), columns);
      assert.equal(apply(frame({ sequence: 2, blocks: [block] }), columns), true);
      assert.deepEqual([...columns.utilisation], want);
      assert.equal(columns.asOf.utilisation, 2);
    });
  }
});

test("marks reach beyond eight rows, and blocks stand one after another", () => {
  const columns = noColumns(10);
  const flags = Array(10).fill(19);
  const blocks = [
    [0, WHOLE, [], Array(10).fill(0)],
    [7, WHOLE, [], flags],
  ];
  assert.equal(apply(frame({ rows: 10, blocks }), columns), true);
  apply(
    frame({
      rows: 10,
      sequence: 2,
      blocks: [
        [0, MARKS, [0b1, 0b10], [100, 50]],
        [7, ROWS, [2, 0, 0, 0], [18]],
      ],
    }),
    columns,
  );
  assert.deepEqual([...columns.core], [100, 0, 0, 0, 0, 0, 0, 0, 0, 50]);
  assert.deepEqual([...columns.flags], [19, 19, 18, 19, 19, 19, 19, 19, 19, 19]);
});

test("what holds against a frame that was missed is not applied; what is whole is", () => {
  const columns = noColumns(4);
  apply(frame({ blocks: [[0, WHOLE, [], [1, 1, 1, 1]]] }), columns);
  const blocks = [
    [0, ROWS, [0, 0, 0, 0], [9]],
    [1, WHOLE, [], [5, 5, 5, 5]],
  ];
  assert.equal(apply(frame({ sequence: 3, blocks }), columns), false);
  assert.deepEqual([...columns.core], [1, 1, 1, 1]);
  assert.deepEqual([...columns.memory], [5, 5, 5, 5]);
});

test("a column of a later server is passed over", () => {
  const columns = noColumns(4);
  const blocks = [
    [200, WHOLE, [], [1, 2, 3, 4]],
    [0, WHOLE, [], [7, 7, 7, 7]],
  ];
  assert.equal(apply(frame({ blocks }), columns), true);
  assert.deepEqual([...columns.core], [7, 7, 7, 7]);
});

test("before the first frame measures are unknown and nothing is given", () => {
  const columns = noColumns(2);
  assert.deepEqual([columns.core[0], columns.flags[0], columns.power[1], columns.asOf.core], [0, 0, UNKNOWN, -1]);
});

test("a layout becomes rows, node by node", () => {
  const { nodes, devices, types } = readLayout({
    kind: "layout",
    version: 3,
    types: ["gpu", "rdma"],
    models: ["H100", ""],
    racks: ["a01"],
    pools: [],
    nodes: [
      [
        "n1",
        0,
        0,
        "exclusive",
        [
          [17, 0, 0, 0, 81920, 0],
          [18, 0, 1, 1, 0, -1],
        ],
      ],
      ["n2", 5, 0, "exclusive", []],
    ],
  });
  assert.deepEqual(types, ["gpu", "rdma"]);
  assert.deepEqual(
    nodes.map(({ name, rack, pool, first, count }) => [name, rack, pool, first, count]),
    [
      ["n1", "a01", "", 0, 2],
      ["n2", "", "", 2, 0],
    ],
  );
  assert.deepEqual(
    devices.map(({ id, type, model, node }) => [id, type, model, node.name]),
    [
      [17, "gpu", "H100", "n1"],
      [18, "rdma", "", "n1"],
    ],
  );
});
