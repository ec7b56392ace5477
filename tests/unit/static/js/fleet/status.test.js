import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { CONDITION } from "../../../../../static/js/fleet/frames.js";
import { Status } from "../../../../../static/js/fleet/status.js";

globalThis.document = { querySelector: () => null };

/** A page whose banner keeps every text that was written into it: a screen reader says each of them. */
function pageOf(said) {
  const words = {
    set textContent(text) {
      said.push(text);
    },
  };
  const banner = { hidden: true, classList: { toggle() {} }, querySelector: () => words };
  return { querySelector: () => banner };
}

describe("the banner", () => {
  test("VIEW-1 what lasts is said once, whatever number of frames says so", () => {
    const said = [];
    const status = new Status(pageOf(said));
    for (let frame = 0; frame < 5; frame++) {
      status.setState("live");
      status.setConditions(CONDITION.REDIS_DOWN);
    }
    assert.deepEqual(said, ["Redis does not answer: measurements may be missing. Allocations are current."]);
    status.setConditions(0);
    status.setConditions(CONDITION.REDIS_DOWN);
    assert.equal(said.length, 3, "what is over, and comes again, is said again");
  });
});
