// Series over time, by uPlot (a classic script, loaded before). Lines differ by colour and by dashes, in the legend
// too.
const LINES = ["#0072b2", "#d55e00", "#009e73", "#b3589a"];
const DARK_LINES = ["#56b4e9", "#f0a050", "#3fc79a", "#e29ac8"];
const DASHES = [undefined, [8, 3], [3, 3], [10, 3, 2, 3], [2, 5], [6, 6], [12, 4, 4, 4], [1, 3]];
const LARGEST = [4, 3];
const HEIGHT = 168;
const GAP_SECONDS = 3.5;

/** Steps for axes of bytes: powers of two, so that ticks are whole GiB. */
const BINARY_STEPS = Array.from({ length: 46 }, (_, power) => 2 ** power);

const two = (value) => String(value).padStart(2, "0");

/** Times of an axis, 24 hours to the day; the first of a day has the date below. */
function times(_, splits, __, ___, step) {
  let day = "";
  return splits.map((split) => {
    const at = new Date(split * 1000);
    const date = `${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    if (step >= 86_400) return date;
    const time = `${two(at.getHours())}:${two(at.getMinutes())}${step < 60 ? `:${two(at.getSeconds())}` : ""}`;
    const text = date === day ? time : `${time}\n${date}`;
    day = date;
    return text;
  });
}

/** Indices of points that no line reaches, so that one measurement between two gaps is seen. */
function alone(plot, line) {
  const values = plot.data[line];
  return values.flatMap((value, at) =>
    value !== null && (values[at - 1] ?? null) === null && (values[at + 1] ?? null) === null ? [at] : [],
  );
}

export class Chart {
  /**
   * `write(value)`: text of a value; `low`, `high`: ends of the scale, null: by the data; `lines`: [{label, dashed}];
   * `sparse`: a line has values at few of the times, each a point, and goes on over the others.
   */
  constructor(element, { title, write, low = null, high = null, binary = false, sparse = false, lines }) {
    Object.assign(this, { element, title, write, low, high, binary, sparse, lines });
    this.data = [[], ...lines.map(() => [])];
    this.plot = null;
    this.span = null;
    this.zoomed = null;
    this.resizes = new ResizeObserver(() => this.resize());
    this.resizes.observe(element);
    this.themed = () => this.build();
    document.addEventListener("gpuplane:theme", this.themed);
    this.build();
  }

  /** Takes the chart away: another may have its element. */
  remove() {
    this.resizes.disconnect();
    document.removeEventListener("gpuplane:theme", this.themed);
    this.plot.destroy();
  }

  build() {
    this.plot?.destroy();
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    const colours = document.documentElement.dataset.bsTheme === "dark" ? DARK_LINES : LINES;
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const axis = {
      stroke: read("--gp-ink-2"),
      font,
      ticks: { stroke: read("--gp-line"), width: 1 },
      grid: { stroke: read("--gp-line"), width: 1 },
    };
    this.plot = new uPlot(
      {
        width: Math.max(120, this.element.clientWidth),
        height: HEIGHT,
        hooks: { setSelect: [(plot) => this.zoom(plot)] },
        cursor: {
          sync: { key: "gpuplane" },
          points: { size: 5 },
          drag: { x: true, y: false, setScale: false },
          bind: { dblclick: () => () => this.unzoom() },
        },
        legend: {
          live: true,
          markers: { dash: (_, line) => (line > 0 && this.dashOf(line - 1) ? "dashed" : "solid") },
        },
        scales: {
          x: { time: true, range: (_, least, most) => this.zoomed ?? this.span ?? [least, most] },
          y: { range: (_, least, most) => this.range(least, most) },
        },
        axes: [
          { ...axis, values: times, space: 66 },
          {
            ...axis,
            size: 74,
            values: (_, values) => values.map((value) => this.write(value)),
            ...(this.binary ? { incrs: BINARY_STEPS } : {}),
          },
        ],
        series: [
          { value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" },
          ...this.lines.map(({ label, dashed }, at) => ({
            label,
            stroke: colours[at % colours.length],
            width: dashed ? 1 : 1.5,
            dash: this.dashOf(at),
            spanGaps: this.sparse,
            points: this.sparse ? { size: 7, show: true } : { size: 4, filter: alone },
            value: (_, value) => (value === null || value === undefined ? "–" : this.write(value)),
          })),
        ],
      },
      this.data,
      this.element,
    );
    this.describe();
  }

  /** Dashes of a line, so that lines differ without their colours. */
  dashOf(at) {
    if (this.lines[at].dashed) return LARGEST;
    return this.lines.length > 1 ? DASHES[at % DASHES.length] : undefined;
  }

  /** What was drawn with the mouse is shown until a double click, or other data. */
  zoom(plot) {
    if (plot.select.width < 4) return;
    this.zoomed = [plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")];
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    plot.setData(this.data);
    this.describe();
  }

  unzoom() {
    this.zoomed = null;
    this.plot.setData(this.data);
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

  /**
   * Everything anew: times in seconds since 1970, one list of values a line; `span`: [first, last] time to show, null:
   * those of the values.
   */
  set(times, values, span = null) {
    this.span = span;
    this.zoomed = null;
    // a chart's own: points are added to it and taken away
    this.data = [[...times], ...values.map((line) => [...line])];
    this.plot.setData(this.data);
    this.describe();
  }

  /** One more point, and away with those older than `seconds`. */
  add(time, values, seconds) {
    const last = this.data[0].at(-1);
    if (last !== undefined && time <= last) return;
    if (time - last > GAP_SECONDS) {
      this.data[0].push(last + 1); // nothing was said meanwhile: no line goes over it
      for (const column of this.data.slice(1)) column.push(null);
    }
    this.data[0].push(time);
    for (const [at, value] of values.entries()) this.data[at + 1].push(value ?? null);
    while (this.data[0].length && this.data[0][0] < time - seconds) for (const column of this.data) column.shift();
    this.plot.setData(this.data);
    this.describe();
  }

  /** The chart in words, for those who do not see it. */
  describe() {
    const last = this.lines.map(({ label }, at) => {
      const value = this.data[at + 1].at(-1);
      return `${label} ${value === null || value === undefined ? "unknown" : this.write(value)}`;
    });
    const [from, to] = this.zoomed ?? this.span ?? [this.data[0][0] ?? 0, this.data[0].at(-1) ?? 0];
    Object.assign(this.element.dataset, { points: this.data[0].length, seconds: Math.round(to - from) });
    this.element.setAttribute("role", "img");
    this.element.setAttribute("aria-label", `${this.title}: ${last.join(", ")}`);
  }
}
