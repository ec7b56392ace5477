// Keeps the socket to /ws/fleet/ open: back-off on failure, a full picture after a gap, one verdict on freshness.
import { applyDelta, readFull, readHeader, readLayout } from "./frames.js";

const SILENT_MS = 5000;
const LONGEST_WAIT_MS = 15000;
const NOT_SIGNED_IN = 4401;

/**
 * Calls back with what the page shows: `onLayout(layout)`, `onColumns(columns, rows | null, header)` where rows
 * null means all, and `onState(state)`: "connecting", "live", "stale" or "signed-out".
 */
export class FleetStream {
  constructor(address, { onLayout, onColumns, onState }) {
    Object.assign(this, { address, onLayout, onColumns, onState });
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
    this.sequence = -1;
    this.asked = false;
    const socket = new WebSocket(this.address);
    this.socket = socket;
    this.openedAt = performance.now();
    socket.binaryType = "arraybuffer";
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
    if (!this.layout || header.layout !== this.layout.version || header.total !== this.layout.devices.length) {
      this.askForAll();
      return;
    }
    let rows = null;
    if (header.delta) {
      if (!this.columns || header.sequence !== this.sequence + 1) {
        this.askForAll();
        return;
      }
      rows = applyDelta(data, header, this.columns);
    } else {
      this.columns = readFull(data, header);
    }
    this.asked = false;
    this.sequence = header.sequence;
    this.failures = 0;
    this.onColumns(this.columns, rows, header);
    this.onState("live");
  }

  askForAll() {
    if (this.asked || this.socket.readyState !== WebSocket.OPEN) return;
    this.asked = true;
    this.socket.send(JSON.stringify({ ask: "full" }));
  }
}
