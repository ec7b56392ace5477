import assert from "node:assert/strict";
import { describe, mock, test } from "node:test";
import { History, shown } from "../../../../../static/js/live/ranges.js";

const HOUR = { step: 60, seconds: 3600, until: 7200 };

describe("what is shown of a range", () => {
  const cases = [
    ["nothing measured", [], [3600, 7200], "Nothing was measured in this range."],
    ["all of it", [3600, 7140], [3600, 7200], ""],
    ["its first minute lacks", [3660, 7140], [3600, 7200], ""],
    ["measuring began within it", [6600, 7140], [6540, 7200], "The first figures of this range are 10 min old."],
    ["one point", [7140], [7080, 7200], "The first figures of this range are 1 min old."],
  ];
  for (const [name, times, span, note] of cases)
    test(name, () => assert.deepEqual(shown({ ...HOUR, times }), { span, note }));
});

test("a note that stays the same is written once: screen readers read out what is written", async () => {
  const written = [];
  const note = {
    hidden: true,
    get textContent() {
      return written.at(-1) ?? "";
    },
    set textContent(text) {
      written.push(text);
    },
  };
  const bodies = [[], [], [3600, 7140]].map((times) => ({ ...HOUR, times }));
  mock.method(globalThis, "fetch", async () => Response.json(bodies.shift()));
  const history = new History(note);
  for (const want of [false, false, true]) {
    await history.get("/history/", { range: "1h" });
    assert.equal(note.hidden, want);
  }
  mock.restoreAll();
  assert.deepEqual(written, ["Nothing was measured in this range.", ""]);
});
