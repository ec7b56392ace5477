// Keeps the socket to /ws/fleet/ open: the columns looked at, back-off on failure, a full picture after a gap, one verdict on freshness.
import { applyFrame, noColumns, readHeader, readLayout } from "./frames.js";

const SILENT_MS = 5000;
const LONGEST_WAIT_MS = 15000;
const NOT_SIGNED_IN = 4401;

/**
 * Calls back with what the page shows: `onLayout(layout)`, `onFrame(columns, header)` and `onState(state)`:
 * "connecting", "live", "stale" or "signed-out". `wanted`: names of the columns looked at.
 */
export class FleetStream {
  constructor(address, wanted, { onLayout, onFrame, onState }) {
    Object.assign(this, { address, wanted, onLayout, onFrame, onState });
    this.layout = null;
    this.columns = null;
    this.sequence = -1;
    this.failures = 0;
    this.lastFrame = 0;
    this.asked = false;
    this.timer = 0;
    window.addEventListener("online", () => this.reconnectNow());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.reconnectNow());
    setInterval(() => this.watch(), 1000);
    this.connect();
  }

  connect() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.asked = false;
    const named = this.wanted.join();
    const socket = new WebSocket(`${this.address}?columns=${named}`);
    this.socket = socket;
    this.openedAt = performance.now();
    socket.binaryType = "arraybuffer";
    socket.onopen = () => named !== this.wanted.join() && this.askForColumns();
    socket.onmessage = (event) => socket === this.socket && this.receive(event.data);
    socket.onclose = (event) => socket === this.socket && this.closed(event.code);
  }

  reconnectNow() {
    if (this.timer) {
      this.failures = 0;
      this.connect();
    }
  }

  closed(code) {
    if (this.columns) for (const name in this.columns.asOf) this.columns.asOf[name] = -1; // another server counts anew
    if (code === NOT_SIGNED_IN) {
      this.onState("signed-out");
      return;
    }
    this.onState("stale");
    const wait = Math.min(LONGEST_WAIT_MS, 500 * 2 ** this.failures) * (0.5 + Math.random() / 2);
    this.failures += 1;
    this.timer = setTimeout(() => this.connect(), wait);
  }

  /** A socket that is open but silent is as good as lost. */
  watch() {
    if (this.timer || !this.socket) return;
    const quiet = performance.now() - Math.max(this.lastFrame, this.openedAt);
    if (quiet > SILENT_MS) this.onState("stale");
    if (quiet > 3 * SILENT_MS && document.visibilityState === "visible") {
      const lost = this.socket;
      this.socket = null;
      lost.close();
      this.closed(0);
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

  receive(data) {
    if (typeof data === "string") {
      const message = JSON.parse(data);
      if (message.kind !== "layout") return;
      this.layout = readLayout(message);
      this.columns = null;
      this.onLayout(this.layout);
      return;
    }
    const header = readHeader(data);
    this.lastFrame = performance.now();
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
    this.sequence = header.sequence;
    this.failures = 0;
    this.onFrame(this.columns, header);
    this.onState("live");
  }

  askForColumns() {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ ask: "columns", columns: this.wanted }));
  }

  askForAll() {
    if (this.asked || this.socket.readyState !== WebSocket.OPEN) return;
    this.asked = true;
    this.socket.send(JSON.stringify({ ask: "full" }));
  }
}
