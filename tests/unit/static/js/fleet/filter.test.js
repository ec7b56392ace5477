import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { asksFor, fits, readFilter } from "../../../../../static/js/fleet/filter.js";
import { FLAG } from "../../../../../static/js/fleet/frames.js";
import { freeColumns, layoutOf, WELL } from "./fleet.js";

describe("the words are read", () => {
  const cases = {
    "": [],
    "  ": [],
    H100: [{ key: "", words: ["h100"], not: false }],
    "model:H100,a100": [{ key: "model", words: ["h100", "a100"], not: false }],
    "-state:free": [{ key: "state", words: ["free"], not: true }],
    "-": [{ key: "", words: ["-"], not: false }],
    "rack: a": [{ key: "", words: ["a"], not: false }],
    "other:x": [{ key: "", words: ["other:x"], not: false }],
    "pod:ns/a:b": [{ key: "pod", words: ["ns/a:b"], not: false }],
    "__proto__:x": [{ key: "", words: ["__proto__:x"], not: false }],
  };
  for (const [text, want] of Object.entries(cases)) test(`"${text}"`, () => assert.deepEqual(readFilter(text), want));
});

describe("devices are found", () => {
  const layout = layoutOf(4, 2); // 0…3: rack r0, models H100 and A100; 4…7: rack r1
  const columns = freeColumns(layout);
  columns.core[1] = 100;
  columns.core[2] = 50;
  columns.flags[3] = WELL & ~FLAG.HEALTHY;
  columns.flags[4] = WELL | FLAG.HELD;
  columns.flags[5] = WELL | FLAG.STRANGER;
  columns.flags[6] = WELL & ~FLAG.NODE_READY;
  columns.flags[7] = WELL & ~FLAG.PRESENT;
  const held = { team: new Map([[1, ["Vision"]]]), pod: new Map([[1, ["vision/train-0"]]]) };
  const holdersOf = (key, device) => held[key]?.get(device.id) ?? [];
  const cases = {
    "gpu-a-1": [2, 3],
    "a100 r1": [6, 7],
    "rack:r1": [4, 5, 6, 7],
    "model:h100,a100": [0, 1, 2, 3, 4, 5, 6, 7],
    "-rack:r1 -model:a100": [0, 1],
    "pool:train type:gpu mode:exc node:a-0": [0, 1],
    "state:free": [0],
    "state:used": [1, 2, 4, 5],
    "state:trouble": [3, 6, 7],
    "state:in-use": [1],
    "state:shared,held": [2, 4],
    "state:node-not": [6],
    "state:constructor": [],
    "team:vision": [1],
    "pod:train": [1],
    "-pod:vision/": [0, 2, 3, 4, 5, 6, 7],
    "namespace:vision": [],
  };
  for (const [text, want] of Object.entries(cases)) {
    test(text, () => {
      const terms = readFilter(text);
      const rows = layout.devices.flatMap((device, row) => (fits(terms, device, row, columns, holdersOf) ? [row] : []));
      assert.deepEqual(rows, want);
    });
  }
});

test("a filter says what it looks at", () => {
  const terms = readFilter("-state:free h100");
  assert.deepEqual([asksFor(terms, "state"), asksFor(terms, "team")], [true, false]);
});
