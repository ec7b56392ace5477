// The canvas: paints the cells in view as pixels into one image, whose size is the view's. Whatever changes, the whole
// view is painted anew, once a frame of the screen: tens of thousands of cells cost what their pixels cost.
import { measured } from "../measured.js";
import { anchorAt, breakLines, cellAt, layOut, neighbour, placeOfAnchor } from "./arrange.js";
import { Camera } from "./camera.js";
import { Labels } from "./labels.js";
import { levelOf, MEASURES, shortValue, STATE_COLUMNS, stateOf, valueWords } from "./measures.js";
import { palette, statePalette } from "./scale.js";
import { fromHex, packed, Sprites } from "./sprites.js";

const NUMBERS_FROM = 30; // CSS pixels of a cell
const RING_PIXELS = 3;

export class Heatmap {
  /**
   * `view` holds the world, the world a lens that stays in view with two canvases, and the ring around the pointed
   * cell.
   */
  constructor(view, { onPoint, onOpen, onMove }) {
    Object.assign(this, { view, onPoint, onOpen, onMove });
    this.world = view.querySelector(".heat-world");
    this.ring = view.querySelector(".heat-ring");
    this.canvas = view.querySelector("[data-cells]");
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.labels = new Labels(view.querySelector("[data-labels]"));
    this.scale = window.devicePixelRatio || 1;
    this.measure = MEASURES.allocated;
    this.groups = [];
    this.rows = 0;
    this.columns = null;
    this.plan = null;
    this.pointed = -1;
    this.byKey = false;
    this.queued = 0;
    this.moved = true;
    this.sprites = new Map();
    this.camera = new Camera(view, this.world, {
      onChange: (zoomed) => this.look(zoomed),
      layOut: (cell) => this.layOut(cell),
      hold: (x, y) => {
        const anchor = this.plan && anchorAt(this.plan, x, y);
        return () => (anchor ? placeOfAnchor(this.plan, anchor) : { x, y });
      },
    });
    this.readTheme();
    new ResizeObserver(() => this.rearrange()).observe(view);
    document.addEventListener("gpuplane:theme", () => {
      this.readTheme();
      this.queue(true);
    });
    this.listen();
  }

  listen() {
    const { canvas } = this;
    let touched = false;
    canvas.addEventListener("pointerdown", (event) => {
      touched = event.pointerType === "touch";
    });
    canvas.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "touch" && !this.camera.dragging) this.point(this.at(event), event);
    });
    canvas.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch") this.point(-1);
    });
    canvas.addEventListener("click", (event) => {
      const at = this.at(event);
      // a finger cannot hover: its first tap shows, its second opens
      if (touched && at !== this.pointed) this.point(at, event);
      else if (at >= 0) this.onOpen(this.plan.order[at]);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.point(-1));
  }

  readTheme() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    const dark = document.documentElement.dataset.bsTheme === "dark";
    this.colours = palette(dark);
    this.stateColours = statePalette(dark);
    this.ink = {
      panel: fromHex(read("--gp-panel")),
      quiet: fromHex(read("--gp-ink-2")),
      line: fromHex(read("--gp-edge")),
      bad: fromHex(read("--gp-bad")),
      held: fromHex(read("--gp-held")),
    };
    this.family = getComputedStyle(document.body).fontFamily;
    this.labels.setTheme({ text: read("--gp-ink"), quiet: read("--gp-ink-2"), line: read("--gp-track") }, this.family);
    this.sprites.clear();
  }

  /** Which devices are shown, as `chooseGroups` gives them, out of so many rows. */
  show(groups, rows) {
    Object.assign(this, { groups, rows });
    this.rearrange();
  }

  setMeasure(name) {
    this.measure = MEASURES[name];
    this.queue();
  }

  /** Rows are about to be others: nothing is painted by the old ones. */
  forget() {
    this.point(-1);
    this.columns = null;
    this.queue();
  }

  /** New values of the rows that are shown. */
  update(columns) {
    this.columns = columns;
    this.queue();
  }

  rearrange() {
    const { view } = this;
    if (!view.clientWidth || !view.clientHeight) return;
    const kept = this.pointed >= 0 && this.plan ? this.plan.order[this.pointed] : -1;
    this.lines = breakLines(this.groups, view.clientWidth, view.offsetHeight);
    this.camera.fit(this.lines.cell);
    this.pointed = kept >= 0 && kept < this.rows ? this.plan.placeOf[kept] : -1;
    this.labels.forget();
    this.moved = true;
    this.placeRing();
    if (kept >= 0) this.tellPointed(false);
    cancelAnimationFrame(this.queued);
    this.paint();
  }

  layOut(cell) {
    this.plan = layOut(this.groups, this.rows, this.lines, cell);
    this.view.dataset.cell = String(cell);
    return this.plan;
  }

  /** The camera looks elsewhere. */
  look(zoomed) {
    if (!this.plan) return;
    if (zoomed) this.labels.forget();
    if (this.byKey && this.pointed >= 0) {
      this.placeRing();
      this.tellPointed(false);
    } else this.point(-1);
    this.queue(true);
    this.onMove();
  }

  /** Paint with the screen's next frame; `moved`: the words, too. */
  queue(moved = false) {
    this.moved ||= moved;
    if (!this.queued) this.queued = requestAnimationFrame(() => this.paint());
  }

  paint() {
    const began = performance.now();
    this.queued = 0;
    // out of sight: `rearrange` paints when it is back
    if (!this.plan || !this.view.clientWidth || !this.view.clientHeight) return;
    this.resize();
    if (this.columns) this.paintCells();
    else this.pixels.fill(packed(this.ink.panel));
    this.context.putImageData(this.image, 0, 0);
    if (this.columns && this.plan.cell >= NUMBERS_FROM) this.paintNumbers();
    if (this.moved) this.labels.draw(this.plan, this.camera, this.scale);
    this.moved = false;
    measured("fleet paint", began);
  }

  /** Canvases and image as large as the view is now, in the screen's own pixels. */
  resize() {
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [this.view.clientWidth, this.view.clientHeight];
    const [across, down] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.image?.width === across && this.image.height === down && this.scale === scale) return;
    this.scale = scale;
    this.moved = true;
    for (const canvas of [this.canvas, this.labels.canvas]) {
      Object.assign(canvas, { width: across, height: down });
      Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    }
    this.image = new ImageData(across, down);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  spritesOf(size) {
    const kind = `${size}|${Boolean(this.measure.states)}`;
    let found = this.sprites.get(kind);
    if (!found) {
      if (this.sprites.size > 6) this.sprites.clear(); // sizes passed through while zooming
      const states = Boolean(this.measure.states);
      found = new Sprites({
        size,
        scale: this.scale,
        colours: states ? this.stateColours : this.colours,
        ink: this.ink,
        states,
      });
      this.sprites.set(kind, found);
    }
    return found;
  }

  paintCells() {
    const { plan, camera, scale, pixels, measure, columns } = this;
    const { width, height } = this.image;
    const [left, top] = [Math.round(camera.x * scale), Math.round(camera.y * scale)];
    const size = Math.max(1, Math.floor(plan.cell * scale));
    const sprites = this.spritesOf(size);
    const { flags } = columns;
    pixels.fill(packed(this.ink.panel));
    for (const tray of plan.trays) {
      if (tray.y * scale > top + height || (tray.y + tray.height) * scale < top) continue;
      if (tray.x * scale > left + width || (tray.x + tray.width) * scale < left) continue;
      for (let at = tray.first; at < tray.first + tray.count; at++) {
        const row = plan.order[at];
        const x = Math.round(plan.x[at] * scale) - left;
        const y = Math.round(plan.y[at] * scale) - top;
        const sprite = sprites.get(levelOf(measure, columns, row), flags[row]);
        const from = x < 0 ? -x : 0;
        const to = x + size > width ? width - x : size;
        const last = y + size > height ? height - y : size;
        for (let line = y < 0 ? -y : 0; line < last; line++) {
          const source = line * size;
          const target = (y + line) * width + x;
          for (let i = from; i < to; i++) pixels[target + i] = sprite[source + i];
        }
      }
    }
  }

  /** The value itself, in cells with room for it. */
  paintNumbers() {
    const { context, plan, camera, scale, measure, columns } = this;
    if (measure.states) return;
    const size = plan.cell;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.font = `600 ${Math.min(16, Math.round(size * 0.34))}px ${this.family}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const [left, top] = [camera.x, camera.y]; // read once: the browser may have to lay the page out for it
    const [right, bottom] = [left + this.canvas.width / scale, top + this.canvas.height / scale];
    for (let at = 0; at < plan.order.length; at++) {
      const x = plan.x[at];
      const y = plan.y[at];
      if (x + size < left || y + size < top || x > right || y > bottom) continue;
      const row = plan.order[at];
      const flags = columns.flags[row];
      if ((flags & 19) !== 19 || flags & 4) continue; // a mark is there
      const text = shortValue(measure, columns, row);
      if (!text) continue;
      context.fillStyle = this.colours.lightInk[levelOf(measure, columns, row)] ? "#fff" : "#000";
      context.fillText(text, x + size / 2 - left, y + size / 2 - top + 0.5);
    }
  }

  at(event) {
    if (!this.plan) return -1;
    const { x, y } = this.camera.inside(event);
    return cellAt(this.plan, x + this.camera.x, y + this.camera.y);
  }

  /** Where on the screen a cell is. */
  boundsOf(at) {
    const bounds = this.view.getBoundingClientRect();
    const left = bounds.left + this.plan.x[at] - this.camera.x;
    const top = bounds.top + this.plan.y[at] - this.camera.y;
    const size = this.plan.cell;
    return { left, top, right: left + size, bottom: top + size };
  }

  point(at, event) {
    if (at === this.pointed) return;
    this.pointed = at;
    this.byKey = at >= 0 && event === undefined;
    this.placeRing();
    this.tellPointed(this.byKey);
  }

  /** Call back with the pointed device and where it is now; with nothing where there is none (any more). */
  tellPointed(byKey) {
    const at = this.plan ? this.pointed : -1;
    this.onPoint(at < 0 ? null : this.plan.order[at], at < 0 ? null : this.boundsOf(at), byKey);
  }

  placeRing() {
    const { ring, pointed, plan } = this;
    ring.hidden = pointed < 0 || !plan;
    if (ring.hidden) return;
    const around = `${Math.floor(plan.cell) + 2 * RING_PIXELS}px`;
    const place = (at) => `${at - RING_PIXELS}px`;
    Object.assign(ring.style, {
      left: place(plan.x[pointed]),
      top: place(plan.y[pointed]),
      width: around,
      height: around,
    });
  }

  key(event) {
    const direction = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down" }[event.key];
    if (!this.plan?.order.length || event.ctrlKey || event.metaKey || event.altKey) return;
    let at = -1;
    if (direction) at = this.pointed < 0 ? 0 : neighbour(this.plan, this.pointed, direction);
    else if (event.key === "Home") at = 0;
    else if (event.key === "End") at = this.plan.order.length - 1;
    else if (event.key === "Enter" && this.pointed >= 0) this.onOpen(this.plan.order[this.pointed]);
    else if (event.key === "Escape") this.point(-1);
    if (at < 0) return;
    event.preventDefault();
    this.reveal(at);
    this.point(at);
  }

  /** Bring a cell into view. */
  reveal(at) {
    const { plan, view } = this;
    const size = plan.cell;
    const [x, y] = [plan.x[at], plan.y[at]];
    const room = Math.min(40, (view.clientHeight - size) / 2);
    if (y - room < view.scrollTop) view.scrollTop = y - room;
    else if (y + size + room > view.scrollTop + view.clientHeight) view.scrollTop = y + size + room - view.clientHeight;
    if (x - room < view.scrollLeft) view.scrollLeft = x - room;
    else if (x + size + room > view.scrollLeft + view.clientWidth) view.scrollLeft = x + size + room - view.clientWidth;
  }

  /** The columns that the text of a device is made of. */
  get wordColumns() {
    return [...STATE_COLUMNS, ...this.measure.columns];
  }

  /** Text of a device for screen readers; without its values where `known` is false. */
  words(device, row, known) {
    const name = `${device.node.name}, ${device.type} ${device.minor}`;
    if (!known) return `${name}, state not known now`;
    return `${name}, ${stateOf(this.columns, row)}, ${this.measure.label.toLowerCase()} ${valueWords(this.measure, this.columns, row)}`;
  }
}
