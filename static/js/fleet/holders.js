// Who holds what, by team, namespace, pod or claim: each asked for only while the page groups or filters by it.
const EVERY_MS = 10000;
const OTHERS = "another team"; // the stream says that the device is taken, never by whom

export class Holders {
  /** `address`: of the page's part, without its question. `onChange()`: something is known anew. */
  constructor(address, onChange) {
    Object.assign(this, { address, onChange });
    this.kinds = new Map(); // kind → {timer, asked, held: device id → names}
  }

  /** Ask for these kinds now and again, for others no more. */
  follow(wanted) {
    for (const [name, kind] of this.kinds) {
      if (wanted.includes(name)) continue;
      clearInterval(kind.timer);
      this.kinds.delete(name); // an answer that is still to come goes with it
    }
    for (const name of wanted) {
      if (this.kinds.has(name)) continue;
      this.kinds.set(name, { timer: setInterval(() => this.ask(name), EVERY_MS), asked: false, held: new Map() });
      this.ask(name);
    }
  }

  /** Whether there was an answer for all of these, or is none to be had. */
  knows(wanted) {
    return wanted.every((name) => this.kinds.get(name)?.asked);
  }

  /** Names of those who hold a device. */
  of(name, device) {
    return this.kinds.get(name)?.held.get(device.id) ?? [];
  }

  async ask(name) {
    const kind = this.kinds.get(name);
    if (document.visibilityState !== "visible" && kind.asked) return;
    try {
      const answer = await fetch(`${this.address}?by=${name}`, { headers: { "HX-Request": "true" } });
      // a proxy in front may answer with its own page to sign in on
      const isOurs = answer.headers.get("Content-Type")?.startsWith("application/json");
      if (answer.status === 200 && isOurs) kind.held = heldBy(await answer.json(), name);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // no connection: what was known stays, the stream says the rest
    } finally {
      kind.asked = true;
      this.onChange();
    }
  }
}

function heldBy({ names, others }, kind) {
  const held = new Map();
  const add = (id, name) => (held.has(id) ? held.get(id).push(name) : held.set(id, [name]));
  for (const [name, ids] of Object.entries(names)) for (const id of ids) add(id, name);
  if (kind === "team") for (const id of others) add(id, OTHERS);
  return held;
}
