// The table twins of the heat page's maps: experts of one layer, and the loads of GPUs in every layer.
import { count, csvOf, table, times } from "./tables.js";

/** Fill the table of one layer's experts in the window shown. */
export function fillExperts(place, { layer, experts, shown, hosts }) {
  const rows = Array.from({ length: experts }, (_, expert) => {
    const at = layer * experts + expert;
    const relative = Number.isNaN(shown.relative[at]) ? "–" : times(shown.relative[at]);
    return [String(expert), shown.values[at], relative, ...(hosts ? [String(hosts[layer][expert].length), hosts[layer][expert].join(", ")] : [])];
  });
  const columns = ["expert", "routed tokens", "times uniform", ...(hosts ? ["replicas under the plan", "on GPUs"] : [])];
  const made = table(`Layer ${layer}, ${shown.name}`, columns, rows);
  place.replaceChildren(made, csvOf(made, `experts-of-layer-${layer}`));
}

/** Fill the tables of what every GPU computes in every layer, before and under the plan. */
export function fillLoads(place, maps, { layers, gpus, name }) {
  const made = [["before", "Before"], ["plan", "Under the plan"]].flatMap(([layout, title]) => {
    const { values } = maps[layout].shown ?? {};
    if (!values) return [];
    const columns = ["layer", ...Array.from({ length: gpus }, (_, gpu) => `GPU ${gpu}`)];
    const rows = Array.from({ length: layers }, (_, layer) => [
      String(layer), ...Array.from({ length: gpus }, (_, gpu) => count(values[layer * gpus + gpu])),
    ]);
    const twin = table(`${title}: tokens that every GPU computes, ${name}`, columns, rows);
    return [twin, csvOf(twin, `loads-${layout}`)];
  });
  place.replaceChildren(...made);
}
