// What a cell looks like, as pixels: made once for each size, colour and set of marks, then only copied. Pure.
// Colour says how much; every state that matters has a mark besides, which needs no colour to be seen.
import { FLAG } from "./frames.js";
import { NO_LEVEL } from "./measures.js";

const LIGHT_MARK = [255, 255, 255];
const DARK_MARK = [10, 16, 24];
const covered = (distance) => Math.min(1, Math.max(0, 0.5 - distance));

export class Sprites {
  /**
   * `size` and `scale` (device pixels a CSS pixel); `colours` of a palette; `ink`: panel, line, quiet, bad, held as [r,
   * g, b]; `states`: levels are states.
   */
  constructor({ size, scale, colours, ink, states }) {
    Object.assign(this, { size, scale, colours, ink, states });
    this.radius = size >= 10 * scale ? Math.min(4 * scale, size * 0.18) : 0;
    this.made = new Array((NO_LEVEL + 1) * 32);
    this.marks = new Array(32);
    this.inside = this.mask((x, y) => (this.radius ? covered(boxDistance(x, y, size, this.radius)) : 1));
  }

  /** size × size pixels, line by line, as the Uint32Array of an ImageData has them. */
  get(level, flags) {
    const look = level * 32 + (flags & 31);
    this.made[look] ??= this.make(level, flags & 31);
    return this.made[look];
  }

  make(level, flags) {
    const { ink, inside } = this;
    const known = level !== NO_LEVEL;
    const fill = known ? this.colours.rgb[level] : ink.panel;
    const contrast = known && this.colours.lightInk[level] ? LIGHT_MARK : DARK_MARK;
    const layers = [[fill, inside]];
    if (!this.states && (level === 0 || !known)) {
      this.edge ??= this.edgeMask();
      layers.push([ink.line, this.edge]);
    }
    if (!known) {
      this.dash ??= this.dashMask();
      layers.push([ink.quiet, this.dash]);
    }
    const inks = { contrast, panel: ink.panel, held: ink.held, bad: this.states ? contrast : ink.bad };
    this.marks[flags] ??= this.marksOf(flags);
    for (const [name, mask] of this.marks[flags]) layers.push([inks[name], mask]);
    return blended(ink.panel, layers);
  }

  /** How much of each pixel something covers. */
  mask(cover) {
    const { size } = this;
    const mask = new Float32Array(size * size);
    for (let line = 0, at = 0; line < size; line++)
      for (let column = 0; column < size; column++, at++) mask[at] = cover(column + 0.5, line + 0.5);
    return mask;
  }

  /** A line along the inside of the edge. */
  edgeMask(width = Math.min(this.scale, this.size / 3)) {
    return this.mask((x, y) => covered(Math.abs(boxDistance(x, y, this.size, this.radius) + width / 2) - width / 2));
  }

  dashMask() {
    const { size, scale } = this;
    return this.mask((x, y) =>
      size >= 8 * scale ? covered(segment(x, y, size * 0.35, size / 2, size * 0.65, size / 2) - 0.75 * scale) : 0,
    );
  }

  /** [[ink, mask]] of what colour alone must not say. */
  marksOf(flags) {
    const { size, scale, inside } = this;
    const marks = [];
    if (!(flags & FLAG.NODE_READY)) {
      const stripe = Math.max(3, 4 * scale, size / 4);
      const thin = Math.min(scale, size / 3);
      marks.push([
        "contrast",
        this.mask((x, y) => 0.85 * covered(Math.abs(((x + y) % stripe) - stripe / 2) / Math.SQRT2 - thin / 2)),
      ]);
    }
    if (!(flags & FLAG.HEALTHY) || !(flags & FLAG.PRESENT)) {
      const thick = size >= 14 * scale ? 2 * scale : Math.min(1.25 * scale, size / 3);
      const [near, far] = [size * 0.3, size * 0.7];
      if (!this.states) marks.push(["panel", this.mask(() => 0.6)]); // its colour says little now: the cross stands out
      marks.push(["bad", this.edgeMask(thick)]);
      if (size >= 6) {
        if (flags & FLAG.PRESENT || size < 8 * scale)
          marks.push(["bad", this.mask((x, y) => covered(segment(x, y, near, near, far, far) - thick / 2))]);
        marks.push(["bad", this.mask((x, y) => covered(segment(x, y, far, near, near, far) - thick / 2))]);
      }
    } else {
      const corner = Math.max(Math.min(4 * scale, size * 0.7), size * 0.38);
      const dot = Math.max(0.7, Math.min(1.5 * scale, size / 3), size * 0.14);
      if (flags & FLAG.HELD) marks.push(["held", this.mask((x, y) => covered((size - x + y - corner) / Math.SQRT2))]);
      if (flags & FLAG.STRANGER)
        marks.push(["contrast", this.mask((x, y) => covered(Math.hypot(x - size / 2, y - size / 2) - dot))]);
    }
    for (const [, mask] of marks) for (let at = 0; at < mask.length; at++) mask[at] *= inside[at];
    return marks;
  }
}

/** Layers [[colour, mask]] one over another on a ground, as pixels. */
function blended(ground, layers) {
  const count = layers[0][1].length;
  const pixels = new Uint32Array(count);
  for (let at = 0; at < count; at++) {
    let [red, green, blue] = ground;
    for (let i = 0; i < layers.length; i++) {
      const [colour, mask] = layers[i];
      const part = mask[at];
      if (!part) continue;
      red += (colour[0] - red) * part;
      green += (colour[1] - green) * part;
      blue += (colour[2] - blue) * part;
    }
    pixels[at] = (255 << 24) | (Math.round(blue) << 16) | (Math.round(green) << 8) | Math.round(red);
  }
  return pixels;
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
