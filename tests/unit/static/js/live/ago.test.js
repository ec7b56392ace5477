import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { ago } from "../../../../../static/js/live/ago.js";

describe("how long ago", () => {
  const cases = [
    [0, "just now"],
    [-1.9, "just now"],
    [3.9, "3 s ago"],
    [59, "59 s ago"],
    [60, "1 min ago"],
    [61, "1 min 1 s ago"],
    [601, "10 min ago"],
    [3660, "1 h 1 min ago"],
    [90_000, "1 d 1 h ago"],
    [86_400 * 326 + 3600, "326 d ago"],
    [-125, "in 2 min 5 s"],
  ];
  for (const [seconds, want] of cases) test(`${seconds}`, () => assert.equal(ago(seconds), want));
});
