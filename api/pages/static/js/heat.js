// The heat page: the map of experts, the loads of GPUs beside it, the player, and the expert that was picked.
// Everything that is chosen stands in the address, so that a link shows the same.
import { getJson, showProblem } from "./api.js";
import { FrameStore, overRowMean } from "./frames.js";
import { fillExperts, fillLoads } from "./heat_tables.js";
import { Matrix } from "./matrix.js";
import { count, times } from "./tables.js";
import { tip } from "./tip.js";

const root = document.querySelector("[data-heat]");
const facts = {
  trace: root.dataset.trace,
  plan: root.dataset.plan ?? "",
  phase: root.dataset.phase,
  layers: Number(root.dataset.layers),
  experts: Number(root.dataset.experts),
  windows: Number(root.dataset.windows),
  gpus: Number(root.dataset.gpus ?? 0),
  gpusPerNode: Number(root.dataset.gpusPerNode ?? 0),
  slotsPerGpu: Number(root.dataset.slotsPerGpu ?? 0),
};
const one = (selector) => document.querySelector(selector);
const FASTEST_MS = 60; // between windows when played; the eye wants no more

const state = { window: -1, sort: "number", layer: 0, expert: null };
let order = null; // place -> expert, for every layer, or null for by number
let shown = null; // what is drawn: {values, relative, name}
let hosts = null; // GPUs of every expert under the plan, for hovering and for the order by GPU

const stores = { heat: new FrameStore(facts.trace, { axis: "experts", phase: facts.phase }, facts.layers * facts.experts) };
const maps = {
  heat: new Matrix(one("#heat"), {
    rows: facts.layers, columns: facts.experts, scale: "heat", limits: JSON.parse(root.dataset.heatLimits),
  }),
};
if (facts.plan) {
  const separators = [];
  for (let gpu = facts.gpusPerNode; gpu < facts.gpus; gpu += facts.gpusPerNode) separators.push(gpu);
  for (const layout of ["before", "plan"]) {
    const choice = { axis: "gpus", phase: facts.phase, plan_id: facts.plan, layout };
    stores[layout] = new FrameStore(facts.trace, choice, facts.layers * facts.gpus);
    maps[layout] = new Matrix(one(`#load-${layout}`), {
      rows: facts.layers, columns: facts.gpus, scale: "load", limits: JSON.parse(root.dataset.loadLimits), separators,
    });
  }
}

// ---- what is chosen, and the address

function readAddress() {
  const told = new URLSearchParams(location.search);
  state.window = Math.max(-1, Math.min(facts.windows - 1, Number(told.get("window") ?? -1) || (told.get("window") === "0" ? 0 : -1)));
  state.sort = told.get("sort") ?? "number";
  state.layer = Math.max(0, Math.min(facts.layers - 1, Number(told.get("layer") ?? 0) || 0));
  state.expert = told.get("expert");
}

function writeAddress() {
  const told = new URLSearchParams(location.search);
  const put = (name, value, usual) => (value === usual ? told.delete(name) : told.set(name, value));
  put("window", state.window, -1);
  put("sort", state.sort, "number");
  put("layer", state.layer, 0);
  put("expert", state.expert, null);
  const query = told.toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
}

// ---- drawing

async function show(window, { ahead = false } = {}) {
  const names = Object.keys(stores);
  const found = await Promise.all(names.map((name) => stores[name].get(window, { ahead })));
  if (window !== state.window) return; // somebody moved on meanwhile
  names.forEach((name, at) => drawOne(name, found[at]));
  const name = found[0].name;
  document.querySelectorAll("[data-window-name]").forEach((place) => (place.textContent = name));
  const slider = one("[data-window]");
  slider.value = window;
  slider.setAttribute("aria-valuetext", name);
  document.querySelectorAll("[data-download]").forEach((link) => {
    const told = new URLSearchParams({ format: link.dataset.download });
    if (facts.phase) told.set("phase", facts.phase);
    if (window >= 0) told.set("window", name);
    link.href = `/v1/traces/${facts.trace}/heat?${told}`;
    link.download = `${facts.trace}${window < 0 ? "" : `-window-${window}`}.${link.dataset.download}`;
  });
  fillTables();
}

function drawOne(name, { values, name: windowName }) {
  if (name !== "heat") {
    const relative = overRowMean(values, facts.layers, facts.gpus);
    maps[name].draw(relative);
    maps[name].shown = { values, relative };
    return;
  }
  const relative = overRowMean(values, facts.layers, facts.experts);
  shown = { values, relative, name: windowName };
  maps.heat.draw(ordered(relative));
}

function ordered(relative) {
  if (!order) return relative;
  const placed = new Float32Array(relative.length);
  for (let layer = 0; layer < facts.layers; layer++) {
    const start = layer * facts.experts;
    for (let place = 0; place < facts.experts; place++) placed[start + place] = relative[start + order[start + place]];
  }
  return placed;
}

const expertAt = (row, column) => (order ? order[row * facts.experts + column] : column);

function placeOf(layer, expert) {
  if (!order) return expert;
  const start = layer * facts.experts;
  return order.subarray(start, start + facts.experts).indexOf(expert);
}

// ---- orders

const TITLES = {
  number: "expert", row: "place by heat in its layer", layer: "place by heat in the layer chosen",
  gpu: "place by GPU of the plan", together: "place by co-activation",
};

async function sort() {
  one("[data-sort]").value = state.sort;
  one("[data-sort-layer-field]").hidden = state.sort !== "layer";
  one("[data-sort-layer]").value = state.layer;
  order = await orderOf(state.sort);
  maps.heat.xTitle = TITLES[state.sort];
  if (shown) maps.heat.draw(ordered(shown.relative));
  markExpert();
}

async function orderOf(kind) {
  if (kind === "number") return null;
  const made = new Uint16Array(facts.layers * facts.experts);
  const put = (layer, experts) => made.set(experts, layer * facts.experts);
  if (kind === "together") {
    const told = await getJson(`/v1/traces/${facts.trace}/order${facts.phase ? `?phase=${facts.phase}` : ""}`);
    told.order.forEach((experts, layer) => put(layer, experts));
    return made;
  }
  const numbers = Array.from({ length: facts.experts }, (_, expert) => expert);
  if (kind === "gpu") {
    await loadHosts();
    for (let layer = 0; layer < facts.layers; layer++) {
      const first = hosts[layer].map((gpus) => gpus[0]);
      put(layer, numbers.toSorted((a, b) => first[a] - first[b] || a - b));
    }
    return made;
  }
  const { values } = await stores.heat.get(-1); // by all windows together, so that playing does not shuffle the map
  const byHeat = (layer) => numbers.toSorted((a, b) => values[layer * facts.experts + b] - values[layer * facts.experts + a]);
  const everywhere = kind === "layer" ? byHeat(state.layer) : null;
  for (let layer = 0; layer < facts.layers; layer++) put(layer, everywhere ?? byHeat(layer));
  return made;
}

async function loadHosts() {
  if (hosts || !facts.plan) return;
  const { physical_to_logical_map: slots } = await getJson(`/v1/plans/${facts.plan}/export?format=sglang`);
  hosts = slots.map((row) => {
    const found = Array.from({ length: facts.experts }, () => []);
    row.forEach((expert, slot) => {
      const gpu = Math.floor(slot / facts.slotsPerGpu);
      if (found[expert].at(-1) !== gpu) found[expert].push(gpu);
    });
    return found;
  });
}

// ---- hovering and picking

function tell(text, detail) {
  tip.show(text, detail);
  if (detail.aloud) one("#heat-said").textContent = text;
}

one("#heat").addEventListener("moeplan:hover", ({ detail }) => {
  if (!shown) return;
  const { row, column } = detail;
  const expert = expertAt(row, column);
  const at = row * facts.experts + expert;
  const told = Number.isNaN(shown.relative[at])
    ? [`Layer ${row}: no experts, or no traffic`]
    : [`Layer ${row}, expert ${expert}`, `${count(shown.values[at])} routed tokens, ${times(shown.relative[at])} uniform`];
  if (hosts && told.length > 1) {
    const gpus = hosts[row][expert];
    told.push(`${gpus.length} replica${gpus.length === 1 ? "" : "s"} under the plan, GPU ${gpus.join(", ")}`);
  }
  tell(told.join("\n"), detail);
});
one("#heat").addEventListener("moeplan:pick", ({ detail: { row, column } }) => {
  if (!shown || Number.isNaN(shown.relative[row * facts.experts])) return;
  state.expert = `${row}.${expertAt(row, column)}`;
  openExpert({ focus: true });
});
for (const layout of ["before", "plan"].filter((name) => maps[name])) {
  maps[layout].root.addEventListener("moeplan:hover", ({ detail }) => {
    const { row, column } = detail;
    const { values, relative } = maps[layout].shown ?? {};
    if (!values) return;
    const at = row * facts.gpus + column;
    const load = Number.isNaN(relative[at]) ? "no traffic" : `${count(values[at])} tokens, ${times(relative[at])} the layer's mean`;
    tell(`Layer ${row}, GPU ${column}\n${load}`, detail);
  });
}
for (const map of Object.values(maps)) map.root.addEventListener("moeplan:leave", () => tip.hide());

function markExpert() {
  if (!state.expert) return maps.heat.select(null);
  const [layer, expert] = state.expert.split(".").map(Number);
  maps.heat.select({ row: layer, column: placeOf(layer, expert) });
}

async function openExpert({ focus = false } = {}) {
  if (!state.expert) return;
  const [layer, expert] = state.expert.split(".").map(Number);
  writeAddress();
  markExpert();
  try {
    const { showExpert } = await import("./expert.js"); // brings the chart library, which the maps do without
    await showExpert(one("#expert"), { ...facts, layer, expert });
    if (focus) {
      one("#expert").scrollIntoView({ block: "nearest" });
      one("#expert-title").focus({ preventScroll: true });
    }
  } catch (error) {
    showProblem(one("[data-problem]"), error);
  }
}

// ---- the tables of what is drawn

function fillTables() {
  if (!shown) return;
  if (one("[data-experts-table]")?.open) {
    const layer = Math.max(0, Math.min(facts.layers - 1, Number(one("[data-table-layer]").value) || 0));
    fillExperts(one("[data-table]"), { layer, experts: facts.experts, shown, hosts });
  }
  if (one("[data-loads-table]")?.open) fillLoads(one("[data-loads]"), maps, { ...facts, name: shown.name });
}

// ---- playing

let playing = null;

async function play() {
  const button = one("[data-play]");
  if (playing) {
    playing = null;
    return;
  }
  const mine = (playing = {});
  button.textContent = "Stop";
  button.setAttribute("aria-pressed", "true");
  try {
    while (playing === mine) {
      const began = performance.now();
      state.window = state.window + 1 >= facts.windows ? 0 : state.window + 1;
      await show(state.window, { ahead: true });
      await new Promise(requestAnimationFrame);
      const left = FASTEST_MS - (performance.now() - began);
      if (left > 0) await new Promise((done) => setTimeout(done, left));
    }
  } catch (error) {
    showProblem(one("[data-problem]"), error);
  }
  playing = null;
  button.textContent = "Play";
  button.removeAttribute("aria-pressed");
  writeAddress();
}

// ---- begin

async function guarded(action) {
  showProblem(one("[data-problem]"), null);
  try {
    await action();
  } catch (error) {
    showProblem(one("[data-problem]"), error);
  }
}

one("[data-play]").addEventListener("click", play);
one("[data-window]").addEventListener("input", (event) => {
  playing = null;
  state.window = Number(event.target.value);
  guarded(() => show(state.window)).then(writeAddress);
});
one("[data-sort]").addEventListener("change", (event) => {
  state.sort = event.target.value;
  writeAddress();
  guarded(sort);
});
one("[data-sort-layer]").addEventListener("change", (event) => {
  state.layer = Math.max(0, Math.min(facts.layers - 1, Number(event.target.value) || 0));
  writeAddress();
  guarded(sort);
});
one("[data-table-layer]")?.addEventListener("change", fillTables);
for (const twin of document.querySelectorAll("[data-experts-table], [data-loads-table]")) twin.addEventListener("toggle", fillTables);
for (const field of document.querySelectorAll("[data-reload] select[name]")) {
  field.addEventListener("change", () => {
    const told = new URLSearchParams(location.search);
    field.value ? told.set(field.name, field.value) : told.delete(field.name);
    if (field.name === "phase") told.delete("window");
    location.search = told;
  });
}
one("[data-reload]").addEventListener("submit", (event) => event.preventDefault());

readAddress();
await guarded(async () => {
  await show(state.window);
  performance.mark("moeplan-heat-drawn");
  document.documentElement.dataset.heat = "drawn";
  try {
    await sort();
  } catch (error) {
    // An order that this recording cannot give keeps nothing else of the link from being shown.
    state.sort = "number";
    await sort();
    showProblem(one("[data-problem]"), error);
  }
  await loadHosts();
  await openExpert();
});
one("[data-loading]").hidden = true;
