// Who holds what, by team: asked for only while the page groups or filters by it.
const EVERY_MS = 10000;
const OTHERS = "another team";

export class Teams {
  /** `onChange()`: something is known anew. */
  constructor(address, onChange) {
    Object.assign(this, { address, onChange });
    this.held = new Map();
    this.asked = false; // whether there was an answer, or is none to be had
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
    if (document.visibilityState !== "visible" && this.asked) return;
    try {
      const answer = await fetch(this.address, { headers: { "HX-Request": "true" } });
      if (answer.status === 200) this.take(await answer.json());
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // no connection: what was known stays, the stream says the rest
    } finally {
      this.asked = true;
      this.onChange();
    }
  }

  take({ teams, others }) {
    this.held = new Map();
    const add = (id, name) => (this.held.has(id) ? this.held.get(id).push(name) : this.held.set(id, [name]));
    for (const [name, ids] of Object.entries(teams)) for (const id of ids) add(id, name);
    for (const id of others) add(id, OTHERS);
  }
}
