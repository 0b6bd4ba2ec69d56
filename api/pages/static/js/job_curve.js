// A job's progress over time, as a curve; what happens while the page is open is added to it.
import { chart } from "./charts.js";

const place = document.querySelector("[data-job-curve]");
const points = JSON.parse(document.querySelector("[data-events]").dataset.events);

function draw() {
  chart(place, (colours) => ({
    tooltip: { trigger: "axis" },
    xAxis: { type: "time", axisLabel: { color: colours.soft, hideOverlap: true } },
    yAxis: { type: "value", min: 0, max: 100, name: "%" },
    series: [
      { type: "line", step: "end", showSymbol: points.length < 60, itemStyle: { color: colours.ours }, areaStyle: { opacity: 0.12 },
        data: points.map(({ at, progress }) => [at, 100 * progress]) },
    ],
  }));
}

draw();
if (document.querySelector("[data-course-waiting]")) document.addEventListener("moeplan:search", () => location.reload());
document.addEventListener("moeplan:progress", ({ detail }) => {
  const last = points.at(-1);
  if (last && Date.parse(last.at) >= Date.parse(detail.at)) return; // events before the page was loaded come again
  points.push({ at: detail.at, progress: detail.progress });
  draw();
});
