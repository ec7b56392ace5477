// Which part of the world is in view, and how large: native scrolling, zoomed by ctrl or cmd with the wheel, by
// pinching, and by the page's keys and buttons; moved by dragging, too.
const LARGEST_CELL = 96;
const STEP = 1.3;
const DRAG_PIXELS = 4;

export class Camera {
  /**
   * `onChange(zoomed)`: something else is in view now. `layOut(cell)` lays the world out in cells of a size and gives
   * {width, height}; `hold(x, y)` gives a function that returns where that point of the world lies after the next
   * layout.
   */
  constructor(view, world, { onChange, layOut, hold }) {
    Object.assign(this, { view, world, onChange, layOut, hold });
    this.zoom = 1;
    this.width = this.height = 1;
    this.cell = 0;
    this.dragging = false;
    view.addEventListener("scroll", () => this.onChange(false), { passive: true });
    view.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    view.addEventListener("touchstart", (event) => this.pinchStart(event), { passive: false });
    view.addEventListener("touchmove", (event) => this.pinchMove(event), { passive: false });
    view.addEventListener("touchend", () => {
      this.pinch = null;
    });
    view.addEventListener("pointerdown", (event) => this.dragStart(event));
    view.addEventListener("pointermove", (event) => this.dragMove(event));
    view.addEventListener("pointerup", () => this.dragEnd());
    view.addEventListener("pointercancel", () => {
      this.dragEnd();
      this.dragging = false; // no click follows
    });
    // a drag that ends over a cell is no click on it
    view.addEventListener(
      "click",
      (event) => {
        if (this.dragging) event.stopPropagation();
        this.dragging = false;
      },
      { capture: true },
    );
  }

  get x() {
    return this.view.scrollLeft;
  }
  get y() {
    return this.view.scrollTop;
  }
  get most() {
    return Math.max(1, LARGEST_CELL / this.cell);
  }

  /** Another world, whole in view with cells of this size. What part of the old one was in the middle is so again. */
  fit(cell) {
    const middle = this.cell ? this.position() : { x: 0, y: 0 };
    this.cell = cell;
    this.zoom = Math.min(this.zoom, this.most);
    this.resize();
    this.centre(middle);
  }

  resize() {
    const { width, height } = this.layOut(this.cell * this.zoom);
    Object.assign(this, { width, height });
    this.world.style.width = `${Math.max(this.view.clientWidth, Math.floor(width))}px`;
    this.world.style.height = `${Math.max(this.view.clientHeight, Math.ceil(height))}px`;
    this.view.classList.toggle(
      "movable",
      this.view.scrollHeight > this.view.clientHeight || this.view.scrollWidth > this.view.clientWidth,
    );
  }

  /**
   * Zoom and the middle of the view, as parts of the world: the same whatever the window's size. At the world's
   * beginning it is that.
   */
  position() {
    const { x, y, view } = this;
    return {
      zoom: this.zoom,
      x: x && (x + view.clientWidth / 2) / this.width,
      y: y && (y + view.clientHeight / 2) / this.height,
    };
  }

  restore(position) {
    this.zoom = Math.min(this.most, Math.max(1, position.zoom));
    this.resize();
    this.centre(position);
    this.onChange(true);
  }

  centre({ x, y }) {
    this.view.scrollLeft = x * this.width - this.view.clientWidth / 2;
    this.view.scrollTop = y * this.height - this.view.clientHeight / 2;
  }

  /** Zoom so that what lies under a point of the view stays under it; without a point, under its middle. */
  zoomTo(zoom, at = { x: this.view.clientWidth / 2, y: this.view.clientHeight / 2 }) {
    const next = Math.min(this.most, Math.max(1, zoom));
    if (next === this.zoom) return;
    const now = this.hold(this.x + at.x, this.y + at.y);
    this.zoom = next;
    this.resize();
    const { x, y } = now();
    this.view.scrollLeft = x - at.x;
    this.view.scrollTop = y - at.y;
    this.onChange(true);
  }

  /** `+1` nearer, `-1` further, `0` everything. */
  step(direction) {
    this.zoomTo(direction ? this.zoom * STEP ** direction : 1);
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
    const turned = Math.max(-60, Math.min(60, event.deltaY * lines));
    this.zoomTo(this.zoom * Math.exp(-turned / 160), this.inside(event));
  }

  inside({ clientX, clientY }) {
    const bounds = this.view.getBoundingClientRect();
    return { x: clientX - bounds.left, y: clientY - bounds.top };
  }

  pinchStart(event) {
    if (event.touches.length !== 2) return;
    event.preventDefault();
    this.pinch = { zoom: this.zoom, apart: apart(event.touches) };
  }

  pinchMove(event) {
    if (!this.pinch || event.touches.length !== 2) return;
    event.preventDefault();
    const [one, other] = event.touches;
    const middle = { clientX: (one.clientX + other.clientX) / 2, clientY: (one.clientY + other.clientY) / 2 };
    this.zoomTo((this.pinch.zoom * apart(event.touches)) / this.pinch.apart, this.inside(middle));
  }

  dragStart(event) {
    this.dragging = false;
    if (event.button !== 0 || event.pointerType === "touch" || !this.view.classList.contains("movable")) return;
    this.drag = { id: event.pointerId, x: event.clientX, y: event.clientY, left: this.x, top: this.y };
  }

  dragMove(event) {
    if (!this.drag) return;
    const [x, y] = [event.clientX - this.drag.x, event.clientY - this.drag.y];
    if (!this.dragging) {
      if (Math.hypot(x, y) < DRAG_PIXELS) return;
      this.dragging = true;
      this.view.setPointerCapture(this.drag.id);
      this.view.classList.add("dragging");
    }
    this.view.scrollTo(this.drag.left - x, this.drag.top - y);
  }

  dragEnd() {
    this.drag = null;
    this.view.classList.remove("dragging");
  }
}

const apart = ([one, other]) => Math.max(1, Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY));
