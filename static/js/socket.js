// A socket that is kept open: back-off with jitter on failure, at once when the page is seen again, and one verdict on
// freshness.
const LONGEST_WAIT_MS = 15000;
const NOT_SIGNED_IN = 4401;

/**
 * Base of the page's streams. They give `address()`, `receive(data)` and, if need be, `opened()` and `lost()`, and call
 * `fresh()` whenever they received something new. `onState(state)`: "live", "stale", "signed-out", or what `ends` says
 * of a code after which it is not tried again.
 */
export class KeptSocket {
  constructor({ onState, silentMs, ends = {} }) {
    Object.assign(this, { onState, silentMs, ends: { [NOT_SIGNED_IN]: "signed-out", ...ends } });
    this.failures = 0;
    this.heard = 0;
    this.timer = 0;
    this.socket = null;
    window.addEventListener("online", () => this.reconnectNow());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.reconnectNow());
    setInterval(() => this.watch(), 1000);
  }

  opened() {}

  lost() {}

  connect() {
    clearTimeout(this.timer);
    this.timer = 0;
    const socket = new WebSocket(this.address());
    this.socket = socket;
    this.openedAt = performance.now();
    socket.binaryType = "arraybuffer";
    socket.onopen = () => socket === this.socket && this.opened();
    socket.onmessage = (event) => socket === this.socket && this.receive(event.data);
    socket.onclose = (event) => socket === this.socket && this.closed(event.code);
  }

  reconnectNow() {
    if (!this.timer) return;
    this.failures = 0;
    this.connect();
  }

  closed(code) {
    this.lost();
    if (this.ends[code]) {
      this.socket = null;
      this.onState(this.ends[code]);
      return;
    }
    this.onState("stale");
    const wait = Math.min(LONGEST_WAIT_MS, 500 * 2 ** this.failures) * (0.5 + Math.random() / 2);
    this.failures += 1;
    this.timer = setTimeout(() => this.connect(), wait);
  }

  /** A message came, and was understood. */
  fresh(state = "live") {
    this.failures = 0;
    this.heard = performance.now();
    this.onState(state);
  }

  /** A socket that is open but silent is as good as lost. */
  watch() {
    if (this.timer || !this.socket) return;
    const quiet = performance.now() - Math.max(this.heard, this.openedAt);
    if (quiet > this.silentMs) this.onState("stale");
    if (quiet > 3 * this.silentMs && document.visibilityState === "visible") {
      const gone = this.socket;
      this.socket = null;
      gone.close();
      this.closed(0);
    }
  }

  say(message) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }
}

/** The address of a stream of this site. */
export const streamAddress = (path) => `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${path}`;
