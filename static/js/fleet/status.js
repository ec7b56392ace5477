// Whether what is shown is of now: the sign at the head of the page, and the banner that says why not.
import { showState } from "../live/stream.js";
import { CONDITION } from "./frames.js";

const WORDS = {
  signedOut: "You are signed out. Sign in again to see the fleet live.",
  stale: "The live stream is interrupted: what you see is the last known state. Reconnecting…",
  databaseDown: "The database does not answer: allocations are shown as last read.",
  redisDown: "Redis does not answer: measurements may be missing. Allocations are current.",
};

export class Status {
  constructor(page) {
    this.banner = page.querySelector("#stream-banner");
    this.state = "connecting";
    this.conditions = 0;
    this.said = "";
  }

  get isLive() {
    return this.state === "live";
  }

  setState(state) {
    this.state = state;
    showState(state);
    this.show();
  }

  /** `conditions`: as a frame's header has them. */
  setConditions(conditions) {
    this.conditions = conditions;
    this.show();
  }

  show() {
    const { state, conditions } = this;
    if (state === "signed-out") this.say(WORDS.signedOut, true);
    else if (state === "stale") this.say(WORDS.stale, true);
    else if (conditions & CONDITION.DATABASE_DOWN) this.say(WORDS.databaseDown, true);
    else if (conditions & CONDITION.REDIS_DOWN) this.say(WORDS.redisDown, false);
    else this.say("", false);
  }

  /** Once: a screen reader reads the banner out whenever it is written. */
  say(text, bad) {
    if (text === this.said) return;
    this.said = text;
    this.banner.hidden = !text;
    this.banner.classList.toggle("banner-bad", bad);
    this.banner.querySelector("span").textContent = text;
  }
}
