// The toolbar above the curves: the axis, smoothing, logarithms, panels, the table, CSV.

import { h } from "../kit/dom.js";
import { csv } from "./series.js";

const AXES = ["step", "tokens", "time"];

export class Tools {
  constructor(board, table) {
    this.board = board;
    this.axes = AXES.map((by) => h("button", { type: "button", onclick: () => board.set({ by }) }, by));
    this.slider = h("input", { type: "range", min: 0, step: 1, "aria-label": "smoothing", oninput: ({ target }) => board.set({ radius: Number(target.value) }) });
    this.says = h("span", { class: "rl-dim" });
    this.log = h("button", { type: "button", title: "logarithms, where all values are above 0", onclick: () => board.set({ log: !board.log }) }, "Log");
    this.list = h("div", { class: "rl-panels", role: "group", "aria-label": "open panels", hidden: true });
    this.whole = h("button", { type: "button", hidden: true, title: "double click in a curve does the same", onclick: () => board.zoomTo(null) }, "Whole range");
    const panels = h("button", { type: "button", "aria-expanded": "false", onclick: () => this.toggle(panels) }, "Panels");
    const numbers = h("button", { type: "button", "aria-expanded": "false", onclick: () => numbers.setAttribute("aria-expanded", String(table.toggle())) }, "Table");
    this.bar = h(
      "div",
      { class: "rl-toolbar", role: "toolbar", "aria-label": "curves" },
      h("span", { class: "rl-dim" }, "by"),
      h("span", { class: "rl-choice", role: "group", "aria-label": "horizontal axis" }, this.axes),
      (this.smoothing = h("label", { class: "rl-smoothing" }, h("span", { class: "rl-dim" }, "smoothing"), this.slider, this.says)),
      h("span", { class: "rl-space" }),
      this.whole,
      this.log,
      panels,
      numbers,
      h("button", { type: "button", title: "all numbers of these runs as a file", onclick: () => this.save() }, "CSV"),
    );
    this.element = h("div", {}, this.bar, this.list);
  }

  /** Show what is chosen. */
  update() {
    const { board } = this;
    this.axes.forEach((button, i) => {
      button.setAttribute("aria-pressed", String(AXES[i] === board.by));
      button.disabled = AXES[i] === "tokens" && !board.hasTokens;
      button.title = button.disabled ? "not known of every run" : { tokens: "tokens sampled until then", time: "since the first job" }[AXES[i]] ?? "";
    });
    this.slider.max = board.mostSmoothing;
    this.slider.value = board.smoothing;
    this.smoothing.hidden = board.most < 3;
    const points = board.smoothing ? `${2 * board.smoothing + 1} points` : "off";
    this.says.textContent = points;
    this.slider.setAttribute("aria-valuetext", board.smoothing ? `mean of ${points}` : "off");
    this.smoothing.title = board.radius == null && board.smoothing ? "of lines with at least 100 points" : "";
    this.log.setAttribute("aria-pressed", String(board.log));
    this.whole.hidden = !board.zoom;
    if (!this.list.hidden) this.showList();
  }

  toggle(button) {
    this.list.hidden = !this.list.hidden;
    button.setAttribute("aria-expanded", String(!this.list.hidden));
    this.showList();
  }

  showList() {
    const { board } = this;
    const names = board.small.map(({ name }) => name).join();
    // a box that has the focus stays
    if (this.listed === names) {
      [...this.list.querySelectorAll("input")].forEach((box, i) => (box.checked = board.isOpen(board.small[i].name, i)));
      return;
    }
    this.listed = names;
    const box = ({ name, title }, i) => h("label", {}, h("input", { type: "checkbox", checked: board.isOpen(name, i), onchange: ({ target }) => board.fold(name, !target.checked) }), ` ${title}`);
    this.list.replaceChildren(...board.small.map(box));
  }

  save() {
    const { courses, numbers } = this.board;
    const url = URL.createObjectURL(new Blob([csv(courses, numbers)], { type: "text/csv" }));
    h("a", { href: url, download: `${fileName(courses)}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }
}

function fileName(courses) {
  return courses.length === 1 ? courses[0].name.replace(/[^\w.-]+/g, "-") : `${courses.length}-runs`;
}
