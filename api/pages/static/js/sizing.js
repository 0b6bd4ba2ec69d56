// The sizing curve: what slots can buy in locality, and what they leave of the key-value cache. Asked for by hand,
// because the service does not know which model a recording's numbers belong to, nor the GPU's memory.
import { getJson, showProblem } from "./api.js";
import { count, percent, table } from "./tables.js";

const root = document.querySelector("[data-sizing]");
const form = root.querySelector("[data-sizing-form]");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const told = new URLSearchParams(new FormData(form));
  const address = new URLSearchParams(location.search);
  for (const [name, value] of told) address.set(name, value);
  history.replaceState(null, "", `?${address}#sizing-title`);
  await draw(told);
});

const asked = new URLSearchParams(location.search);
if (asked.has("model") && asked.has("gpu_memory_gib")) {
  form.elements.model.value = asked.get("model");
  form.elements.gpu_memory_gib.value = asked.get("gpu_memory_gib");
  await draw(new URLSearchParams(new FormData(form)));
}

async function draw(told) {
  const problem = root.querySelector("[data-sizing-problem]");
  showProblem(problem, null);
  try {
    const { rows } = await getJson(`/v1/plans/${root.dataset.plan}/sizes?${told}`);
    root.querySelector("[data-sizing-shown]").hidden = false;
    const { chart } = await import("./charts.js");
    chart(root.querySelector("[data-sizing-chart]"), (colours) => option(rows, colours));
    root.querySelector("[data-sizing-table]").replaceChildren(
      table(
        "Slots per GPU",
        ["slots per GPU", "local_gpu, proven bound", "bytes of experts per GPU", "key-value cache, tokens of all GPUs", "fits"],
        rows.map((row) => [
          row.slots_per_gpu === Number(root.dataset.slots) ? `${row.slots_per_gpu} (this plan)` : String(row.slots_per_gpu),
          percent(row.local_gpu_bound), row.expert_bytes, row.fits ? row.cache_tokens : "–", row.fits ? "yes" : "no",
        ]),
      ),
    );
  } catch (error) {
    showProblem(problem, error);
  }
}

function option(rows, colours) {
  const target = Number(root.dataset.target);
  return {
    legend: { data: ["local_gpu, proven bound", "key-value cache"] },
    tooltip: {
      trigger: "axis",
      formatter: (points) => {
        const row = rows[points[0].dataIndex];
        const cache = row.fits ? `${count(row.cache_tokens)} tokens of cache` : "does not fit";
        return `${row.slots_per_gpu} slots per GPU\nlocal_gpu at most ${percent(row.local_gpu_bound)}\n${cache}`;
      },
    },
    xAxis: { type: "category", name: "slots per GPU", nameLocation: "middle", nameGap: 28, data: rows.map((row) => String(row.slots_per_gpu)) },
    yAxis: [
      { type: "value", name: "local_gpu, %", min: 0, max: 100 },
      { type: "value", name: "tokens of cache", position: "right", splitLine: { show: false }, axisLabel: { color: colours.soft, formatter: (value) => `${value / 1e6} M` } },
    ],
    series: [
      {
        name: "local_gpu, proven bound", type: "line", itemStyle: { color: colours.ours }, data: rows.map((row) => row.local_gpu_bound == null ? null : 100 * row.local_gpu_bound),
        markLine: {
          symbol: "none", label: { color: colours.soft, formatter: ({ name }) => name, position: "insideEndTop" }, data: [
            { name: "target", yAxis: 100 * target, lineStyle: { color: colours.target, type: "solid" } },
            { name: "this plan", xAxis: String(root.dataset.slots), lineStyle: { color: colours.bound } },
          ],
        },
      },
      { name: "key-value cache", type: "line", yAxisIndex: 1, symbol: "rect", lineStyle: { type: "dashed" }, itemStyle: { color: colours.target }, data: rows.map((row) => (row.fits ? row.cache_tokens : null)) },
    ],
  };
}
