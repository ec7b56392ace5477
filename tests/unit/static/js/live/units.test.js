import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { bytes, written } from "../../../../../static/js/live/units.js";

describe("bytes are written for people", () => {
  const cases = { 0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 85899345920: "80 GiB", 9e15: "8185 TiB" };
  for (const [value, want] of Object.entries(cases)) test(want, () => assert.equal(bytes(Number(value)), want));
});

describe("a value is written with its unit", () => {
  const cases = [
    ["utilisation_percent", 37, "37 %"],
    ["power_watts", 291.75, "292 W"],
    ["temperature_celsius", 41.26, "41.3 °C"],
    ["nvlink_tx_bytes", 1073741824, "1 GiB/s"],
    ["nvlinks_down", 2, "2"],
    ["power_watts", null, "–"],
    ["power_watts", undefined, "–"],
  ];
  for (const [name, value, want] of cases) test(`${name} ${value}`, () => assert.equal(written(name, value), want));
});
