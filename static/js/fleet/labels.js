// The words over the heatmap: names of groups and nodes. A canvas of its own, drawn anew only when something else is in
// view.
import { LABEL_FONT } from "./arrange.js";

export class Labels {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.short = new Map();
  }

  /** `ink`: {text, quiet, line} as CSS colours; `family`: the page's fonts. */
  setTheme(ink, family) {
    this.ink = ink;
    this.font = `${LABEL_FONT}px ${family}`;
    this.bold = `600 ${this.font}`;
  }

  /** Text widths differ with zoom and plan. */
  forget() {
    this.short.clear();
  }

  draw(plan, camera, scale) {
    const { context, canvas } = this;
    const [left, top, width, height] = [camera.x, camera.y, canvas.width / scale, canvas.height / scale];
    const seen = (x, y, wide) => y > -LABEL_FONT && y < height + 2 * LABEL_FONT && x < width && x + wide > 0;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.textBaseline = "alphabetic";
    for (const head of plan.heads) {
      const x = Math.round(head.x - left);
      const y = Math.round(head.y + LABEL_FONT - top);
      if (seen(x, y, head.width)) this.head(head, x, y, head.width);
    }
    if (!plan.above) return;
    context.font = this.font;
    context.fillStyle = this.ink.quiet;
    for (const tray of plan.trays) {
      const x = Math.round(tray.x - left);
      const y = Math.round(tray.y + plan.above - 5 - top);
      if (seen(x, y, tray.width)) context.fillText(this.fitting(tray.label, tray.width, this.font), x, y);
    }
  }

  /** Name and number of a group, and a line as wide as it is. */
  head({ name, count }, x, y, wide) {
    const { context } = this;
    context.font = this.bold;
    context.fillStyle = this.ink.text;
    const text = this.fitting(name, wide, this.bold);
    context.fillText(text, x, y);
    let end = x + this.width(text, this.bold) + 7;
    const number = String(count);
    context.font = this.font;
    if (end + this.width(number, this.font) <= x + wide) {
      context.fillStyle = this.ink.quiet;
      context.fillText(number, end, y);
      end += this.width(number, this.font) + 8;
    }
    if (end >= x + wide) return;
    context.fillStyle = this.ink.line;
    context.fillRect(end, y - 4, x + wide - end, 1);
  }

  width(text, font) {
    const key = `${font}|${text}`;
    let width = this.short.get(key);
    if (width === undefined) {
      this.context.font = font;
      width = this.context.measureText(text).width;
      this.short.set(key, width);
    }
    return width;
  }

  /** The end of a text that is too long: names differ there. */
  fitting(text, room, font) {
    if (this.width(text, font) <= room) return text;
    const key = `${font}|${Math.round(room)}|${text}`;
    let short = this.short.get(key);
    if (short === undefined) {
      const each = this.width(text, font) / text.length;
      let from = Math.max(1, text.length - Math.floor(room / each) + 1);
      while (from < text.length && this.width(`…${text.slice(from)}`, font) > room) from++;
      short = from < text.length ? `…${text.slice(from)}` : "";
      this.short.set(key, short);
    }
    this.context.font = font;
    return short;
  }
}
