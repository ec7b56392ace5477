// What is measured, its unit, and how a value is written.
const BINARY = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Bytes for people. */
export function bytes(value) {
  let unit = 0;
  let amount = value;
  while (Math.abs(amount) >= 1024 && unit < BINARY.length - 1) {
    amount /= 1024;
    unit += 1;
  }
  return `${amount >= 100 || Number.isInteger(amount) ? Math.round(amount) : amount.toFixed(1)} ${BINARY[unit]}`;
}

const number = (unit) => (value) =>
  `${value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toFixed(1)} ${unit}`;

export const MEASURES = {
  utilisation_percent: { title: "Utilisation", write: number("%"), low: 0, high: 100 },
  memory_used_bytes: { title: "Memory in use", write: bytes, low: 0, binary: true },
  power_watts: { title: "Power", write: number("W"), low: 0 },
  temperature_celsius: { title: "Temperature", write: number("°C"), low: 0 },
  sm_clock_mhz: { title: "SM clock", write: number("MHz"), low: 0 },
  memory_clock_mhz: { title: "Memory clock", write: number("MHz"), low: 0 },
  nvlink_tx_bytes: { title: "NVLink sent", write: (value) => `${bytes(value)}/s`, low: 0, binary: true },
  nvlink_rx_bytes: { title: "NVLink received", write: (value) => `${bytes(value)}/s`, low: 0, binary: true },
  nvlinks_down: { title: "NVLinks down", write: String, low: 0 },
  nvlink_errors: { title: "NVLink errors", write: String, low: 0 },
  ecc_corrected: { title: "ECC corrected", write: String, low: 0 },
  ecc_uncorrected: { title: "ECC uncorrected", write: String, low: 0 },
  pcie_tx_bytes: { title: "PCIe sent", write: (value) => `${bytes(value)}/s`, low: 0, binary: true },
  pcie_rx_bytes: { title: "PCIe received", write: (value) => `${bytes(value)}/s`, low: 0, binary: true },
};

/** A value as text, a dash where it is unknown. */
export const written = (name, value) => (value === null || value === undefined ? "–" : MEASURES[name].write(value));
