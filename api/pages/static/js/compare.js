// Two windows of one recording side by side on one scale; the pointer shows the same cell in both.
import { showProblem } from "./api.js";
import { FrameStore, overRowMean } from "./frames.js";
import { Matrix } from "./matrix.js";
import { count, times } from "./tables.js";
import { tip } from "./tip.js";

const root = document.querySelector("[data-compare]");
const layers = Number(root.dataset.layers);
const experts = Number(root.dataset.experts);
const store = new FrameStore(root.dataset.trace, { axis: "experts", phase: root.dataset.phase }, layers * experts, { most: 1 });

try {
  const sides = [];
  for (const side of ["a", "b"]) {
    const { values } = await store.get(Number(root.dataset[side]));
    const relative = overRowMean(values, layers, experts);
    const place = document.querySelector(`#window-${side}`);
    const map = new Matrix(place, { rows: layers, columns: experts, scale: "heat", limits: JSON.parse(root.dataset.limits) });
    map.draw(relative);
    sides.push({ map, place, values, relative });
  }
  for (const { place } of sides) {
    place.addEventListener("moeplan:hover", ({ detail }) => {
      const at = detail.row * experts + detail.column;
      const told = sides.map((side, number) => `${["first", "second"][number]}: ${Number.isNaN(side.relative[at]) ? "no traffic" : `${count(side.values[at])} tokens, ${times(side.relative[at])} uniform`}`);
      tip.show([`Layer ${detail.row}, expert ${detail.column}`, ...told].join("\n"), detail);
      for (const side of sides) side.map.select({ row: detail.row, column: detail.column });
    });
    place.addEventListener("moeplan:leave", () => tip.hide());
  }
} catch (error) {
  showProblem(root.querySelector("[data-problem]"), error);
}
root.querySelector("[data-loading]").hidden = true;
