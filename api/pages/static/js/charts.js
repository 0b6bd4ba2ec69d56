// ECharts, loaded where a page has a chart; colours of the present theme, words for those who do not see it, and no
// HTML tooltips: those need inline styles, which the pages' Content-Security-Policy forbids.
import * as echarts from "../vendor/echarts-6.1.0/echarts.esm.min.js";
import { colour } from "./matrix.js";

/**
 * Draw a chart, again whenever the theme or the size changes.
 * @param {HTMLElement} place
 * @param {(colours: object) => object} optionOf makes the option from the theme's colours
 */
export function chart(place, optionOf) {
  const made = echarts.getInstanceByDom(place) ?? echarts.init(place, null, { renderer: "canvas" });
  const draw = () => made.setOption(withUsual(optionOf(themeColours())), { notMerge: true });
  place.redraw = draw;
  if (!place.dataset.followed) {
    place.dataset.followed = "yes";
    document.addEventListener("moeplan:theme", () => place.redraw());
    new ResizeObserver(() => made.resize()).observe(place);
  }
  draw();
  return made;
}

function themeColours() {
  const names = ["ink", "soft", "rule", "raised", "ours", "before", "target", "bound", "good", "field"];
  return Object.fromEntries(names.map((name) => [name, colour(name)]));
}

function withUsual(option) {
  const { ink, soft, rule, raised, field } = themeColours();
  const axis = (given) => {
    const usual = {
      axisLine: { lineStyle: { color: rule } }, axisLabel: { color: soft }, nameTextStyle: { color: soft },
      splitLine: { lineStyle: { color: rule } },
    };
    return Array.isArray(given) ? given.map((each) => ({ ...usual, ...each })) : { ...usual, ...given };
  };
  const made = {
    animation: false,
    textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: ink },
    grid: { left: 12, right: 16, top: 34, bottom: 28, containLabel: true },
    ...option,
    tooltip: {
      renderMode: "richText", confine: true, backgroundColor: raised, borderColor: field, textStyle: { color: ink, fontSize: 13 },
      ...option.tooltip,
    },
  };
  if (option.xAxis) made.xAxis = axis(option.xAxis);
  if (option.yAxis) made.yAxis = axis(option.yAxis);
  // The name of the vertical axis stands above it, below the legend.
  if (option.legend && option.yAxis && !option.grid) made.grid = { ...made.grid, top: 54 };
  if (option.legend) made.legend = { top: 0, left: 0, textStyle: { color: soft }, inactiveColor: rule, ...option.legend };
  return made;
}
