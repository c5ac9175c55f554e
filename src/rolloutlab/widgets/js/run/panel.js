// One panel: a number of all runs over the common axis, or figures where there are too few points for a line.

import uPlot from "uplot";
import { h } from "../kit/dom.js";
import { FONT, labels, padded, WHOLE } from "../kit/plots.js";
import { heightWords, known, placeWords, STRIDES, tickWords, written } from "./series.js";

const LARGE = 220;
const SMALL = 96;
const FEWEST = 3; // of fewer points there is no line
const STILL = 6; // pixels from which on a click is a drag
const DOTTED = 12; // points up to which each is a dot

export class Panel {
  constructor(board, names, large) {
    Object.assign(this, { board, names, large, near: false, plot: null, made: "" });
    this.values = h("span", { class: "rl-values" });
    this.title = h("b", {});
    this.canvas = h("div", { class: "rl-canvas" });
    this.tip = large ? h("div", { class: "rl-tip" }) : null;
    this.says = h("p", { class: "rl-says" });
    this.element = h("figure", { class: large ? "rl-graph rl-large" : "rl-graph" }, h("figcaption", {}, this.title, this.values), large ? board.legend : [], this.canvas, this.says);
  }

  get number() {
    return this.board.byName.get(this.names[0]);
  }

  /** Its element has come near: only now a plot is made. */
  seen(near) {
    this.near ||= near;
    if (this.near && !this.plot) this.draw();
  }

  update() {
    this.says.textContent = this.large && this.names.length < 2 ? this.number.says : this.large ? "" : this.number.says;
    if (this.near) this.draw();
    else this.write();
  }

  draw() {
    const { board } = this;
    this.lines = board.courses.flatMap((_, i) => (board.isShown(i) ? this.names.map((name, k) => ({ i, name, k, ...board.columns(i, name) })) : [])).filter(({ raw }) => raw);
    const few = Math.max(0, ...board.courses.flatMap(({ numbers }) => this.names.map((name) => known(numbers[name]).length))) < FEWEST;
    this.logs = board.log && this.lines.length > 0 && this.lines.every(({ raw, low }) => [...known(raw), ...known(low)].every((value) => value > 0));
    this.title.textContent = `${this.number.title}${this.logs && !few ? ", log" : ""}`;
    this.canvas.classList.toggle("rl-few", few);
    if (few) this.drawFigures();
    else this.drawPlot();
    this.pointSoon();
  }

  /** A line for each run: its values and their steps. */
  drawFigures() {
    this.erase();
    const { board, number } = this;
    const rows = this.lines.map(({ i, name, k }) => {
      const { steps, numbers, lows, highs } = board.courses[i];
      const ends = (at) => (lows[name]?.[at] == null ? "" : ` (${written(number, lows[name][at])} to ${written(number, highs[name][at])})`);
      const said = steps.flatMap((step, at) => (numbers[name][at] == null ? [] : [h("span", {}, h("b", {}, written(number, numbers[name][at])), h("span", { class: "rl-dim" }, `${ends(at)} at ${step}`))]));
      return h("p", {}, h("i", { class: `rl-mark ${board.look(i).mark}` }), board.courses.length > 1 || this.names.length > 1 ? `${board.courses.length > 1 ? board.courses[i].name : ""}${k ? " trained on" : ""} ` : "", said);
    });
    this.canvas.replaceChildren(...rows);
  }

  drawPlot() {
    const series = this.lines.flatMap((line) => ORDER.filter((role) => line[role] && (!line.k || !BAND.includes(role))).map((role) => ({ ...line, role, data: line[role] })));
    series.sort((a, b) => ORDER.indexOf(a.role) - ORDER.indexOf(b.role));
    const data = [this.board.places, ...series.map((each) => each.data)];
    const kind = JSON.stringify([this.board.by, this.logs, series.map(({ i, name, role, raw }) => [i, name, role, isDotted(raw)])]);
    this.series = series;
    if (this.plot && this.made === kind) return this.plot.setData(data);
    this.erase();
    if (!this.canvas.clientWidth) return;
    this.made = kind;
    this.plot = new uPlot(this.options(series), data, this.canvas);
    if (this.tip) this.plot.over.append(this.tip);
  }

  options(series) {
    const { board } = this;
    const axis = { font: FONT, stroke: () => board.colours.dim, ticks: { show: false } };
    const grid = { stroke: () => board.colours.line, width: 0.5 };
    const bands = series.flatMap(({ role, i, name }, k) => {
      if (role !== "high") return [];
      const low = series.findIndex((each) => each.role === "low" && each.i === i && each.name === name);
      return [{ series: [k + 1, low + 1], fill: () => faded(board.look(i).colour, 0.16) }];
    });
    return {
      width: this.canvas.clientWidth,
      height: this.large ? LARGE : SMALL,
      legend: { show: false },
      padding: [6, 10, null, null],
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: false, dist: STILL, click: () => {} },
        points: { show: (_, k) => this.series[k - 1].role === "raw" && h("div", {}), size: (_, k) => (this.series[k - 1].k ? 6 : 9), width: 1.5, stroke: () => board.colours.paper, fill: (_, k) => board.look(this.series[k - 1].i).colour },
        dataIdx: (_, k) => this.indexAt(k),
        bind: { dblclick: () => () => board.zoomTo(null), mouseleave: (_plot, _target, leave) => (event) => (event.buttons & 1 ? leave(event) : null) },
      },
      scales: { x: { time: false, range: () => board.domain }, y: this.logs ? { distr: 3, range: roomy } : { range: (plot, low, high) => this.bounded(padded(plot, low, high)) } },
      axes: [
        { ...axis, size: 18, gap: 2, space: this.large ? 60 : 48, incrs: board.by === "step" ? WHOLE : STRIDES[board.by], grid: { show: false }, values: (_, ticks) => ticks.map((tick) => tickWords(board.by, tick)) },
        { ...axis, size: 46, gap: 4, space: this.large ? 40 : 20, grid, values: (_, ticks) => this.heights(ticks) },
      ],
      series: [{}, ...series.map((each) => this.drawn(each))],
      bands,
      hooks: {
        setCursor: [({ cursor, data }) => cursor.event && !(cursor.event.buttons & 1) && board.hover(data[0][cursor.idx])],
        setSelect: [(plot) => this.selected(plot)],
        ready: [({ over }) => onClick(over, () => board.pin())],
        draw: [(plot) => this.large && this.markBest(plot)],
      },
    };
  }

  /** How a series looks. */
  drawn({ i, k, role, raw, smooth }) {
    const { board } = this;
    const look = board.look(i);
    const colour = () => board.look(i).colour;
    const dots = { show: false };
    if (BAND.includes(role)) return { stroke: null, width: 0, spanGaps: true, points: dots };
    const pale = role === "raw" && smooth;
    return {
      stroke: () => (pale ? faded(colour(), k ? 0.14 : 0.28) : k ? faded(colour(), 0.8) : colour()),
      width: pale ? 1 : k ? 1.1 : this.large ? 2 : 1.6,
      dash: k ? [4, 3] : look.dash,
      spanGaps: true, // a number may be of a sample of the steps
      points: pale || !isDotted(raw) ? dots : { show: true, size: k ? 4 : 5, fill: colour, stroke: colour },
    };
  }

  heights(ticks) {
    const there = ticks.filter((tick) => tick != null);
    const texts = labels((tick, digits) => heightWords(this.number, tick, digits), there);
    return ticks.map((tick) => (tick == null ? "" : texts[there.indexOf(tick)]));
  }

  /** No axis of shares beyond 100%. */
  bounded([low, high]) {
    return this.number.unit === "share" ? [low, Math.min(1.02, high)] : [low, high];
  }

  /** Where the dot of a series is: at the value that the title says. */
  indexAt(k) {
    if (!k) return null;
    const { i, name } = this.series[k - 1];
    const { place } = this.board.valueAt(i, name);
    return place == null ? null : this.board.index.get(place);
  }

  selected(plot) {
    const { left, width } = plot.select;
    if (!width) return;
    const range = [left, left + width].map((at) => plot.posToVal(at, "x"));
    plot.setSelect({ left: 0, width: 0 }, false);
    this.board.zoomTo(range);
  }

  rescale() {
    const [min, max] = this.board.domain;
    this.plot?.setScale("x", { min, max });
    this.pointSoon();
  }

  /** The same once the plot has taken new data, another scale or another size, which it does in a microtask. */
  pointSoon() {
    this.write();
    queueMicrotask(() => this.point());
  }

  /** Move the cursor to that of the board, and write the values there. */
  point() {
    this.write();
    const { plot, board } = this;
    if (!plot) return;
    const [low, high] = board.domain;
    const place = board.cursor?.place;
    const within = place != null && place >= low && place <= high;
    plot.setCursor(within ? { left: plot.valToPos(place, "x"), top: 1 } : { left: -10, top: -10 }, false, false);
    if (this.tip) this.writeTip(within);
  }

  write() {
    const { board, number } = this;
    this.title.textContent ||= number.title;
    const isFigure = this.canvas.classList.contains("rl-few"); // which has all values
    const shown = board.courses.flatMap(({ name, numbers }, i) => {
      if (isFigure || !board.isShown(i) || !known(numbers[this.names[0]]).length) return [];
      const { value, step } = board.valueAt(i, this.names[0]);
      const other = board.by === "step" && board.cursor && value != null && step !== board.cursor.step;
      return [h("b", { class: board.look(i).mark, title: `${name}${value == null ? "" : ` at step ${step}`}` }, written(number, value), other ? h("small", {}, `@${step}`) : [])];
    });
    this.values.replaceChildren(...shown.flatMap((each, i) => (i ? [" · ", each] : [each])));
  }

  /** The box at the cursor of the large panel. */
  writeTip(within) {
    const { board, tip, plot, names } = this;
    tip.hidden = !within;
    if (!within) return;
    const rows = board.courses.flatMap(({ name }, i) => {
      if (!board.isShown(i)) return [];
      const values = names.map((each) => board.valueAt(i, each));
      const step = board.by === "step" ? [] : [h("td", { class: "rl-dim" }, values[0].step == null ? "" : `step ${values[0].step}`)];
      return [h("tr", {}, h("td", {}, h("i", { class: `rl-mark ${board.look(i).mark}` }), name), step, values.map(({ value }, k) => h("td", {}, k ? written(this.number, value) : h("b", {}, written(this.number, value)))))];
    });
    const what = names.length > 1 ? ", held out · trained on" : "";
    tip.replaceChildren(h("p", { class: "rl-dim" }, `${placeWords(board.by, board.cursor.place)}${what}`), h("table", {}, h("tbody", {}, rows)));
    const left = plot.valToPos(board.cursor.place, "x");
    const right = left > plot.over.clientWidth / 2;
    const above = board.courses.flatMap((_, i) => (board.isShown(i) ? [board.valueAt(i, names[0]).value] : [])).filter((value) => value != null && plot.valToPos(value, "y") < plot.over.clientHeight / 2);
    tip.classList.toggle("rl-low", 2 * above.length > rows.length); // where it covers less
    tip.style.left = right ? "" : `${left + 10}px`;
    tip.style.right = right ? `${plot.over.clientWidth - left + 10}px` : "";
  }

  /** A ring at the best checkpoint of each run. */
  markBest(plot) {
    const { board } = this;
    const { ctx } = plot;
    const ratio = devicePixelRatio;
    const [low, high] = board.domain;
    for (const { i, k, name } of this.lines) {
      const at = board.courses[i].steps.indexOf(board.best[i]);
      const value = board.courses[i].numbers[name]?.[at];
      const place = board.axes[i][at];
      if (k || value == null || place < low || place > high) continue;
      const [x, y] = [plot.valToPos(place, "x", true), plot.valToPos(value, "y", true)];
      ctx.save();
      ctx.setLineDash([]);
      ctx.lineWidth = 1.5 * ratio;
      ctx.strokeStyle = board.look(i).colour;
      ctx.fillStyle = board.colours.paper;
      ctx.beginPath();
      ctx.arc(x, y, 4.5 * ratio, 0, 2 * Math.PI);
      ctx.fill();
      ctx.stroke();
      ctx.restore();
    }
  }

  fit() {
    if (!this.near || !this.canvas.clientWidth || this.canvas.classList.contains("rl-few")) return;
    if (!this.plot) this.draw();
    else if (this.plot.width !== this.canvas.clientWidth) {
      this.plot.setSize({ width: this.canvas.clientWidth, height: this.large ? LARGE : SMALL });
      this.pointSoon();
    }
  }

  recolour() {
    this.plot?.redraw(false);
    this.plot?.setCursor({ left: -10, top: -10 }, false, false); // its dots take their colours where they move
    this.point();
  }

  erase() {
    this.plot?.destroy();
    this.plot = null;
    this.canvas.replaceChildren();
  }

  close() {
    this.board.sight.leave(this);
    this.erase();
  }
}

const BAND = ["low", "high"];
const ORDER = [...BAND, "raw", "smooth"];

/** Call deed() for a click that is no drag. */
function onClick(element, deed) {
  let begun = 0;
  element.addEventListener("mousedown", ({ clientX }) => (begun = clientX));
  element.addEventListener("click", ({ clientX }) => Math.abs(clientX - begun) < STILL && deed());
}

function isDotted(values) {
  return known(values).length <= DOTTED;
}

function faded(colour, share) {
  return colour.replace(/^rgb\((.*)\)$/, `rgba($1, ${share})`);
}

/** A little room on an axis of logarithms. */
function roomy(_plot, low, high) {
  return low == null ? [1, 10] : [low / (high / low) ** 0.08 / 1.01, high * (high / low) ** 0.08 * 1.01];
}
