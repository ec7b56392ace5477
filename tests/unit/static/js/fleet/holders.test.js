import assert from "node:assert/strict";
import { after, before, describe, mock, test } from "node:test";
import { Holders } from "../../../../../static/js/fleet/holders.js";

/** What the holders of device 1 are once this was answered, from `team-a` on. */
async function afterAnswer(response) {
  const answers = [Response.json({ names: { "team-a": [1] }, others: [2] }), response];
  mock.method(globalThis, "fetch", async () => answers.shift());
  const holders = new Holders("/fleet/holders/", () => {});
  holders.kinds.set("team", { asked: false, held: new Map() });
  await holders.ask("team");
  await holders.ask("team");
  mock.restoreAll();
  assert.equal(holders.knows(["team"]), true);
  return holders.of("team", { id: 1 });
}

describe("holders", () => {
  before(() => {
    globalThis.document = { visibilityState: "visible" };
  });
  after(() => {
    delete globalThis.document;
  });

  const page = { headers: { "Content-Type": "text/html; charset=utf-8" } };
  const cases = [
    ["are those of the newest answer", Response.json({ names: { "team-b": [1] }, others: [] }), ["team-b"]],
    ["stay after an error", new Response("", { status: 500 }), ["team-a"]],
    ["stay after a page to sign in on", new Response("<!doctype html>", page), ["team-a"]],
  ];
  for (const [name, response, want] of cases)
    test(name, async () => assert.deepEqual(await afterAnswer(response), want));
});
