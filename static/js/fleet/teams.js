// Who holds what, by team: asked for only while the page groups or filters by it.
const EVERY_MS = 10000;
const OTHERS = "another team";

export class Teams {
  /** `onChange()`: something is known anew. */
  constructor(address, onChange) {
    Object.assign(this, { address, onChange });
    this.held = new Map();
    this.timer = 0;
  }

  /** Ask now and again, or stop. */
  follow(wanted) {
    if (wanted === Boolean(this.timer)) return;
    clearInterval(this.timer);
    this.timer = wanted ? setInterval(() => this.ask(), EVERY_MS) : 0;
    if (wanted) this.ask();
  }

  /** Names of the teams that hold a device. */
  of(device) {
    return this.held.get(device.id) ?? [];
  }

  async ask() {
    if (document.visibilityState !== "visible") return;
    try {
      const answer = await fetch(this.address, { headers: { "HX-Request": "true" } });
      if (!answer.ok || answer.status === 204) return;
      const { teams, others } = await answer.json();
      const held = new Map();
      const add = (id, name) => (held.has(id) ? held.get(id).push(name) : held.set(id, [name]));
      for (const [name, ids] of Object.entries(teams)) for (const id of ids) add(id, name);
      for (const id of others) add(id, OTHERS);
      this.held = held;
      this.onChange();
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // no connection: what was known stays, the stream says the rest
    }
  }
}
