// One expert: its trend over windows, who serves it, who sends to it.
import { getJson } from "./api.js";
import { chart } from "./charts.js";
import { count, csvOf, percent, table, times } from "./tables.js";

export async function showExpert(panel, { trace, plan, phase, layer, expert }) {
  const told = new URLSearchParams(Object.entries({ plan_id: plan, phase }).filter(([, value]) => value));
  const found = await getJson(`/v1/traces/${trace}/experts/${layer}/${expert}?${told}`);
  panel.hidden = false;
  const total = sum(found.tokens_by_window);
  const even = sum(found.uniform_by_window);
  panel.querySelector("h2").textContent =
    `Layer ${layer}, expert ${expert}: ${count(total)} routed tokens, ${times(even ? total / even : 0)} uniform`;
  drawTrend(panel.querySelector("[data-expert-trend]"), found);
  const twin = table(
    "Routed tokens by window",
    ["window", "routed tokens", "times uniform"],
    found.windows.map((name, at) => {
      const uniform = found.uniform_by_window[at];
      return [name, found.tokens_by_window[at], uniform ? times(found.tokens_by_window[at] / uniform) : "–"];
    }),
  );
  panel.querySelector("[data-expert-windows]").replaceChildren(twin, csvOf(twin, `layer-${layer}-expert-${expert}`));
  panel.querySelector("[data-expert-replicas]").replaceChildren(replicas(found, total));
  panel.querySelector("[data-expert-sources]").replaceChildren(senders(found, total));
}

function drawTrend(place, found) {
  chart(place, (colours) => ({
    legend: { data: ["routed tokens", "uniform share"] },
    tooltip: { trigger: "axis" },
    xAxis: { type: "category", data: found.windows, axisLabel: { hideOverlap: true, color: colours.soft, width: 90, overflow: "truncate" } },
    yAxis: { type: "value", axisLabel: { color: colours.soft, formatter: short } },
    series: [
      { name: "routed tokens", type: found.windows.length > 1 ? "line" : "bar", data: found.tokens_by_window, showSymbol: found.windows.length < 40, itemStyle: { color: colours.ours }, barMaxWidth: 60 },
      { name: "uniform share", type: found.windows.length > 1 ? "line" : "bar", data: found.uniform_by_window, symbol: "none", lineStyle: { type: "dashed", color: colours.target }, itemStyle: { color: colours.target }, barMaxWidth: 60 },
    ],
  }));
}

function replicas(found, total) {
  if (!found.plan) return paragraph("Choose a plan above to see the expert's replicas.");
  const rows = [];
  const gpus = new Set([...found.before, ...found.plan].map((each) => each.gpu));
  const share = (list, gpu) => {
    const each = list.find((one) => one.gpu === gpu);
    return each ? percent(total ? each.tokens / total : 0) : "–";
  };
  for (const gpu of [...gpus].sort((a, b) => a - b)) rows.push([`GPU ${gpu}`, share(found.before, gpu), share(found.plan, gpu)]);
  const title = `${found.before.length} replica${found.before.length === 1 ? "" : "s"} before, ${found.plan.length} under the plan`;
  return table(`${title}; share of its tokens that each serves`, ["GPU", "before", "plan"], rows);
}

function senders(found, total) {
  if (!found.tokens_by_source) return paragraph("Home GPUs were not recorded, or on another number of GPUs: tokens are taken as spread evenly over all.");
  const rows = found.tokens_by_source.map((tokens, gpu) => [`GPU ${gpu}`, tokens, percent(total ? tokens / total : 0)]);
  return table("Routed tokens by home GPU", ["home GPU", "routed tokens", "share"], rows);
}

function paragraph(text) {
  const made = document.createElement("p");
  made.className = "note";
  made.textContent = text;
  return made;
}

const sum = (values) => values.reduce((all, each) => all + each, 0);

export function short(value) {
  return Math.abs(value) >= 1e9 ? `${value / 1e9} G` : Math.abs(value) >= 1e6 ? `${value / 1e6} M` : Math.abs(value) >= 1e3 ? `${value / 1e3} k` : `${value}`;
}
