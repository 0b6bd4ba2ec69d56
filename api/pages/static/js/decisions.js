// Decisions over time, a row for every outcome; a click opens the decision.
import { chart } from "./charts.js";

const place = document.querySelector("[data-decisions]");
const decisions = JSON.parse(place.dataset.decisions);
const ROWS = ["failed", "skipped", "rolled_back", "applied", "proposed", "nothing"]; // from the bottom up

const made = chart(place, (colours) => ({
  grid: { left: 12, right: 24, top: 10, bottom: 26, containLabel: true },
  tooltip: { trigger: "item", formatter: ({ dataIndex }) => wrapped(decisions[dataIndex].sentence) },
  xAxis: { type: "time", axisLabel: { color: colours.soft, hideOverlap: true, formatter: { year: "{yyyy}", month: "{MMM} {d}", day: "{MMM} {d}", hour: "{HH}:{mm}", minute: "{HH}:{mm}" } } },
  yAxis: { type: "category", data: ROWS.map((name) => name.replace("_", " ")), axisLabel: { color: colours.soft }, splitLine: { show: true, lineStyle: { color: colours.rule } } },
  series: [
    {
      type: "scatter", symbolSize: 11, cursor: "pointer",
      data: decisions.map(({ at, outcome }) => ({
        value: [at, ROWS.indexOf(outcome)],
        symbol: outcome === "failed" || outcome === "rolled_back" ? "diamond" : "circle",
        itemStyle: { color: outcome === "failed" || outcome === "rolled_back" ? colours.target : outcome === "applied" || outcome === "proposed" ? colours.ours : colours.before },
      })),
    },
  ],
}));
made.on("click", ({ dataIndex }) => location.assign(`/decisions/${decisions[dataIndex].id}`));

/** Sentences are longer than a box beside the pointer may be. */
function wrapped(text) {
  return text.replace(/(.{1,60})(?:\s|$)/g, "$1\n").trim();
}
