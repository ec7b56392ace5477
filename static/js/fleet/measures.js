// What the heatmap can show: for each measure its words, its columns, its range, and the value of one device.
import { FLAG, NVLINK_UNIT_BYTES, POWER_STEP_WATTS, UNKNOWN } from "./frames.js";

/** Percent of the device that is allocated: a share without core still takes memory. */
export const allocated = (columns, row) => Math.max(columns.core[row], columns.memory[row]);

/** A level on the colour scale is 0..255; this stands for "not known". */
export const NO_LEVEL = 256;

const byte = (value) => value;
const gigabytes = (value) => (value * value * NVLINK_UNIT_BYTES) / 1e9;

/** `read`: byte on the wire → what people read. `bend`: how a part 0..1 of the range lies on the scale. */
export const MEASURES = {
  allocated: { label: "Allocated", columns: ["core", "memory"], low: 0, high: 100, unit: "%", read: byte },
  utilisation: { label: "Utilisation", columns: ["utilisation"], low: 0, high: 100, unit: "%", read: byte },
  memory: { label: "Memory in use", columns: ["memory_in_use"], low: 0, high: 100, unit: "%", read: byte },
  temperature: { label: "Temperature", columns: ["temperature"], low: 25, high: 90, unit: " °C", read: byte },
  power: {
    label: "Power",
    columns: ["power"],
    low: 0,
    high: 800,
    unit: " W",
    read: (value) => value * POWER_STEP_WATTS,
  },
  nvlink: {
    label: "NVLink traffic",
    columns: ["nvlink"],
    low: 0,
    high: 900,
    unit: " GB/s",
    read: gigabytes,
    bend: Math.sqrt,
  },
  health: {
    label: "Health",
    columns: [],
    states: ["well", "taken outside", "node not ready", "unhealthy", "vanished"],
  },
};

for (const measure of Object.values(MEASURES)) {
  if (measure.states) continue;
  const { low, high, read, bend = byte } = measure;
  measure.levels = Uint16Array.from({ length: 256 }, (_, value) => {
    if (value === UNKNOWN) return NO_LEVEL;
    return Math.round(255 * bend(Math.min(1, Math.max(0, (read(value) - low) / (high - low)))));
  });
}

/** The byte that a measure shows of a device. */
const byteOf = (measure, columns, row) =>
  measure.columns.length === 2 ? allocated(columns, row) : columns[measure.columns[0]][row];

/** Where a device lies on the measure's scale: 0..255, NO_LEVEL where unknown; for health, which of its states. */
export function levelOf(measure, columns, row) {
  return measure.states ? healthOf(columns.flags[row]) : measure.levels[byteOf(measure, columns, row)];
}

function healthOf(flags) {
  if (!(flags & FLAG.PRESENT)) return 4;
  if (!(flags & FLAG.HEALTHY)) return 3;
  if (!(flags & FLAG.NODE_READY)) return 2;
  return flags & FLAG.STRANGER ? 1 : 0;
}

/** A number without its unit, short enough for a cell; empty where unknown. */
export function shortValue(measure, columns, row) {
  if (measure.states) return "";
  const value = byteOf(measure, columns, row);
  return value === UNKNOWN ? "" : rounded(measure.read(value));
}

/** A number with its unit, or a word. */
export function valueWords(measure, columns, row) {
  if (measure.states) return measure.states[healthOf(columns.flags[row])];
  const shown = shortValue(measure, columns, row);
  return shown === "" ? "unknown" : `${shown}${measure.unit}`;
}

function rounded(value) {
  return String(value > 0 && value < 9.95 ? Number(value.toFixed(1)) : Math.round(value));
}

/** The columns that a state needs beside the flags, which always come. */
export const STATE_COLUMNS = ["core", "memory"];

/** One word for the state of a device. */
export function stateOf(columns, row) {
  const flags = columns.flags[row];
  const health = healthOf(flags);
  if (health) return MEASURES.health.states[health];
  if (flags & FLAG.HELD) return "held";
  const share = allocated(columns, row);
  return share === 0 ? "free" : share >= 100 ? "in use" : "shared";
}

/** Kinds of states that can be asked for. */
export const STATES = {
  free: ["free"],
  used: ["in use", "shared", "held", "taken outside"],
  trouble: ["unhealthy", "vanished", "node not ready"],
};

/** Whether a state is one that somebody asked for: `free`, `used`, `trouble`, or the beginning of its own word. */
export const isState = (state, asked) =>
  Object.hasOwn(STATES, asked)
    ? STATES[asked].includes(state)
    : state.replaceAll(" ", "-").startsWith(asked.replaceAll(" ", "-"));
