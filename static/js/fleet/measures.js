// What the heatmap can show: for each measure its words, its range, and the value of one device.
import { FLAG, POWER_STEP_WATTS, UNKNOWN } from "./frames.js";

/** Percent of the device given away: a share without core still takes memory. */
export const given = (columns, row) => Math.max(columns.core[row], columns.memory[row]);
const measured = (column) => (columns, row) => (columns[column][row] === UNKNOWN ? null : columns[column][row]);
const watts = (columns, row) => (columns.power[row] === UNKNOWN ? null : columns.power[row] * POWER_STEP_WATTS);

export const MEASURES = {
  allocated: { label: "Allocated", low: 0, high: 100, unit: "%", value: given },
  utilisation: { label: "Utilisation", low: 0, high: 100, unit: "%", value: measured("utilisation") },
  memory: { label: "Memory in use", low: 0, high: 100, unit: "%", value: measured("memoryInUse") },
  temperature: { label: "Temperature", low: 25, high: 90, unit: " °C", value: measured("temperature") },
  power: { label: "Power", low: 0, high: 800, unit: " W", value: watts },
};

/** 0..255 on the measure's scale, -1 where unknown. */
export function level(measure, columns, row) {
  const value = measure.value(columns, row);
  if (value === null) return -1;
  return Math.round((255 * Math.min(1, Math.max(0, (value - measure.low) / (measure.high - measure.low)))));
}

const isSick = (flags) => !(flags & FLAG.HEALTHY) || !(flags & FLAG.PRESENT);

/** One word for the state of a device. */
export function stateOf(columns, row) {
  const flags = columns.flags[row];
  if (!(flags & FLAG.PRESENT)) return "vanished";
  if (!(flags & FLAG.HEALTHY)) return "unhealthy";
  if (!(flags & FLAG.NODE_READY)) return "node not ready";
  if (flags & FLAG.STRANGER) return "taken outside";
  if (flags & FLAG.HELD) return "held";
  const share = given(columns, row);
  return share === 0 ? "free" : share >= 100 ? "in use" : "shared";
}

/** The figures above the map, over the GPUs of the fleet. */
export function figures(layout, columns) {
  const sums = { total: 0, used: 0, free: 0, unhealthy: 0, share: 0, known: 0, utilisation: 0 };
  for (let row = 0; row < layout.devices.length; row++) {
    if (layout.devices[row].type !== "gpu") continue;
    const flags = columns.flags[row];
    const share = given(columns, row);
    sums.total += 1;
    sums.share += share;
    if (isSick(flags)) sums.unhealthy += 1;
    if (share > 0 || flags & FLAG.STRANGER) sums.used += 1;
    else if (!isSick(flags) && flags & FLAG.NODE_READY) sums.free += 1;
    if (columns.utilisation[row] !== UNKNOWN) {
      sums.known += 1;
      sums.utilisation += columns.utilisation[row];
    }
  }
  return {
    total: sums.total,
    used: sums.used,
    free: sums.free,
    unhealthy: sums.unhealthy,
    allocated: sums.total ? sums.share / sums.total : null,
    utilisation: sums.known ? sums.utilisation / sums.known : null,
  };
}
