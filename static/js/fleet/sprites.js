// What a cell looks like, as pixels: made once for each size, colour and set of marks, then only copied. Pure.
// Colour says how much; every state that matters has a mark besides, which needs no colour to be seen.
import { FLAG } from "./frames.js";
import { NO_LEVEL } from "./measures.js";

const LIGHT_MARK = [255, 255, 255];
const DARK_MARK = [10, 16, 24];
const covered = (distance) => Math.min(1, Math.max(0, 0.5 - distance));

export class Sprites {
  /** `size` and `scale` (device pixels a CSS pixel); `colours` of a palette; `ink`: panel, line, quiet, bad, held as [r, g, b]; `states`: levels are states. */
  constructor({ size, scale, colours, ink, states }) {
    Object.assign(this, { size, scale, colours, ink, states });
    this.made = new Array((NO_LEVEL + 1) * 32);
  }

  /** size × size pixels, line by line, as the Uint32Array of an ImageData has them. */
  get(level, flags) {
    const look = level * 32 + (flags & 31);
    return (this.made[look] ??= this.make(level, flags));
  }

  make(level, flags) {
    const { size, scale, ink } = this;
    const fill = level === NO_LEVEL ? ink.panel : this.colours.rgb[level];
    const light = level !== NO_LEVEL && this.colours.lightInk[level];
    const contrast = light ? LIGHT_MARK : DARK_MARK;
    const bad = this.states ? contrast : ink.bad;
    const sick = !(flags & FLAG.HEALTHY) || !(flags & FLAG.PRESENT);
    const edge = !this.states && (level === 0 || level === NO_LEVEL);
    const radius = size >= 10 * scale ? Math.min(4 * scale, size * 0.18) : 0;
    const thin = Math.min(scale, size / 3);
    const thick = size >= 14 * scale ? 2 * scale : Math.min(1.25 * scale, size / 3);
    const stripe = Math.max(3, 4 * scale, size / 4);
    const corner = Math.max(Math.min(4 * scale, size * 0.7), size * 0.45);
    const pixels = new Uint32Array(size * size);
    const colour = [0, 0, 0];
    const over = (ink3, part) => { for (let i = 0; i < 3; i++) colour[i] += (ink3[i] - colour[i]) * part; };
    for (let line = 0, at = 0; line < size; line++) {
      for (let column = 0; column < size; column++, at++) {
        const x = column + 0.5;
        const y = line + 0.5;
        const box = boxDistance(x, y, size, radius);
        const inside = radius ? covered(box) : 1;
        over(ink.panel, 1);
        over(fill, inside);
        if (edge && size >= 3) over(ink.line, covered(Math.abs(box + thin / 2) - thin / 2));
        if (level === NO_LEVEL && size >= 8 * scale) over(ink.quiet, covered(segment(x, y, size * 0.35, size / 2, size * 0.65, size / 2) - 0.75 * scale));
        if (!(flags & FLAG.NODE_READY)) {
          const across = Math.abs(((x + y) % stripe) - stripe / 2) / Math.SQRT2;
          over(contrast, 0.85 * inside * covered(across - thin / 2));
        }
        if (sick) {
          over(bad, covered(Math.abs(box + thick / 2) - thick / 2) * inside);
          if (size >= 6) {
            const near = size * 0.3;
            const far = size - near;
            if (flags & FLAG.PRESENT || size < 8 * scale) over(bad, covered(segment(x, y, near, near, far, far) - thick / 2));
            over(bad, covered(segment(x, y, far, near, near, far) - thick / 2));
          }
        } else {
          if (flags & FLAG.HELD) over(ink.held, inside * covered((size - x + y - corner) / Math.SQRT2));
          if (flags & FLAG.STRANGER) over(contrast, covered(Math.hypot(x - size / 2, y - size / 2) - Math.max(0.7, Math.min(1.5 * scale, size / 3), size * 0.16)));
        }
        pixels[at] = packed(colour);
      }
    }
    return pixels;
  }
}

/** A colour as one pixel of an ImageData seen as Uint32Array (little endian, as every browser's machine is). */
export const packed = ([r, g, b]) => ((255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;

/** Distance to the edge of a rounded square, negative inside. */
function boxDistance(x, y, size, radius) {
  const half = size / 2 - radius;
  const right = Math.abs(x - size / 2) - half;
  const down = Math.abs(y - size / 2) - half;
  return Math.hypot(Math.max(right, 0), Math.max(down, 0)) + Math.min(Math.max(right, down), 0) - radius;
}

/** Distance to the line between two points. */
function segment(x, y, x1, y1, x2, y2) {
  const [dx, dy] = [x2 - x1, y2 - y1];
  const along = Math.min(1, Math.max(0, ((x - x1) * dx + (y - y1) * dy) / (dx * dx + dy * dy)));
  return Math.hypot(x - x1 - along * dx, y - y1 - along * dy);
}

/** `#rgb` or `#rrggbb` of a custom property as [r, g, b]. */
export function fromHex(text) {
  const hex = text.length === 4 ? text.replace(/[0-9a-f]/gi, "$&$&") : text;
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}
