import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { readAddress, writeAddress } from "../../../../../static/js/fleet/address.js";

const USUAL = { by: "allocated", group: "rack", type: "gpu", state: "", q: "" };
const WHOLE = { zoom: 1, x: 0, y: 0 };

describe("an address is read", () => {
  const cases = {
    "": { ...USUAL, place: null },
    "?by=power&group=team&state=free&q=a:b": {
      ...USUAL,
      by: "power",
      group: "team",
      state: "free",
      q: "a:b",
      place: null,
    },
    "?zoom=2.5&at=0.25,1": { ...USUAL, place: { zoom: 2.5, x: 0.25, y: 1 } },
    "?by=constructor&group=__proto__&state=toString": { ...USUAL, place: null },
    "?zoom=NaN&at=0,0": { ...USUAL, place: null },
    "?zoom=Infinity&at=0,0": { ...USUAL, place: null },
    "?zoom=2&at=7,-3": { ...USUAL, place: null },
    "?zoom=2&at=x": { ...USUAL, place: null },
  };
  for (const [search, want] of Object.entries(cases))
    test(search || "nothing", () => assert.deepEqual(readAddress(search), want));
});

describe("an address has only what is not usual", () => {
  const cases = [
    [USUAL, WHOLE, ""],
    [{ ...USUAL, q: "-model:h100,a100" }, WHOLE, "?q=-model:h100,a100"],
    [{ ...USUAL, by: "health" }, { zoom: 3.71293, x: 0.1, y: 2 }, "?by=health&zoom=3.713&at=0.1000,1.0000"],
  ];
  for (const [view, position, want] of cases) {
    test(want || "nothing", () => {
      assert.equal(writeAddress(view, position), want);
      const { place, ...read } = readAddress(want);
      assert.deepEqual(read, view);
      assert.equal(place === null, position === WHOLE);
    });
  }
});
