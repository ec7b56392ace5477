// The card beside the pointed device: what the stream knows at once, who holds it from the server
// (holders are shown by namespace, so they are not in the stream).
import { FLAG } from "./frames.js";
import { allocated, MEASURES, stateOf, valueWords } from "./measures.js";

/** What the card describes: while it is shown the page looks at these, whatever the map shows. */
export const CARD_COLUMNS = ["core", "memory", "utilisation", "memory_in_use", "temperature", "power", "nvlink"];

const WAIT_MS = 140;
const KEPT_MS = 5000;
const UNREAD = "Holders cannot be read now.";

export class HoverCard {
  constructor(element, address) {
    this.element = element;
    this.address = address;
    this.kept = new Map();
    this.timer = 0;
    this.device = null;
  }

  hide() {
    this.element.hidden = true;
    this.device = null;
    clearTimeout(this.timer);
    this.request?.abort();
  }

  /** `has(column)`: whether its values are of now; one that is not yet is shown as on its way. */
  show(device, row, columns, has, bounds) {
    const other = this.device !== device;
    this.device = device;
    const shown = (name) => {
      const measure = MEASURES[name];
      const words = measure.columns.every(has) ? valueWords(measure, columns, row) : "…";
      return words === "unknown" ? "–" : words;
    };
    const known = has("core") && has("memory");
    const whole = columns.core[row] === columns.memory[row];
    const facts = [
      ["State", known ? stateOf(columns, row) : "…"],
      [
        "Allocated",
        !known || whole ? shown("allocated") : `core ${columns.core[row]}%, memory ${columns.memory[row]}%`,
      ],
      ["Utilisation", shown("utilisation")],
      ["Memory in use", device.memoryMiB ? `${shown("memory")} of ${Math.round(device.memoryMiB / 1024)} GiB` : "–"],
      ["Temperature", shown("temperature")],
      ["Power", shown("power")],
      ["NVLink", shown("nvlink")],
    ];
    const place = [
      device.model || "model unknown",
      device.node.rack && `rack ${device.node.rack}`,
      device.node.pool && `pool ${device.node.pool}`,
    ];
    this.part("[data-title]").textContent = `${device.node.name} · ${device.type.toUpperCase()} ${device.minor}`;
    this.part("[data-sub]").textContent = place.filter(Boolean).join(" · ");
    const list = this.part("dl");
    list.replaceChildren(
      ...facts.flatMap(([name, value]) => {
        const dt = document.createElement("dt");
        const dd = document.createElement("dd");
        dt.textContent = name;
        dd.textContent = value;
        return [dt, dd];
      }),
    );
    if (other) this.asked = false;
    if (!this.asked && known) {
      this.asked = true;
      const flags = columns.flags[row];
      this.holders(device, allocated(columns, row) > 0 || !(flags & FLAG.HEALTHY) || Boolean(flags & FLAG.STRANGER));
    } else if (other) this.part("[data-holders]").textContent = "";
    this.element.hidden = false;
    this.place(bounds);
  }

  place(bounds) {
    this.bounds = bounds;
    const { offsetWidth: width, offsetHeight: height } = this.element;
    let left = bounds.right + 12;
    if (left + width > window.innerWidth - 8) left = bounds.left - width - 12;
    const top = Math.min(Math.max(8, bounds.top - 12), window.innerHeight - height - 8);
    this.element.style.left = `${Math.max(8, left)}px`;
    this.element.style.top = `${top}px`;
  }

  holders(device, any) {
    const box = this.part("[data-holders]");
    clearTimeout(this.timer);
    this.request?.abort();
    const kept = this.kept.get(device.id);
    if (kept && performance.now() - kept.at < KEPT_MS) {
      box.innerHTML = kept.html;
      return;
    }
    box.textContent = "";
    if (!any) return;
    this.timer = setTimeout(async () => {
      this.request = new AbortController();
      try {
        const answer = await fetch(this.address.replace("/0/", `/${device.id}/`), {
          signal: this.request.signal,
          headers: { "HX-Request": "true" },
        });
        if (this.device !== device) return;
        if (answer.status !== 200) {
          box.textContent = UNREAD; // 204: nobody is signed in any more
          return;
        }
        const html = await answer.text();
        this.kept.set(device.id, { html, at: performance.now() });
        if (this.kept.size > 500) this.kept.delete(this.kept.keys().next().value);
        box.innerHTML = html;
        this.place(this.bounds);
      } catch (error) {
        if (error.name === "AbortError") return;
        if (!(error instanceof TypeError)) throw error; // a defect; TypeError: no connection
        if (this.device === device) box.textContent = UNREAD;
      }
    }, WAIT_MS);
  }

  part(selector) {
    return this.element.querySelector(selector);
  }
}
