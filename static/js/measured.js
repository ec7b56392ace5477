/** How long something took, for the browser's tools and any `PerformanceObserver`. `began`: of `performance.now()`. */
export function measured(name, began) {
  performance.measure(name, { start: began });
  performance.clearMeasures(name);
}
