import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { palette, statePalette } from "../../../../../static/js/fleet/scale.js";

/** WCAG's contrast of a colour with white or black. */
function contrast(colour, withWhite) {
  const [r, g, b] = colour.map((part) =>
    part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4,
  );
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return withWhite ? 1.05 / (luminance + 0.05) : (luminance + 0.05) / 0.05;
}

const lightness = ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b;

for (const dark of [false, true]) {
  describe(dark ? "on a dark page" : "on a light page", () => {
    const measure = palette(dark);
    const states = statePalette(dark);
    const further = dark ? 1 : -1;

    test("a colour a level, each a whole byte a channel, and the same in CSS", () => {
      assert.equal(measure.rgb.length, 256);
      for (const colour of [...measure.rgb, ...states.rgb]) {
        assert.ok(
          colour.every((part) => Number.isInteger(part) && part >= 0 && part <= 255),
          String(colour),
        );
      }
      assert.equal(measure.css[128], `rgb(${measure.rgb[128].join(" ")})`);
    });

    test("more is always further from the page", () => {
      const tenths = [1, ...Array.from({ length: 10 }, (_, at) => 25 * (at + 1))].map(
        (level) => further * lightness(measure.rgb[level]),
      );
      for (let at = 1; at < tenths.length; at++) assert.ok(tenths[at] > tenths[at - 1], `level ${25 * at}`);
    });

    test("each state of health is further from the page than the better one", () => {
      assert.equal(states.rgb.length, 5);
      const levels = states.rgb.map((colour) => further * lightness(colour));
      for (let at = 1; at < levels.length; at++) assert.ok(levels[at] > levels[at - 1], `state ${at}`);
    });

    test("a number is read on every colour", () => {
      for (const { rgb, lightInk } of [measure, states])
        for (const [level, colour] of rgb.entries()) {
          const found = contrast(colour, lightInk[level]);
          assert.ok(found >= 4.5, `level ${level}: ${found.toFixed(2)}`);
        }
    });

    test("ink is light on dark colours alone", () => {
      assert.deepEqual([measure.lightInk[1], measure.lightInk[255]], dark ? [true, false] : [false, true]);
    });
  });
}

test("nothing looks like nothing: grey, near the page", () => {
  for (const dark of [false, true]) {
    const [r, g, b] = palette(dark).rgb[0];
    assert.ok(Math.max(r, g, b) - Math.min(r, g, b) < 30, `${[r, g, b]}`);
  }
});
