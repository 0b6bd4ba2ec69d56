// The sizing curve: what slots buy in locality (plans made for them, and the proven bound), and what they leave of the
// key-value cache. The cache is asked for by hand, because the service does not know which model a recording's numbers
// belong to, nor the GPU's memory.
import { getJson, showProblem } from "./api.js";
import { bytes, count, csvOf, percent, table } from "./tables.js";

const root = document.querySelector("[data-sizing]");
const form = root.querySelector("[data-sizing-form]");
const planned = root.dataset.planned === "yes";

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const told = new URLSearchParams(new FormData(form));
  const address = new URLSearchParams(location.search);
  for (const [name, value] of told) address.set(name, value);
  history.replaceState(null, "", `?${address}#sizing-title`);
  await draw(told);
});

const asked = new URLSearchParams(location.search);
if (asked.get("model") && asked.get("gpu_memory_gib")) {
  form.elements.model.value = asked.get("model");
  form.elements.gpu_memory_gib.value = asked.get("gpu_memory_gib");
  await draw(new URLSearchParams(new FormData(form)));
} else if (planned) {
  await draw(new URLSearchParams());
}

async function draw(told) {
  const problem = root.querySelector("[data-sizing-problem]");
  showProblem(problem, null);
  root.querySelector("[data-sizing-loading]").hidden = false;
  try {
    const sizes = await getJson(`/v1/plans/${root.dataset.plan}/sizes?${told}`);
    root.querySelector("[data-sizing-shown]").hidden = false;
    root.querySelector("[data-sizing-json]").href = `/v1/plans/${root.dataset.plan}/sizes?${told}`;
    const { chart } = await import("./charts.js");
    chart(root.querySelector("[data-sizing-chart]"), (colours) => option(sizes, colours));
    const place = root.querySelector("[data-sizing-table]");
    const twin = tableOf(sizes);
    place.replaceChildren(twin, csvOf(twin, `sizes-${root.dataset.plan}`));
  } catch (error) {
    showProblem(problem, error);
  } finally {
    root.querySelector("[data-sizing-loading]").hidden = true;
  }
}

function ratio(value) {
  return value == null ? "–" : value.toFixed(3);
}

function tableOf({ plan, model, rows }) {
  const columns = ["slots per GPU", "local_gpu, best found", "local_gpu, proven bound", "imbalance"];
  if (model) columns.push("experts per GPU", "cache, tokens of all GPUs", "fits");
  return table(
    "Slots per GPU",
    columns,
    rows.map((row) => {
      const own = row.slots_per_gpu === plan.slots_per_gpu;
      const found = own ? plan : row;
      return [
        own ? `${row.slots_per_gpu} (this plan)` : String(row.slots_per_gpu),
        percent(found.local_gpu), percent(row.local_gpu_bound), ratio(found.imbalance),
        ...(model ? [bytes(row.expert_bytes), row.fits ? row.cache_tokens : "–", row.fits ? "yes" : "no"] : []),
      ];
    }),
  );
}

function option({ plan, model, rows }, colours) {
  const target = Number(root.dataset.target);
  const share = (value) => (value == null ? null : 100 * value);
  const slots = rows.map((row) => row.slots_per_gpu);
  const some = rows.some((row) => row.local_gpu != null);
  const cacheName = "key-value cache";
  const series = [
    {
      name: "local_gpu, proven bound", type: "line", symbol: "none", lineStyle: { type: "dashed", width: 1.5 }, itemStyle: { color: colours.bound },
      data: rows.map((row) => [row.slots_per_gpu, share(row.local_gpu_bound)]),
      markLine: {
        symbol: "none", silent: true, label: { color: colours.soft, formatter: ({ name }) => name, position: "insideStartTop" },
        data: [{ name: `target ${share(target).toFixed(0)} %`, yAxis: share(target), lineStyle: { color: colours.target, type: "solid" } }],
      },
    },
    {
      name: "this plan", type: "scatter", symbol: "diamond", symbolSize: 15, itemStyle: { color: colours.target }, z: 5,
      data: [[plan.slots_per_gpu, share(plan.local_gpu)]],
    },
  ];
  if (some) {
    series.unshift({
      name: "local_gpu, best found", type: "line", symbol: "circle", symbolSize: 7, lineStyle: { width: 2 }, itemStyle: { color: colours.ours },
      data: rows.map((row) => [row.slots_per_gpu, share(row.local_gpu)]),
    });
  }
  if (model) {
    series.push({
      name: cacheName, type: "line", yAxisIndex: 1, symbol: "none", areaStyle: { opacity: 0.15 }, itemStyle: { color: colours.before },
      data: rows.map((row) => [row.slots_per_gpu, row.fits ? row.cache_tokens : 0]),
    });
  }
  const axes = [{ type: "value", name: "local_gpu, %", min: 0, max: 100, nameTextStyle: { align: "left", color: colours.soft } }];
  if (model) {
    axes.push({
      type: "value", name: "tokens of cache", position: "right", splitLine: { show: false }, nameTextStyle: { align: "right", color: colours.soft },
      axisLabel: { color: colours.soft, formatter: shortCount },
    });
  }
  return {
    // Lines without points have none in the legend either.
    legend: { data: series.map(({ name, symbol }) => (symbol === "none" ? { name, itemStyle: { opacity: 0 } } : { name })) },
    grid: { left: 12, right: 16, top: innerWidth < 640 ? 92 : 58, bottom: 34, containLabel: true },
    tooltip: {
      trigger: "axis",
      formatter: (points) => {
        const row = rows.find(({ slots_per_gpu }) => slots_per_gpu === Math.round(points[0].axisValue)) ?? rows[0];
        const lines = [`${row.slots_per_gpu} slots per GPU`, `at most ${percent(row.local_gpu_bound)} (proven)`];
        if (row.local_gpu != null) lines.push(`best found ${percent(row.local_gpu)}, imbalance ${ratio(row.imbalance)}`);
        if (model) lines.push(row.fits ? `${count(row.cache_tokens)} tokens of cache` : "does not fit");
        return lines.join("\n");
      },
    },
    xAxis: { type: "value", name: "slots per GPU", nameLocation: "middle", nameGap: 28, min: slots[0], max: slots.at(-1), minInterval: 1 },
    yAxis: axes,
    series,
  };
}

function shortCount(value) {
  return value >= 1e6 ? `${value / 1e6} M` : value >= 1e3 ? `${value / 1e3} k` : String(value);
}
