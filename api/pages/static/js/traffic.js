// The traffic page: GPU x GPU, and a Sankey between nodes where there are several.
import { getJson, showProblem } from "./api.js";
import { overRowMean } from "./frames.js";
import { Matrix } from "./matrix.js";
import { count, percent, times } from "./tables.js";
import { tip } from "./tip.js";

const root = document.querySelector("[data-traffic]");
const { trace, plan, layout, phase } = root.dataset;

try {
  const told = new URLSearchParams(Object.entries({ plan_id: plan, layout, phase }).filter(([, value]) => value));
  const found = await getJson(`/v1/traces/${trace}/traffic?${told}`);
  drawMatrix(found);
  const sankey = root.querySelector("[data-sankey]");
  if (sankey) await drawSankey(sankey, found);
} catch (error) {
  showProblem(root.querySelector("[data-problem]"), error);
}
root.querySelector("[data-loading]").hidden = true;

function drawMatrix({ gpus, tokens }) {
  const values = tokens.flat();
  const relative = overRowMean(values, gpus, gpus);
  const total = values.reduce((all, each) => all + each, 0);
  const separators = [];
  const perNode = Number(root.dataset.gpusPerNode);
  for (let gpu = perNode; gpu < gpus; gpu += perNode) separators.push(gpu);
  const place = document.querySelector("#traffic");
  place.querySelector(".y-title").textContent = "home GPU";
  const map = new Matrix(place, { rows: gpus, columns: gpus, scale: "heat", limits: JSON.parse(root.dataset.limits), separators });
  map.draw(relative);
  place.addEventListener("moeplan:hover", ({ detail }) => {
    const at = detail.row * gpus + detail.column;
    const whereto = detail.row === detail.column ? `GPU ${detail.row} to itself` : `GPU ${detail.row} to GPU ${detail.column}`;
    const text = `${whereto}\n${count(values[at])} routed tokens, ${percent(values[at] / total, 2)} of all\n${times(relative[at])} an even share of the row`;
    tip.show(text, detail);
    if (detail.aloud) document.querySelector("#traffic-said").textContent = text;
  });
  place.addEventListener("moeplan:leave", () => tip.hide());
}

async function drawSankey(place, { tokens_by_node: flows }) {
  const { chart } = await import("./charts.js");
  const names = flows.flatMap((_, node) => [{ name: `node ${node} sends` }, { name: `node ${node} serves` }]);
  const links = flows.flatMap((row, from) =>
    row.map((value, to) => ({ source: `node ${from} sends`, target: `node ${to} serves`, value, stays: from === to })).filter((link) => link.value > 0),
  );
  // Nodes must be as tall as their labels, however many there are.
  place.classList.toggle("tall", flows.length > 4);
  chart(place, (colours) => ({
    tooltip: { trigger: "item", formatter: ({ dataType, data, name, value }) => (dataType === "edge" ? `${data.source}, ${data.target}\n${count(data.value)} routed tokens` : `${name}\n${count(value)} routed tokens`) },
    series: [
      {
        type: "sankey", left: 8, right: 110, top: 8, bottom: 8, nodeGap: 14, nodeWidth: 14, emphasis: { focus: "adjacency" },
        label: { color: colours.ink }, data: names.map((each) => ({ ...each, itemStyle: { color: colours.before } })),
        links: links.map((link) => ({ ...link, lineStyle: { color: link.stays ? colours.ours : colours.target, opacity: 0.45 } })),
      },
    ],
  }));
}
