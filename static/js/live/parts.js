// Parts of the page that the server writes, fetched when the stream says that they changed, not by the clock.
import { isInUse } from "../in_use.js";

const AGAIN_MS = 1000;
const AFTER_FAILURE_MS = 5000;

export class Parts {
  /** `ids`: of elements that fetch themselves by htmx upon an event `changed`. */
  constructor(ids) {
    this.ids = ids;
    this.due = new Map(); // id → when to fetch it
    // What changes while a part is fetched may not be in the answer. htmx would queue a second request on an element
    // that the answer replaces, and forget it; so it is asked for afterwards.
    this.underWay = new Set();
    document.body.addEventListener("htmx:beforeRequest", ({ detail }) => this.underWay.add(detail.elt.id));
    document.body.addEventListener("htmx:afterRequest", ({ detail }) => {
      const { id } = detail.requestConfig.elt; // detail.elt is its parent, where the answer replaced it
      this.underWay.delete(id);
      if (!detail.successful && ids.includes(id)) this.due.set(id, performance.now() + AFTER_FAILURE_MS);
    });
    // somebody may have begun to work in it while the answer was on its way: it is fetched when they are done
    document.body.addEventListener("htmx:beforeSwap", ({ detail }) => {
      const { id } = detail.requestConfig.elt;
      if (!ids.includes(id) || !isInUse(detail.target)) return;
      detail.shouldSwap = false;
      this.due.set(id, performance.now());
    });
    document.body.addEventListener("htmx:oobBeforeSwap", ({ detail }) => {
      if (!isInUse(detail.target)) return; // steady.js keeps it
      const part = this.partWith(detail.target.id);
      if (part) this.due.set(part, performance.now() + AFTER_FAILURE_MS);
    });
    document.addEventListener("visibilitychange", () => this.fetch());
    setInterval(() => this.fetch(), AGAIN_MS);
  }

  /** The id of the part whose answer brings this element as well. */
  partWith(id) {
    return this.ids.find((part) =>
      document.getElementById(part).getAttribute("hx-select-oob")?.split(",").includes(`#${id}`),
    );
  }

  changed() {
    for (const id of this.ids) this.due.set(id, performance.now());
    this.fetch();
  }

  /** Fetch what is due. Nobody looks at a hidden page, and what somebody works in waits until they are done. */
  fetch() {
    if (document.visibilityState !== "visible") return;
    for (const [id, when] of this.due) {
      const part = document.getElementById(id);
      if (when > performance.now() || this.underWay.has(id) || isInUse(part)) continue;
      this.due.delete(id);
      window.htmx.trigger(part, "changed");
    }
  }
}
