// Reads the stream of /ws/fleet/ (docs/fleet-stream.md). Pure; the server's half is nodes/live/fleet_frames.py.
export const COLUMNS = ["core", "memory", "utilisation", "memoryInUse", "temperature", "power", "flags"];
export const UNKNOWN = 255;
export const POWER_STEP_WATTS = 4;
export const FLAG = { HEALTHY: 1, PRESENT: 2, STRANGER: 4, HELD: 8, NODE_READY: 16 };
export const CONDITION = { DATABASE_DOWN: 1, REDIS_DOWN: 2 };
const HEADER_BYTES = 32;

/** Header of a frame; throws on anything that is not one. */
export function readHeader(buffer) {
  const view = new DataView(buffer);
  if (buffer.byteLength < HEADER_BYTES || view.getUint8(0) !== 0x47 || view.getUint8(1) !== 0x46) {
    throw new Error("not a fleet frame");
  }
  if (view.getUint8(2) !== 1) throw new Error(`fleet frame of version ${view.getUint8(2)}`);
  return {
    delta: view.getUint8(3) === 1,
    conditions: view.getUint8(4),
    sequence: view.getUint32(8, true),
    layout: view.getUint32(12, true),
    time: view.getFloat64(16, true),
    rows: view.getUint32(24, true),
    total: view.getUint32(28, true),
  };
}

/** Columns of a full frame, as views into it. */
export function readFull(buffer, header) {
  const columns = {};
  COLUMNS.forEach((name, index) => {
    columns[name] = new Uint8Array(buffer, HEADER_BYTES + index * header.total, header.total).slice();
  });
  return columns;
}

/** Writes a delta into the columns and returns the rows that changed. */
export function applyDelta(buffer, header, columns) {
  const rows = new Uint32Array(buffer, HEADER_BYTES, header.rows);
  let offset = HEADER_BYTES + header.rows * 4;
  for (const name of COLUMNS) {
    const values = new Uint8Array(buffer, offset, header.rows);
    const column = columns[name];
    for (let i = 0; i < rows.length; i++) column[rows[i]] = values[i];
    offset += header.rows;
  }
  return rows;
}

/** The layout message as flat rows: what each entry of the columns is. */
export function readLayout(message) {
  const nodes = [];
  const devices = [];
  for (const [name, rack, mode, list] of message.nodes) {
    const node = { name, rack: message.racks[rack] ?? "", mode, first: devices.length, count: list.length };
    nodes.push(node);
    for (const [id, minor, type, model, memoryMiB, island] of list) {
      devices.push({ id, minor, type: message.types[type], model: message.models[model] ?? "", memoryMiB, island, node });
    }
  }
  return { version: message.version, types: message.types, models: message.models, nodes, devices };
}
