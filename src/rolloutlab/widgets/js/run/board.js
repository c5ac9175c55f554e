// What all panels share: the runs, the axis, one cursor, the zoom, which runs are shown.

import { h } from "../kit/dom.js";
import { onTheme, readColours } from "../kit/plots.js";
import { Sight } from "../kit/sight.js";
import { Panel } from "./panel.js";
import { column, joined, known, lastUntil, places, placeWords, smoothed, written } from "./series.js";

export const OPEN = 9; // small panels; the others are folded
const MAIN = ["held_out", "reward"]; // in one panel
const MANY = 100; // points from which on a line is smoothed
const COLOURS = 4;

export class Board {
  /** onMove() is called when the cursor has moved, onChange() when anything else has changed. */
  constructor({ onMove, onChange }) {
    Object.assign(this, { onMove, onChange, by: "step", radius: null, log: false, zoom: null, cursor: null, pinned: false });
    this.hidden = new Set();
    this.folded = new Map(); // what a user has opened or folded, by number
    this.panels = new Map();
    this.sight = new Sight();
    this.legend = h("div", { class: "rl-legend", role: "group", "aria-label": "runs" });
    this.main = h("div", { class: "rl-graphs rl-wide-graph" });
    this.grid = h("div", { class: "rl-graphs" });
    this.rest = h("div", { class: "rl-folded", role: "group", "aria-label": "folded panels" });
    this.spoken = h("div", { class: "rl-unseen", role: "status", "aria-live": "polite" });
    this.plots = h(
      "div",
      {
        class: "rl-plots",
        role: "group",
        tabindex: "0",
        "aria-label": "curves; left and right arrow keys move the cursor, Escape goes back, and the numbers are in a table",
        onkeydown: (event) => this.walk(event),
      },
      this.main,
      this.grid,
    );
    this.element = h("div", {}, this.plots, this.rest, this.spoken);
    this.resized = new ResizeObserver(() => this.each((panel) => panel.fit()));
    this.resized.observe(this.plots);
    this.themed = onTheme(() => (this.readColours(), this.showLegend(), this.each((panel) => panel.recolour())));
  }

  each(deed) {
    this.panels.forEach(deed);
  }

  /** Show a state, the first or a new one. What a user has chosen stays. */
  update({ courses, numbers, best }) {
    Object.assign(this, { courses, numbers, best: best ?? [] });
    this.byName = new Map(numbers.map((each) => [each.name, each]));
    this.most = Math.max(0, ...courses.map(({ steps }) => steps.length));
    this.hasTokens = courses.every((course) => known(course.numbers.tokens).length);
    if (this.by === "tokens" && !this.hasTokens) this.by = "step";
    this.steps = joined(courses.map(({ steps }) => steps));
    this.place();
    this.arrange();
  }

  /** Lay the steps out on the axis. */
  place() {
    this.axes = this.courses.map((course) => places(course, this.by));
    this.places = joined(this.axes);
    this.index = new Map(this.places.map((place, i) => [place, i]));
    this.positions = this.axes.map((axis) => axis.map((place) => this.index.get(place)));
    if (this.cursor) this.cursor = this.cursorAt(this.cursor.step);
  }

  /** Make the panels that are open, and draw all of them. */
  arrange() {
    if (!this.colours) this.readColours();
    const main = MAIN.filter((name) => this.byName.has(name));
    const small = this.numbers.filter(({ name }) => !MAIN.includes(name));
    this.small = small;
    const open = small.filter(({ name }, i) => this.isOpen(name, i));
    const wanted = [...(main.length ? [[main, true]] : []), ...open.map(({ name }) => [[name], false])];
    const kept = new Map(wanted.map(([names, large]) => [names[0], this.panelOf(names, large)]));
    this.each((panel, key) => kept.get(key) !== panel && panel.close());
    this.panels = kept;
    fill(this.main, main.map((name) => kept.get(name)?.element).filter(Boolean));
    fill(this.grid, open.map(({ name }) => kept.get(name).element));
    this.showLegend();
    this.each((panel) => panel.update());
    this.showRest(small.filter((each) => !open.includes(each)));
    this.moved();
    this.onChange();
  }

  panelOf(names, large) {
    const there = this.panels.get(names[0]);
    if (there?.names.join() === names.join()) return there;
    const made = new Panel(this, names, large);
    this.sight.watch(made);
    return made;
  }

  isOpen(name, i = this.small.findIndex((each) => each.name === name)) {
    return this.folded.has(name) ? !this.folded.get(name) : i < OPEN;
  }

  fold(name, folded) {
    this.folded.set(name, folded);
    this.arrange();
  }

  showRest(folded) {
    this.rest.hidden = !folded.length;
    const of = (each) => this.courses.map(({ numbers }) => written(each, known(numbers[each.name]).at(-1))).join(" · ");
    const buttons = folded.map((each) => h("button", { type: "button", class: "rl-plain rl-stays", title: `open: ${each.says}`, onclick: () => this.fold(each.name, false) }, `${each.title} `, h("b", {}, of(each))));
    this.rest.replaceChildren(h("span", { class: "rl-dim" }, `${folded.length} more`), ...buttons);
  }

  showLegend() {
    const entry = ({ name, members }, i) =>
      h(
        "button",
        { type: "button", class: "rl-plain rl-stays", "aria-pressed": String(!this.hidden.has(name)), title: members.length > 1 ? members.join(", ") : `show or hide ${name}`, onclick: () => this.toggle(name) },
        h("i", { class: this.look(i).mark }),
        name,
      );
    const both = MAIN.every((name) => this.byName.has(name));
    const seeds = Math.max(...this.courses.map(({ members }) => members.length));
    const had = [...this.legend.querySelectorAll("button")].indexOf(document.activeElement);
    this.legend.replaceChildren(
      ...this.courses.map(entry),
      both ? h("span", {}, h("i", { class: "rl-thin" }), "trained on") : "",
      this.best.some((step) => step != null) ? h("span", {}, h("i", { class: "rl-ring" }), "best checkpoint") : "",
      seeds > 1 ? h("span", {}, h("i", { class: "rl-area" }), `least and largest of ${seeds} seeds`) : "",
    );
    this.legend.querySelectorAll("button")[had]?.focus();
  }

  /** The colour of a run, its dashes, and the classes of its mark. */
  look(i) {
    const round = Math.floor(i / COLOURS);
    return {
      colour: this.colours[`run-${1 + (i % COLOURS)}`],
      dash: [undefined, [9, 3], [2, 3]][Math.min(round, 2)],
      mark: `rl-run-${1 + (i % COLOURS)}${round ? ` rl-dashes-${Math.min(round, 2)}` : ""}`,
    };
  }

  readColours() {
    this.colours = readColours(this.element, ["dim", "ink", "line", "paper", "run-1", "run-2", "run-3", "run-4"]);
  }

  isShown(i) {
    return !this.hidden.has(this.courses[i].name);
  }

  toggle(name) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    this.showLegend();
    this.each((panel) => panel.update());
    this.moved();
  }

  /** The smoothing: how many points on each side. Unless a user chooses it, lines of fewer than 100 points are as they are. */
  get smoothing() {
    return this.smoothingOf(this.most);
  }

  smoothingOf(points) {
    return this.radius ?? (points >= MANY ? Math.round(this.most / 50) : 0);
  }

  get mostSmoothing() {
    return Math.max(2, Math.round(this.most / 10));
  }

  set({ by, radius, log }) {
    if (by && by !== this.by) {
      Object.assign(this, { by, zoom: null });
      this.place();
    }
    if (radius != null) this.radius = radius;
    if (log != null) this.log = log;
    this.each((panel) => panel.update());
    this.moved();
    this.onChange();
  }

  /** The columns of a number of a run: its values, smoothed if wanted, and the least and the largest of several seeds. */
  columns(i, name) {
    const { numbers, lows, highs } = this.courses[i];
    const over = (values) => column(this.places.length, this.positions[i], values);
    const values = numbers[name];
    const points = known(values).length;
    if (!points) return null;
    const radius = this.smoothingOf(points);
    const banded = known(lows[name]).length > 1;
    return {
      raw: over(values),
      smooth: radius ? over(smoothed(values, radius)) : null,
      low: banded ? over(lows[name]) : null,
      high: banded ? over(highs[name]) : null,
    };
  }

  get domain() {
    const [low, high] = this.zoom ?? [this.places[0] ?? 0, this.places.at(-1) ?? 1];
    return low === high ? [low - 1, high + 1] : [low, high];
  }

  zoomTo(range) {
    this.zoom = range;
    this.each((panel) => panel.rescale());
    this.onChange();
  }

  /** The run whose steps the cursor goes along where each has other places. */
  get leading() {
    return Math.max(0, this.courses.findIndex((_, i) => this.isShown(i)));
  }

  cursorAt(step) {
    const at = (i) => this.axes[i]?.[this.courses[i].steps.indexOf(step)];
    const place = this.by === "step" ? step : (at(this.leading) ?? this.courses.map((_, i) => at(i)).find((each) => each != null));
    return { step, place };
  }

  /** Move the cursor to a place on the axis, as a pointer does. */
  hover(place) {
    if (this.pinned || place == null || place === this.cursor?.place) return;
    const i = this.leading;
    const step = this.by === "step" ? place : this.courses[i].steps[Math.max(0, lastUntil(this.axes[i], place))];
    this.cursor = { step, place };
    this.moved();
  }

  /** Keep the cursor where it is, or let it go. */
  pin() {
    this.pinned = Boolean(this.cursor) && !this.pinned;
    this.moved();
  }

  /** Move the cursor to a step; null is back to the newest. */
  goTo(step) {
    this.cursor = step == null ? null : this.cursorAt(step);
    this.pinned &&= step != null;
    this.moved();
  }

  moved() {
    this.plots.classList.toggle("rl-pinned", this.pinned);
    this.each((panel) => panel.point());
    this.onMove();
  }

  /** The step of the cursor, or the newest. */
  get step() {
    return this.cursor?.step ?? this.steps.at(-1);
  }

  /** A number of a run at the cursor, or its newest: the value, and the step that has it. */
  valueAt(i, name) {
    const { steps, numbers } = this.courses[i];
    const axis = this.axes[i];
    const place = this.cursor?.place ?? Infinity;
    if (this.cursor && place > axis.at(-1)) return { value: null };
    let k = lastUntil(axis, place);
    while (k >= 0 && numbers[name]?.[k] == null) k -= 1;
    return k < 0 ? { value: null } : { value: numbers[name][k], step: steps[k], place: axis[k] };
  }

  walk(event) {
    if (event.target !== this.plots) return;
    const steps = this.by === "step" ? this.steps : this.courses[this.leading].steps;
    const here = steps.indexOf(this.step);
    const to = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: steps.length - 1 }[event.key];
    if (event.key === "Escape" && (this.zoom || this.cursor)) this.zoom ? this.zoomTo(null) : this.goTo(null);
    else if (to != null) this.goTo(steps[Math.min(steps.length - 1, Math.max(0, to))]);
    else return;
    event.preventDefault();
    event.stopPropagation(); // a notebook has its own use for these keys
    this.spoken.textContent = this.words();
  }

  words() {
    const [main] = this.panels.values();
    const values = this.courses.map(({ name }, i) => `${name} ${written(main.number, this.valueAt(i, main.names[0]).value)}`);
    return [this.cursor ? placeWords(this.by, this.cursor.place) : "newest", ...values].join(", ");
  }

  close() {
    this.resized.disconnect();
    this.themed();
    this.each((panel) => panel.close());
    this.sight.close();
  }
}

/** The elements of a parent; what stays in its place is not touched, which would end a drag in it. */
function fill(parent, elements) {
  if (elements.length !== parent.children.length || elements.some((each, i) => each !== parent.children[i])) parent.replaceChildren(...elements);
}
