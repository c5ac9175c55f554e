// The curves of a job as small charts that share a crosshair, in the colours of the page.

import uPlot from "uplot";
import { h, number } from "../kit/dom.js";
import { FONT, labels, onTheme, padded, readColours, WHOLE } from "../kit/plots.js";

const HEIGHT = 104;
const FEW = 40;
const FEWEST = 3; // of fewer steps there are figures above, and no charts
const SHARES = new Set(["clipped", "masked"]);
const DISTANCES = new Set(["kl", "kl_base"]); // noisy in single steps, so that one number is their median

/** A chart per curve that has numbers, the first ones and what is odd open; update() draws changes of the state. */
export function curveGrid(state) {
  const first = h("div", { class: "rl-curves" });
  const rest = h("div", { class: "rl-curves" });
  const summary = h("summary", { class: "rl-foot" });
  const folded = h("details", { class: "rl-more-curves", ontoggle: () => fit() }, summary, rest);
  const element = h(
    "div",
    {
      role: "group",
      tabindex: "0",
      "aria-label": "curves over the gradient steps; arrow keys move along them, and the numbers are in the table below",
      onkeydown: (event) => walk(event),
    },
    first,
    folded,
  );
  const charts = new Map();
  const sync = uPlot.sync(crypto.randomUUID?.() ?? String(Math.random()));
  const fit = () => charts.forEach((chart) => chart.fit());
  const resized = new ResizeObserver(fit);
  resized.observe(element);
  const themed = onTheme(() => charts.forEach((chart) => chart.recolour()));
  let at = null;

  function walk(event) {
    const last = [...charts.values()][0]?.last() ?? -1;
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!move || last < 0) return;
    event.preventDefault();
    event.stopPropagation(); // a notebook has its own use for arrow keys
    at = Math.min(last, Math.max(0, (at ?? (move < 0 ? last + 1 : -1)) + move));
    charts.forEach((chart) => chart.point(at));
  }

  /** Put the charts where they belong; one that stays in its place is not touched, which would end a drag in it. */
  function arrange() {
    const there = state.curves.filter(({ title }) => charts.has(title));
    const some = there.filter((curve) => curve.first || state.head.odd[curve.title]);
    const open = new Set(some.length ? some : there);
    for (const [parent, curves] of [[first, there.filter((c) => open.has(c))], [rest, there.filter((c) => !open.has(c))]]) {
      const elements = curves.map(({ title }) => charts.get(title).element);
      if (elements.length !== parent.children.length || elements.some((each, i) => each !== parent.children[i]))
        parent.replaceChildren(...elements);
    }
    const others = there.filter((curve) => !open.has(curve));
    folded.hidden = !others.length;
    summary.replaceChildren(
      `${others.length} more: `,
      ...others.flatMap(({ title }, i) => [i ? " · " : "", `${title} `, h("b", {}, charts.get(title).newest())]),
    );
  }

  return {
    element,
    update() {
      for (const curve of state.curves) {
        const names = drawn(curve, state.numbers);
        const chart = charts.get(curve.title);
        if (names.length && chart?.names.join() !== names.join()) {
          chart?.close();
          charts.set(curve.title, chartOf(curve, names, sync.key));
        }
        charts.get(curve.title)?.update(state.numbers, state.head.odd[curve.title]);
      }
      arrange();
      const steps = Math.max(0, ...Object.values(state.numbers).map((values) => values.length));
      element.hidden = !charts.size || steps < FEWEST;
    },
    close() {
      resized.disconnect();
      themed();
      charts.forEach((chart) => chart.close());
    },
  };
}

/** The numbers of a curve that are drawn. */
function drawn({ names }, numbers) {
  if (names[0] === "reward" && new Set(numbers.reward).size < 2) return []; // one reward for the whole job: it is shown above
  return names.filter((name, k) => numbers[name]?.some((value) => (k ? value : value != null)));
}

function chartOf(curve, names, syncKey) {
  const values = h("span", { class: "rl-values" });
  const canvas = h("div", { class: "rl-canvas" });
  const advice = h("p", { class: "rl-advice" });
  const element = h("figure", {}, h("figcaption", {}, h("b", {}, curve.title), values), canvas, advice);
  let data = [[], ...names.map(() => [])];
  let colours = { ink: "", dim: "", line: "", series: [] };
  let plot = null;

  // what is folded may have a width all the same
  const hasRoom = () => canvas.clientWidth && !element.closest("details:not([open])");
  const showValues = (index) => {
    const smooth = index == null && DISTANCES.has(names[0]);
    const which = smooth ? "median" : index == null ? "" : `step ${data[0][index]}`;
    const step = which ? [h("span", { class: "rl-dim" }, which)] : [];
    const one = smooth ? medianOf : lastOf;
    const shown = names.map((_, k) => (index == null ? one(data[k + 1]) : data[k + 1][index]));
    values.replaceChildren(...step, ...names.map((name, k) => valueOf(name, shown[k], k, names.length)));
  };
  const read = () => {
    const { dim, line, ...runs } = readColours(element, ["dim", "line", "run-1", "run-2"]);
    colours = { dim, line, series: Object.values(runs) };
  };
  const make = () => {
    read();
    const axis = { font: FONT, stroke: () => colours.dim, ticks: { show: false } };
    const grid = { stroke: () => colours.line, width: 0.5 };
    plot = new uPlot(
      {
        width: canvas.clientWidth,
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, sync: { key: syncKey }, points: { size: 6 } },
        scales: { x: { time: false, range: steps }, y: { range: padded } },
        axes: [
          { ...axis, size: 18, gap: 2, space: 36, incrs: WHOLE, grid: { show: false }, values: present },
          { ...axis, size: 44, gap: 4, space: 24, grid, values: (_, ticks) => labels((tick, digits) => written(names[0], tick, digits), ticks) },
        ],
        series: [
          {},
          ...names.map((_, k) => ({
            stroke: () => colours.series[k],
            width: k ? 1 : 1.75,
            dash: k ? [4, 3] : undefined,
            spanGaps: true, // some numbers are of a sample of the steps
            points: { show: () => data[0].length <= FEW, size: 4, fill: () => colours.series[k] },
          })),
        ],
        hooks: { setCursor: [(u) => showValues(u.cursor.idx)] },
      },
      data,
      canvas,
    );
  };
  return {
    element,
    names,
    last: () => data[0].length - 1,
    newest: () => written(names[0], lastOf(data[1])),
    update(numbers, odd) {
      const length = Math.max(...names.map((name) => numbers[name].length));
      data = [Array.from({ length }, (_, i) => i + 1), ...names.map((name) => numbers[name])];
      const [sentence, fix] = (odd ?? curve.healthy).split(" -> ");
      advice.replaceChildren(sentence, ...(fix ? [" → ", h("code", {}, fix)] : []));
      advice.classList.toggle("rl-odd", Boolean(odd));
      if (plot) plot.setData(data);
      else if (hasRoom()) make();
      showValues(plot?.cursor.idx ?? null);
    },
    fit() {
      if (!hasRoom()) return;
      if (!plot) make();
      else if (plot.width !== canvas.clientWidth) plot.setSize({ width: canvas.clientWidth, height: HEIGHT });
    },
    recolour() {
      read();
      plot?.redraw(false);
    },
    point(index) {
      plot?.setCursor({ left: plot.valToPos(data[0][index], "x"), top: 1 }, true, false);
    },
    close() {
      plot?.destroy();
    },
  };
}

function steps(_plot, low, high) {
  return low == null ? [0, 1] : low === high ? [low - 1, high + 1] : [low, high];
}

/** No labels where no steps are. */
function present(plot, ticks) {
  return ticks.map((tick) => (tick >= 1 && tick <= plot.data[0].length ? String(tick) : ""));
}

function valueOf(name, value, k, many) {
  const short = many > 1 ? `${name} ` : "";
  return h("span", { class: `rl-series-${k}` }, short, h("b", {}, value == null ? "–" : written(name, value, 4)));
}

function medianOf(values) {
  const sorted = values.filter((value) => value != null).sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : sorted.length ? (sorted[half - 1] + sorted[half]) / 2 : undefined;
}

function lastOf(values) {
  return values.filter((value) => value != null).at(-1);
}

function written(name, value, digits = 3) {
  const text = SHARES.has(name) ? `${number(100 * value, digits - 1)}%` : number(value, digits);
  return text.replace(/^-/, "−");
}
