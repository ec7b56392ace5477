// The canvas: draws the cells in view, and of those only what changed. The canvas is as large as the view;
// a spacer gives the scroll its length, so tens of thousands of devices cost no more than what is seen.
import { arrange, cellAt, LABEL_FONT, neighbour } from "./arrange.js";
import { FLAG } from "./frames.js";
import { level, MEASURES, stateOf } from "./measures.js";
import { palette } from "./scale.js";

export class Heatmap {
  constructor(view, canvas, spacer, { onPoint, onOpen }) {
    Object.assign(this, { view, canvas, spacer, onPoint, onOpen });
    this.context = canvas.getContext("2d", { alpha: false });
    this.measure = MEASURES.allocated;
    this.groups = [];
    this.columns = null;
    this.plan = null;
    this.pointed = -1;
    this.drawn = new Int32Array(0);
    this.queued = false;
    this.readTheme();
    new ResizeObserver(() => this.rearrange()).observe(view);
    view.addEventListener("scroll", () => { this.point(-1); this.queueAll(); }, { passive: true });
    document.addEventListener("gpuplane:theme", () => { this.readTheme(); this.queueAll(); });
    window.matchMedia(`(resolution: ${window.devicePixelRatio}dppx)`).addEventListener?.("change", () => this.rearrange());
    canvas.addEventListener("pointermove", (event) => this.point(this.at(event), event));
    canvas.addEventListener("pointerleave", () => this.point(-1));
    canvas.addEventListener("click", (event) => { const at = this.at(event); if (at >= 0) this.onOpen(this.plan.order[at]); });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.point(-1));
  }

  readTheme() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    this.dark = document.documentElement.dataset.bsTheme === "dark";
    this.colours = palette(this.dark);
    this.ink = { panel: read("--gp-panel"), text: read("--gp-ink"), quiet: read("--gp-ink-2"), line: read("--gp-track"), bad: read("--gp-bad"), held: read("--gp-held"), focus: read("--tblr-primary") };
    this.font = `${LABEL_FONT}px ${getComputedStyle(document.body).fontFamily}`;
  }

  /** Which devices are shown: [{node, rows}]. */
  show(groups) {
    this.groups = groups;
    this.rearrange();
  }

  setMeasure(name) {
    this.measure = MEASURES[name];
    this.queueAll();
  }

  /** New values; `rows` null means any of them. */
  update(columns, rows) {
    this.columns = columns;
    if (!this.plan || rows === null || this.queued) this.queueAll();
    else for (const row of rows) {
      const at = this.plan.placeOf.get(row);
      if (at !== undefined) this.drawCell(at, false);
    }
  }

  rearrange() {
    const width = this.view.clientWidth;
    const height = this.view.clientHeight;
    if (!width || !height) return;
    const keep = this.pointed >= 0 && this.plan ? this.plan.order[this.pointed] : -1;
    this.plan = arrange(this.groups, width, height);
    this.spacer.style.height = `${Math.max(0, this.plan.height - height)}px`;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.scale = scale;
    this.drawn = new Int32Array(this.plan.order.length).fill(-9);
    this.pointed = this.plan.placeOf.get(keep) ?? -1;
    this.drawAll();
  }

  queueAll() {
    if (this.queued) return;
    this.queued = true;
    requestAnimationFrame(() => { this.queued = false; this.drawAll(); });
  }

  drawAll() {
    const { context, plan } = this;
    if (!plan) return;
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    context.fillStyle = this.ink.panel;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    const top = this.view.scrollTop;
    const bottom = top + this.view.clientHeight;
    context.font = this.font;
    context.textBaseline = "alphabetic";
    if (plan.labels) {
      for (const block of plan.blocks) {
        if (block.y + block.height < top || block.y > bottom) continue;
        context.fillStyle = this.ink.quiet;
        context.fillText(shorten(context, block.label, block.width), block.x, block.y - top + LABEL_FONT);
      }
    }
    for (const rack of plan.racks) {
      if (rack.y + 24 < top || rack.y > bottom) continue;
      context.font = `600 ${this.font}`;
      context.fillStyle = this.ink.text;
      const name = shorten(context, rack.name, rack.width);
      context.fillText(name, rack.x, rack.y - top + LABEL_FONT);
      const end = context.measureText(name).width + 8;
      this.line(rack.x + end, rack.y - top + 7.5, rack.x + rack.width, rack.y - top + 7.5, this.ink.line, 1);
    }
    context.font = this.font;
    if (this.columns) for (let at = 0; at < plan.order.length; at++) {
      if (plan.y[at] + plan.cell >= top && plan.y[at] <= bottom) this.drawCell(at, true);
    }
    if (this.pointed >= 0) this.ring(this.pointed);
  }

  drawCell(at, forced) {
    const { context, plan, columns } = this;
    const row = plan.order[at];
    const value = level(this.measure, columns, row);
    const flags = columns.flags[row];
    const look = (value + 1) * 256 + flags;
    if (!forced && this.drawn[at] === look) return;
    this.drawn[at] = look;
    const x = plan.x[at];
    const y = plan.y[at] - this.view.scrollTop;
    const size = plan.cell;
    if (y + size < 0 || y > this.view.clientHeight) return;
    if (!forced) {
      context.fillStyle = this.ink.panel;
      context.fillRect(x - 0.5, y - 0.5, size + 1, size + 1);
    }
    const fill = value < 0 ? this.ink.panel : this.colours.css[value];
    this.box(x, y, size);
    context.fillStyle = fill;
    context.fill();
    if (value < 0 || value === 0) {
      context.strokeStyle = this.ink.line;
      context.lineWidth = 1;
      this.box(x + 0.5, y + 0.5, size - 1);
      context.stroke();
    }
    if (value < 0 && size >= 8) this.line(x + size * 0.35, y + size / 2, x + size * 0.65, y + size / 2, this.ink.quiet, 1.5);
    this.marks(x, y, size, flags, value);
    if (at === this.pointed) this.ring(at);
  }

  /** What colour alone must not say. */
  marks(x, y, size, flags, value) {
    const { context } = this;
    const contrast = value >= 0 && this.colours.lightInk[value] ? "rgb(255 255 255 / .9)" : "rgb(10 16 24 / .82)";
    if (!(flags & FLAG.NODE_READY)) {
      context.save();
      this.box(x, y, size);
      context.clip();
      const step = Math.max(4, size / 4);
      for (let offset = -size; offset < size; offset += step) this.line(x + offset, y + size, x + offset + size, y, contrast, 1);
      context.restore();
    }
    if (!(flags & FLAG.HEALTHY) || !(flags & FLAG.PRESENT)) {
      context.strokeStyle = this.ink.bad;
      context.lineWidth = size >= 14 ? 2 : 1.25;
      this.box(x + 1, y + 1, size - 2);
      context.stroke();
      const inset = size * 0.3;
      if (flags & FLAG.PRESENT || size < 8) this.line(x + inset, y + inset, x + size - inset, y + size - inset, this.ink.bad, size >= 14 ? 2.25 : 1.25);
      this.line(x + size - inset, y + inset, x + inset, y + size - inset, this.ink.bad, size >= 14 ? 2.25 : 1.25);
      return;
    }
    if (flags & FLAG.HELD) {
      context.fillStyle = this.ink.held;
      context.beginPath();
      const corner = Math.max(4, size * 0.45);
      context.moveTo(x + size - corner, y);
      context.lineTo(x + size, y);
      context.lineTo(x + size, y + corner);
      context.closePath();
      context.fill();
    }
    if (flags & FLAG.STRANGER) {
      context.fillStyle = contrast;
      context.beginPath();
      context.arc(x + size / 2, y + size / 2, Math.max(1.5, size * 0.16), 0, 2 * Math.PI);
      context.fill();
    }
  }

  box(x, y, size) {
    this.context.beginPath();
    if (size >= 10) this.context.roundRect(x, y, size, size, Math.min(4, size * 0.18));
    else this.context.rect(x, y, size, size);
  }

  line(x1, y1, x2, y2, colour, width) {
    const { context } = this;
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.beginPath();
    context.moveTo(x1, y1);
    context.lineTo(x2, y2);
    context.stroke();
  }

  ring(at) {
    const { context, plan } = this;
    const x = plan.x[at];
    const y = plan.y[at] - this.view.scrollTop;
    context.strokeStyle = this.ink.text;
    context.lineWidth = 2;
    this.box(x + 1, y + 1, plan.cell - 2);
    context.stroke();
  }

  at(event) {
    if (!this.plan) return -1;
    const bounds = this.canvas.getBoundingClientRect();
    return cellAt(this.plan, event.clientX - bounds.left, event.clientY - bounds.top + this.view.scrollTop);
  }

  /** Where on the screen a cell is. */
  boundsOf(at) {
    const bounds = this.canvas.getBoundingClientRect();
    const x = bounds.left + this.plan.x[at];
    const y = bounds.top + this.plan.y[at] - this.view.scrollTop;
    return { left: x, top: y, right: x + this.plan.cell, bottom: y + this.plan.cell };
  }

  point(at, event) {
    if (at === this.pointed) return;
    const before = this.pointed;
    this.pointed = at;
    if (this.columns && this.plan) {
      if (before >= 0 && before < this.plan.order.length) { this.drawn[before] = -9; this.drawCell(before, false); }
      if (at >= 0) this.ring(at);
    }
    this.onPoint(at < 0 || !this.plan ? null : this.plan.order[at], at < 0 ? null : this.boundsOf(at), event === undefined);
  }

  key(event) {
    const direction = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down" }[event.key];
    if (!this.plan?.order.length) return;
    if (direction) {
      event.preventDefault();
      const at = this.pointed < 0 ? 0 : neighbour(this.plan, this.pointed, direction);
      this.reveal(at);
      this.point(at);
    } else if (event.key === "Home" || event.key === "End") {
      event.preventDefault();
      const at = event.key === "Home" ? 0 : this.plan.order.length - 1;
      this.reveal(at);
      this.point(at);
    } else if (event.key === "Enter" && this.pointed >= 0) this.onOpen(this.plan.order[this.pointed]);
    else if (event.key === "Escape") this.point(-1);
  }

  reveal(at) {
    const top = this.plan.y[at] - 40;
    const bottom = this.plan.y[at] + this.plan.cell + 40;
    if (top < this.view.scrollTop) this.view.scrollTop = top;
    else if (bottom > this.view.scrollTop + this.view.clientHeight) this.view.scrollTop = bottom - this.view.clientHeight;
  }

  /** Text of a device for screen readers. */
  words(device, row) {
    const value = this.measure.value(this.columns, row);
    const shown = value === null ? "unknown" : `${value}${this.measure.unit}`;
    return `${device.node.name}, ${device.type} ${device.minor}, ${stateOf(this.columns, row)}, ${this.measure.label.toLowerCase()} ${shown}`;
  }
}

function shorten(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let from = 1;
  while (from < text.length && context.measureText(`…${text.slice(from)}`).width > width) from++;
  return `…${text.slice(from)}`;
}
