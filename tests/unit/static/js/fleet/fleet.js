// What the tests of the fleet's modules share: a layout as the server sends it, and columns for it.
import { FLAG, noColumns, readLayout } from "../../../../../static/js/fleet/frames.js";

export const WELL = FLAG.HEALTHY | FLAG.PRESENT | FLAG.NODE_READY;

/** `nodes` nodes of `gpus` GPUs, two to a rack. */
export function layoutOf(nodes, gpus = 4) {
  const device = (node, minor) => [100 * node + minor, minor, 0, node % 2, 81920, 0];
  return readLayout({
    kind: "layout",
    version: 1,
    types: ["gpu"],
    models: ["H100", "A100"],
    racks: ["r0", "r1", "r2", "r3", "r4"],
    pools: ["training"],
    nodes: Array.from({ length: nodes }, (_, node) => [
      `gpu-a-${node}`,
      node >> 1,
      0,
      "exclusive",
      Array.from({ length: gpus }, (_, minor) => device(node, minor)),
    ]),
  });
}

/** Columns of a free, well fleet. */
export function freeColumns(layout) {
  const columns = noColumns(layout.devices.length);
  columns.flags.fill(WELL);
  return columns;
}
