// The scaling page: how long nodes took to be made, a line for each pool. The parts that move bring the values.
import { Chart } from "./charts.js";

const element = document.querySelector('[data-chart="provision"]');
let chart = null;
let drawn = "";

function draw() {
  const text = document.getElementById("provision-times")?.dataset.values ?? "";
  if (!element || !text || text === drawn) return;
  const { times, pools } = JSON.parse(text);
  const names = Object.keys(pools);
  if (names.length === 0) return;
  drawn = text;
  const card = document.getElementById("provision");
  card.querySelector(".charts").hidden = false;
  card.querySelector(".empty-note")?.remove();
  if (names.join("/") !== chart?.lines.map(({ label }) => label).join("/")) {
    chart?.remove();
    element.replaceChildren();
    chart = new Chart(element, {
      title: "Provision time",
      write: (value) => `${Math.round(value)} s`,
      low: 0,
      sparse: true,
      lines: names.map((label) => ({ label })),
    });
  }
  // a first node alone has room on both sides
  const span = times.length > 1 ? [times[0], times.at(-1)] : [times[0] - 60, times[0] + 60];
  chart.set(
    times,
    names.map((name) => pools[name]),
    span,
  );
}

draw();
document.body.addEventListener("htmx:afterSettle", draw);
