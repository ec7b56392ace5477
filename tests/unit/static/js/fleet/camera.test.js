import assert from "node:assert/strict";
import { test } from "node:test";
import { Camera } from "../../../../../static/js/fleet/camera.js";

/** A view that is larger inside than outside. */
class View extends EventTarget {
  classList = { contains: () => true, add() {}, remove() {} };

  scrollLeft = 0;
  scrollTop = 0;

  setPointerCapture() {}

  scrollTo() {}

  /** Whether a listener of the page hears of it. */
  hears(type, fields = {}) {
    const event = Object.assign(new Event(type), fields);
    let heard = true;
    event.stopPropagation = () => {
      heard = false;
    };
    this.dispatchEvent(event);
    return heard;
  }
}

function dragged() {
  const view = new View();
  new Camera(view, {}, { onChange() {}, layOut() {}, hold() {} });
  view.hears("pointerdown", { button: 0, clientX: 0, clientY: 0 });
  view.hears("pointermove", { clientX: 40, clientY: 0 });
  return view;
}

test("the click at the end of a drag is none", () => {
  const view = dragged();
  view.hears("pointerup");
  assert.equal(view.hears("click"), false);
  assert.equal(view.hears("click"), true);
});

test("a drag that is cancelled ends in no click, so the next one counts", () => {
  const view = dragged();
  view.hears("pointercancel");
  assert.equal(view.hears("click"), true);
});
