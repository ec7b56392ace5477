// Keeps a socket of one node or device open (docs/node-stream.md): back-off on failure, one verdict on freshness.
const SILENT_MS = 6000;
const LONGEST_WAIT_MS = 15000;
const FINAL = { 4401: "signed-out", 4404: "gone" };

/**
 * Calls back with what was said: `onNow(devices, columns, time)` with every column whole, `onDetails(devices)`, and
 * `onState(state)`: "connecting", "live", "silent" (the agent says nothing), "stale", "signed-out" or "gone".
 */
export class LiveStream {
  constructor(path, { onNow, onDetails, onState }) {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    Object.assign(this, { address: `${scheme}://${location.host}${path}`, onNow, onDetails, onState });
    this.devices = [];
    this.columns = {};
    this.failures = 0;
    this.timer = 0;
    this.heard = 0;
    this.agentSilent = false;
    window.addEventListener("online", () => this.reconnectNow());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.reconnectNow());
    setInterval(() => this.watch(), 1000);
    this.connect();
  }

  connect() {
    clearTimeout(this.timer);
    this.timer = 0;
    const socket = new WebSocket(this.address);
    this.socket = socket;
    socket.onmessage = (event) => socket === this.socket && this.receive(JSON.parse(event.data));
    socket.onclose = (event) => socket === this.socket && this.closed(event.code);
  }

  reconnectNow() {
    if (!this.timer) return;
    this.failures = 0;
    this.connect();
  }

  closed(code) {
    if (FINAL[code]) {
      this.onState(FINAL[code]);
      return;
    }
    this.onState("stale");
    const wait = Math.min(LONGEST_WAIT_MS, 500 * 2 ** this.failures) * (0.5 + Math.random() / 2);
    this.failures += 1;
    this.timer = setTimeout(() => this.connect(), wait);
  }

  watch() {
    if (!this.timer && !this.agentSilent && this.heard && performance.now() - this.heard > SILENT_MS) this.onState("stale");
  }

  receive(message) {
    this.failures = 0;
    this.heard = performance.now();
    this.agentSilent = message.kind === "silent" || (this.agentSilent && message.kind === "details");
    if (message.kind === "silent") this.onState("silent");
    if (message.kind === "details") this.onDetails(message.devices);
    if (message.kind !== "now") return;
    if (message.devices) {
      this.devices = message.devices;
      this.columns = {};
    }
    Object.assign(this.columns, message.columns);
    this.onNow(this.devices, this.columns, message.time);
    this.onState("live");
  }
}

const WORDS = { connecting: "connecting", live: "live", silent: "agent silent", stale: "not live", "signed-out": "signed out", gone: "gone" };

/** Writes a state into the sign at the head of the page. */
export function showState(state) {
  const sign = document.querySelector(".live");
  if (!sign || sign.dataset.state === state) return;
  sign.dataset.state = state;
  sign.querySelector("span").textContent = WORDS[state];
}
