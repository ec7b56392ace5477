import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { readFilter } from "../../../../../static/js/fleet/filter.js";
import { FLAG } from "../../../../../static/js/fleet/frames.js";
import {
  chooseGroups,
  choosingColumns,
  countOf,
  holdersNeeded,
  moves,
  namesTypes,
  sameGroups,
} from "../../../../../static/js/fleet/groups.js";
import { freeColumns, layoutOf, WELL } from "./fleet.js";

const layout = layoutOf(5, 2);
const view = (part) => ({ type: "gpu", state: "", group: "rack", terms: readFilter(part.q ?? ""), ...part });
const nobody = () => [];
const counts = (groups) => groups.map(({ name, count }) => [name, count]);

describe("devices stand together", () => {
  const columns = freeColumns(layout);
  columns.core[0] = 100;
  columns.flags[9] = WELL | FLAG.STRANGER;
  const teams = (key, { id }) =>
    key === "team" && id === 0 ? ["vision"] : key === "team" && id === 1 ? ["nlp", "vision"] : [];
  const cases = {
    "by rack": [
      view({}),
      nobody,
      [
        ["r0", 4],
        ["r1", 4],
        ["r2", 2],
      ],
    ],
    "by pool": [view({ group: "pool" }), nobody, [["training", 10]]],
    "by model": [
      view({ group: "model" }),
      nobody,
      [
        ["A100", 4],
        ["H100", 6],
      ],
    ],
    "by node": [view({ group: "node" }), nobody, [["", 10]]],
    "by team: names first": [
      view({ group: "team" }),
      teams,
      [
        ["vision", 1],
        ["several teams", 1],
        ["taken outside", 1],
        ["free", 7],
      ],
    ],
    "by state": [
      view({ state: "used" }),
      nobody,
      [
        ["r0", 1],
        ["r2", 1],
      ],
    ],
    "by words": [view({ q: "rack:r1 -model:a100" }), nobody, [["r1", 2]]],
    none: [view({ q: "nothing" }), nobody, []],
    "another type": [view({ type: "rdma" }), nobody, []],
    "the filter names the type": [
      view({ type: "rdma", q: "type:gpu" }),
      nobody,
      [
        ["r0", 4],
        ["r1", 4],
        ["r2", 2],
      ],
    ],
  };
  for (const [name, [asked, holdersOf, want]] of Object.entries(cases)) {
    test(name, () => {
      const groups = chooseGroups(layout, columns, asked, holdersOf);
      assert.deepEqual(counts(groups), want);
      assert.equal(
        countOf(groups),
        want.reduce((sum, [, count]) => sum + count, 0),
      );
    });
  }
});

test("choices are the same when they show the same devices in the same company", () => {
  const columns = freeColumns(layout);
  const choose = (part) => chooseGroups(layout, columns, view(part), nobody);
  assert.ok(sameGroups(choose({}), choose({})));
  assert.ok(!sameGroups(choose({}), choose({ group: "pool" })));
  assert.ok(!sameGroups(choose({}), choose({ q: "-gpu-a-0" })));
  assert.ok(!sameGroups(null, []));
});

test("a view says what it depends on", () => {
  assert.deepEqual([moves(view({})), choosingColumns(view({}))], [false, []]);
  assert.deepEqual(
    [moves(view({ state: "free" })), choosingColumns(view({ q: "state:free" }))],
    [true, ["core", "memory"]],
  );
  assert.deepEqual(holdersNeeded(view({ group: "team", q: "pod:a claim:b" })), ["team", "pod", "claim"]);
  assert.deepEqual([namesTypes(readFilter("type:gpu")), namesTypes(readFilter("gpu"))], [true, false]);
});
