// The stream of one node or device (docs/node-stream.md): columns put together from what changed.
import { KeptSocket, streamAddress } from "../socket.js";

const SILENT_MS = 8000;

/**
 * Calls back with what was said: `onNow(devices, columns, time)` with every column whole, `onDetails(devices)`,
 * `onChanged()` when the page's parts are to be fetched anew, and `onState(state)`: "live", "silent" (the agent says
 * nothing), "stale", "signed-out" or "gone".
 */
export class LiveStream extends KeptSocket {
  constructor(path, { onNow, onDetails, onChanged, onState }) {
    super({ onState, silentMs: SILENT_MS, ends: { 4404: "gone" } });
    Object.assign(this, { path, onNow, onDetails, onChanged });
    this.devices = [];
    this.columns = {};
    this.connect();
  }

  address() {
    return streamAddress(this.path);
  }

  receive(data) {
    const message = JSON.parse(data);
    if (message.kind === "silent") this.fresh("silent");
    if (message.kind === "details") this.onDetails(message.devices);
    if (message.kind === "changed") this.onChanged();
    if (message.kind !== "now") return;
    if (message.devices) {
      this.devices = message.devices;
      this.columns = {};
    }
    Object.assign(this.columns, message.columns);
    this.onNow(this.devices, this.columns, message.time);
    this.fresh();
  }
}

const OLD_MS = 12_000;

/** Whether what was said last says nothing about now: the stream has ended, or nothing was heard for long. */
export const isOld = (state, stream) =>
  ["silent", "gone", "signed-out"].includes(state) ||
  (state === "stale" && performance.now() - (stream?.heard ?? 0) > OLD_MS);

const WORDS = {
  connecting: "connecting",
  live: "live",
  silent: "agent silent",
  stale: "not live",
  "signed-out": "signed out",
  gone: "gone",
};

/** Writes a state into the sign at the head of the page. */
export function showState(state) {
  const sign = document.querySelector(".live");
  if (!sign || sign.dataset.state === state) return;
  sign.dataset.state = state;
  sign.querySelector("span").textContent = WORDS[state];
}
