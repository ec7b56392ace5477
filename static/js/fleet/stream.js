// The stream of /ws/fleet/ (docs/fleet-stream.md): the columns looked at, and a full picture after a gap.
import { measured } from "../measured.js";
import { KeptSocket } from "../socket.js";
import { applyFrame, noColumns, readHeader, readLayout } from "./frames.js";

const SILENT_MS = 5000;

/**
 * Calls back with what the page shows: `onLayout(layout)`, `onFrame(columns, header)` and `onState(state)`:
 * "live", "stale" or "signed-out". `wanted`: names of the columns looked at.
 */
export class FleetStream extends KeptSocket {
  constructor(path, wanted, { onLayout, onFrame, onState }) {
    super({ onState, silentMs: SILENT_MS });
    Object.assign(this, { path, wanted, onLayout, onFrame });
    this.layout = null;
    this.columns = null;
    this.sequence = -1;
    this.lastKnown = new Set(); // columns that were of now when the stream broke off
    this.connect();
  }

  address() {
    this.asked = false;
    this.named = this.wanted.join();
    return `${this.path}?columns=${this.named}`;
  }

  opened() {
    if (this.named !== this.wanted.join()) this.askForColumns();
  }

  lost() {
    if (!this.columns) return;
    for (const name in this.columns.asOf) {
      if (this.has(name)) this.lastKnown.add(name);
      this.columns.asOf[name] = -1; // another server counts anew
    }
  }

  /** Look at these columns from now on. */
  lookAt(names) {
    if (names.join() === this.wanted.join()) return;
    this.wanted = names;
    this.askForColumns();
  }

  /** Whether a column is as of the last frame. */
  has(name) {
    return this.columns !== null && this.columns.asOf[name] === this.sequence;
  }

  /** Whether a column has values to go by: those of now or, while the stream is interrupted, the last known ones. */
  knows(name) {
    return this.has(name) || this.lastKnown.has(name);
  }

  receive(data) {
    if (typeof data === "string") {
      const message = JSON.parse(data);
      if (message.kind !== "layout") return;
      this.layout = readLayout(message);
      this.columns = null;
      this.lastKnown.clear();
      this.onLayout(this.layout);
      return;
    }
    const began = performance.now();
    const header = readHeader(data);
    this.heard = began;
    if (!this.layout || header.layout !== this.layout.version || header.rows !== this.layout.devices.length) {
      this.askForAll();
      return;
    }
    this.columns ??= noColumns(header.rows);
    if (!applyFrame(data, header, this.columns)) {
      this.askForAll();
      return;
    }
    this.asked = false;
    this.lastKnown.clear();
    this.sequence = header.sequence;
    this.onFrame(this.columns, header);
    this.fresh();
    measured("fleet frame", began);
  }

  askForColumns() {
    this.say({ ask: "columns", columns: this.wanted });
  }

  askForAll() {
    if (this.asked) return;
    this.asked = true;
    this.say({ ask: "full" });
  }
}
