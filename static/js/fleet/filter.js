// The words of the filter field: plain ones and `key:value`, all of which must fit; `-` before one turns it round,
// commas between values mean any of them. `h100 rack:a01 team:vision -state:free`, `model:h100,a100`, `pod:train`.
// Pure.
import { isState, stateOf } from "./measures.js";

const TEXTS = {
  node: (device) => device.node.name,
  rack: (device) => device.node.rack,
  pool: (device) => device.node.pool,
  mode: (device) => device.node.mode,
  model: (device) => device.model,
  type: (device) => device.type,
};
/** What devices are found by that the server alone knows of: who holds them. */
export const HOLDER_KEYS = ["team", "namespace", "pod", "claim"];
export const KEYS = [...Object.keys(TEXTS), ...HOLDER_KEYS, "state"];

/** [{key, words, not}]; `key` empty for plain words. A key that is none is taken as a plain word. */
export function readFilter(text) {
  return text
    .toLowerCase()
    .split(/\s+/)
    .map((part) => {
      const not = part.length > 1 && part.startsWith("-");
      const rest = not ? part.slice(1) : part;
      const before = rest.includes(":") ? rest.slice(0, rest.indexOf(":")) : "";
      const key = KEYS.includes(before) ? before : "";
      const words = (key ? rest.slice(key.length + 1) : rest).split(",").filter(Boolean);
      return { key, words, not };
    })
    .filter((term) => term.words.length);
}

/** Whether the filter looks at something that moves: states, or who holds what. */
export const asksFor = (terms, key) => terms.some((term) => term.key === key);

/** Does a device fit? `holdersOf(key, device)`: names of its holders, by one of HOLDER_KEYS. */
export function fits(terms, device, row, columns, holdersOf) {
  for (const { key, words, not } of terms) {
    let found;
    if (key === "state") found = words.some((word) => isState(stateOf(columns, row), word));
    else if (HOLDER_KEYS.includes(key))
      found = words.some((word) => holdersOf(key, device).some((name) => name.toLowerCase().includes(word)));
    else if (key) found = words.some((word) => TEXTS[key](device).toLowerCase().includes(word));
    else found = words.some((word) => plainText(device).includes(word));
    if (Boolean(found) === not) return false;
  }
  return true;
}

function plainText(device) {
  device.text ??= `${device.node.name} ${device.model} ${device.node.rack} ${device.node.pool}`.toLowerCase();
  return device.text;
}
