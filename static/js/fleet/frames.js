// Reads the stream of /ws/fleet/ (docs/fleet-stream.md). Pure; the server's half is nodes/live/fleet_frames.py.

/** Columns in the order of their numbers on the wire, by the names that the server knows. */
export const COLUMNS = ["core", "memory", "utilisation", "memory_in_use", "temperature", "power", "nvlink", "flags"];
export const UNKNOWN = 255;
export const POWER_STEP_WATTS = 6;
export const NVLINK_UNIT_BYTES = 60e6;
export const FLAG = { HEALTHY: 1, PRESENT: 2, STRANGER: 4, HELD: 8, NODE_READY: 16 };
export const CONDITION = { DATABASE_DOWN: 1, REDIS_DOWN: 2 };
const VERSION = 2;
const HEADER_BYTES = 52;
const BLOCK_BYTES = 8;
const CODING = { WHOLE: 0, ROWS: 1, MARKS: 2 };

const orNull = (value) => (Number.isNaN(value) ? null : value);

/** Header of a frame; throws on anything that is not one. */
export function readHeader(buffer) {
  const view = new DataView(buffer);
  if (buffer.byteLength < HEADER_BYTES || view.getUint8(0) !== 0x47 || view.getUint8(1) !== 0x46) {
    throw new Error("not a fleet frame");
  }
  if (view.getUint8(2) !== VERSION) throw new Error(`fleet frame of version ${view.getUint8(2)}`);
  return {
    conditions: view.getUint8(4),
    blocks: view.getUint8(5),
    sequence: view.getUint32(8, true),
    layout: view.getUint32(12, true),
    time: view.getFloat64(16, true),
    rows: view.getUint32(24, true),
    figures: {
      total: view.getUint32(28, true),
      used: view.getUint32(32, true),
      free: view.getUint32(36, true),
      unhealthy: view.getUint32(40, true),
      allocated: orNull(view.getFloat32(44, true)),
      utilisation: orNull(view.getFloat32(48, true)),
    },
  };
}

/** Columns of which nothing is known yet. `asOf`: column → sequence of the last frame that had it. */
export function noColumns(rows) {
  const columns = { asOf: {} };
  for (const name of COLUMNS) {
    columns[name] = new Uint8Array(rows).fill(name === "core" || name === "memory" || name === "flags" ? 0 : UNKNOWN);
    columns.asOf[name] = -1;
  }
  return columns;
}

/** Write a frame into the columns. False where it holds against one that was missed: what could be applied is. */
export function applyFrame(buffer, header, columns) {
  const view = new DataView(buffer);
  let at = HEADER_BYTES;
  let complete = true;
  for (let block = 0; block < header.blocks; block++) {
    const name = COLUMNS[view.getUint8(at)];
    const coding = view.getUint8(at + 1);
    const count = view.getUint32(at + 4, true);
    const start = at + BLOCK_BYTES;
    const places = coding === CODING.ROWS ? 4 * count : coding === CODING.MARKS ? (header.rows + 7) >> 3 : 0;
    at = (start + places + count + 3) & ~3;
    if (!name) continue; // a column of a later server
    if (coding !== CODING.WHOLE && columns.asOf[name] !== header.sequence - 1) {
      complete = false;
      continue;
    }
    const column = columns[name];
    const values = new Uint8Array(buffer, start + places, count);
    if (coding === CODING.WHOLE) column.set(values);
    else if (coding === CODING.ROWS) {
      const rows = new Uint32Array(buffer, start, count);
      for (let i = 0; i < count; i++) column[rows[i]] = values[i];
    } else applyMarks(new Uint8Array(buffer, start, places), values, column);
    columns.asOf[name] = header.sequence;
  }
  return complete;
}

function applyMarks(marks, values, column) {
  let next = 0;
  for (let byte = 0; byte < marks.length; byte++) {
    for (let bits = marks[byte], row = 8 * byte; bits; bits >>= 1, row++) if (bits & 1) column[row] = values[next++];
  }
}

/** The layout message as flat rows: what each entry of the columns is. */
export function readLayout(message) {
  const nodes = [];
  const devices = [];
  for (const [name, rack, pool, mode, list] of message.nodes) {
    const node = {
      name,
      rack: message.racks[rack] ?? "",
      pool: message.pools[pool] ?? "",
      mode,
      first: devices.length,
      count: list.length,
    };
    nodes.push(node);
    for (const [id, minor, type, model, memoryMiB, island] of list) {
      devices.push({
        id,
        minor,
        type: message.types[type],
        model: message.models[model] ?? "",
        memoryMiB,
        island,
        node,
      });
    }
  }
  return { version: message.version, types: message.types, models: message.models, nodes, devices };
}
