// Series over time, by uPlot (a classic script, loaded before). Lines differ by colour and, from the fifth on, by dashes too.
/* global uPlot */
const LINES = ["#0072b2", "#d55e00", "#009e73", "#b3589a", "#0072b2", "#d55e00", "#009e73", "#b3589a"];
const DARK_LINES = ["#56b4e9", "#f0a050", "#3fc79a", "#e29ac8", "#56b4e9", "#f0a050", "#3fc79a", "#e29ac8"];
const DASH = [5, 4];
const HEIGHT = 168;

/** Steps for axes of bytes: powers of two, so that ticks are whole GiB. */
const BINARY_STEPS = Array.from({ length: 46 }, (_, power) => 2 ** power);

export class Chart {
  /** `write(value)`: text of a value; `low`, `high`: ends of the scale, null: by the data; `lines`: [{label, dashed}]. */
  constructor(element, { title, write, low = null, high = null, binary = false, lines }) {
    Object.assign(this, { element, title, write, low, high, binary, lines });
    this.data = [[], ...lines.map(() => [])];
    this.plot = null;
    new ResizeObserver(() => this.resize()).observe(element);
    document.addEventListener("gpuplane:theme", () => this.build());
    this.build();
  }

  build() {
    this.plot?.destroy();
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    const colours = document.documentElement.dataset.bsTheme === "dark" ? DARK_LINES : LINES;
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: read("--gp-ink-2"), font, ticks: { stroke: read("--gp-line"), width: 1 }, grid: { stroke: read("--gp-line"), width: 1 } };
    this.plot = new uPlot(
      {
        width: Math.max(120, this.element.clientWidth),
        height: HEIGHT,
        cursor: { sync: { key: "gpuplane" }, points: { size: 5 }, drag: { x: true, y: false } },
        legend: { live: true },
        scales: { x: { time: true }, y: { range: (_, least, most) => this.range(least, most) } },
        axes: [axis, { ...axis, size: 74, values: (_, values) => values.map((value) => this.write(value)), ...(this.binary ? { incrs: BINARY_STEPS } : {}) }],
        series: [
          { value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" },
          ...this.lines.map(({ label, dashed }, at) => ({
            label,
            stroke: colours[at % colours.length],
            width: dashed ? 1 : 1.5,
            dash: dashed || at > 3 ? DASH : undefined,
            spanGaps: false,
            points: { show: false },
            value: (_, value) => (value === null || value === undefined ? "–" : this.write(value)),
          })),
        ],
      },
      this.data,
      this.element,
    );
    this.describe();
  }

  range(least, most) {
    const low = this.low ?? least ?? 0;
    const high = this.high ?? (most === null || most === undefined ? low + 1 : most + (most - low) * 0.08);
    return [low, high > low ? high : low + 1];
  }

  resize() {
    const width = this.element.clientWidth;
    if (width && this.plot && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }

  /** Everything anew: times in seconds since 1970, one list of values a line. */
  set(times, values) {
    this.data = [times, ...values];
    this.plot.setData(this.data);
    this.describe();
  }

  /** One more point, and away with those older than `seconds`. */
  add(time, values, seconds) {
    if (this.data[0].length && time <= this.data[0].at(-1)) return;
    this.data[0].push(time);
    values.forEach((value, at) => this.data[at + 1].push(value ?? null));
    while (this.data[0].length && this.data[0][0] < time - seconds) for (const column of this.data) column.shift();
    this.plot.setData(this.data);
    this.describe();
  }

  /** What somebody who does not see the picture is told. */
  describe() {
    const last = this.lines.map(({ label }, at) => {
      const value = this.data[at + 1].at(-1);
      return `${label} ${value === null || value === undefined ? "unknown" : this.write(value)}`;
    });
    this.element.setAttribute("role", "img");
    this.element.setAttribute("aria-label", `${this.title}: ${last.join(", ")}`);
  }
}
