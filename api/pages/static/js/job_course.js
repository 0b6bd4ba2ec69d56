// How the search of a plan goes: the best plan so far beside the proven bound. What happens while the page is open is
// added to the curve and to its table.
import { chart } from "./charts.js";

const part = document.querySelector("[data-course]");
const place = part.querySelector("[data-course-chart]");
const body = part.querySelector("[data-course-table] tbody");
const sentence = part.querySelector("[data-course-sentence]");
const { figure, unit, limit } = part.dataset;
const stages = JSON.parse(part.dataset.stages);
const factor = Number(part.dataset.factor);
const points = JSON.parse(part.dataset.points);
const running = part.dataset.running === "yes";

function option(colours) {
  // A figure is kept until the next is told; the last one until the end. Another number of slots begins a new line.
  const best = [], bound = [];
  points.forEach((point, at) => {
    const before = points[at - 1];
    if (before && before.slots_per_gpu !== point.slots_per_gpu) {
      best.push([point.elapsed_s, null]);
      bound.push([point.elapsed_s, null]);
    }
    best.push([point.elapsed_s, scaled(point.best)]);
    bound.push([point.elapsed_s, scaled(point.bound)]);
  });
  return {
    legend: { data: ["best plan so far", "proven bound"], itemStyle: { opacity: 0 } },
    tooltip: { trigger: "axis", axisPointer: { type: "line" }, formatter: (shown) => told(at(shown[0].axisValue)) },
    xAxis: { type: "value", min: 0, name: "seconds", nameLocation: "middle", nameGap: 26 },
    yAxis: { type: "value", name: unit, nameTextStyle: { align: "left", color: colours.soft }, min: ({ min, max }) => rounded(min - room(min, max), Math.floor), max: ({ min, max }) => rounded(max + room(min, max), Math.ceil), axisLabel: { color: colours.soft, formatter: (value) => Number(value.toPrecision(6)).toString() } },
    series: [
      {
        name: "best plan so far", type: "line", step: "end", symbol: "circle", symbolSize: 6, showSymbol: points.length < 40,
        itemStyle: { color: colours.ours }, lineStyle: { width: 2 }, data: best,
      },
      {
        name: "proven bound", type: "line", step: "end", symbol: "none",
        itemStyle: { color: colours.bound }, lineStyle: { type: "dashed", width: 1.5 }, data: bound,
      },
    ],
  };
}

const room = (min, max) => (max - min || Math.abs(max) * 0.02 || 1) / 12;
const rounded = (value, to) => {
  const step = 10 ** Math.floor(Math.log10(Math.abs(value) || 1) - 2);
  return to(value / step) * step;
};
const scaled = (value) => (value == null ? null : factor * value);
const shown = (value) => (value == null ? "–" : `${scaled(value).toFixed(figure.startsWith("local") ? 2 : 4)}\u202f${unit}`);

/** The point that holds at a time: the last one told by then. */
function at(elapsed) {
  return points.findLast((point) => point.elapsed_s <= elapsed + 1e-9) ?? points[0];
}

function told(point) {
  const slots = `${point.slots_per_gpu} slots per GPU`;
  return [`${point.elapsed_s.toFixed(2)} s, ${slots}`, `${figure} ${shown(point.best)}`, `proven bound ${shown(point.bound)}`].join("\n");
}

function addRow(point, stage) {
  const line = body.insertRow();
  const imbalance = figure === "imbalance" ? [] : [point.imbalance?.toFixed(4) ?? "–"];
  const cells = [point.elapsed_s.toFixed(2), shown(point.best), shown(point.bound), ...imbalance, point.slots_per_gpu, stage];
  cells.forEach((value, at) => {
    const cell = document.createElement(at === 0 ? "th" : "td");
    if (at === 0) cell.scope = "row";
    else if (at < cells.length - 1) cell.className = "number";
    cell.textContent = value;
    line.append(cell);
  });
}

chart(place, option);
if (running) {
  document.addEventListener("moeplan:search", ({ detail: point }) => {
    if (points.length && point.number <= points.at(-1).number) return; // events before the page was loaded come again
    points.push(point);
    addRow(point, stages[point.stage] ?? point.stage);
    const proven = point.bound == null ? "nothing is proven" : `proven: ${limit} ${shown(point.bound)}`;
    sentence.textContent = point.best == null ? `No plan keeps the cap on imbalance yet; ${proven}.` : `${figure} ${shown(point.best)}; ${proven}.`;
    place.redraw();
  });
}
