// Colours of the heatmap: one path through OKLCH with steadily moving lightness, so that order survives
// every kind of colour blindness and a grey print. More is darker on a light page, brighter on a dark one.
// The states of health differ in lightness, too, the worse the further from the page.

/** OKLCH (lightness 0..1, chroma, hue in degrees) to [r, g, b] in 0..255. */
function oklch(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((x) => {
    const v = x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055;
    return Math.round(Math.min(1, Math.max(0, v)) * 255);
  });
}

const mix = (from, to, t) => from + (to - from) * t;

/** [r, g, b] for t in 0..1. */
function colourAt(t, dark) {
  if (t === 0) return dark ? oklch(0.3, 0.02, 260) : oklch(0.95, 0.008, 240); // nothing looks like nothing
  if (dark) {
    // deep violet through teal to a bright yellow
    return oklch(mix(0.36, 0.9, t), 0.1 + 0.05 * Math.sin(Math.PI * t) + 0.04 * t, mix(292, 104, t ** 0.85));
  }
  // pale green through teal to deep violet
  return oklch(mix(0.92, 0.38, t), 0.07 + 0.05 * Math.sin(Math.PI * t) + 0.06 * t, mix(128, 292, t ** 0.9));
}

// well, taken outside, node not ready, unhealthy, vanished
const STATES_LIGHT = [
  [0.9, 0.05, 170],
  [0.79, 0.07, 290],
  [0.69, 0.14, 70],
  [0.54, 0.19, 20],
  [0.34, 0.02, 260],
];
const STATES_DARK = [
  [0.4, 0.06, 175],
  [0.52, 0.07, 290],
  [0.65, 0.13, 70],
  [0.77, 0.13, 18],
  [0.93, 0.02, 260],
];

/** Whether white has more contrast on a colour than black: by WCAG's relative luminance. */
function isDark(colour) {
  const [r, g, b] = colour.map((part) => {
    const value = part / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05;
}
const inked = (colours) => ({
  rgb: colours,
  css: colours.map(([r, g, b]) => `rgb(${r} ${g} ${b})`),
  lightInk: colours.map(isDark),
});

/** 256 colours ([r, g, b] and CSS), and whether ink on each should be light. */
export const palette = (dark) => inked(Array.from({ length: 256 }, (_, i) => colourAt(i / 255, dark)));

/** The same for the states of health, in the order of `MEASURES.health.states`. */
export const statePalette = (dark) => inked((dark ? STATES_DARK : STATES_LIGHT).map((place) => oklch(...place)));
