// Sampled texts of the step at the cursor.

import { liveCells } from "../kit/cells.js";
import { grow, h } from "../kit/dom.js";

const KINDS = [["random", "random"], ["best", "best"], ["worst", "worst"], ["changed", "changed most"]];
const SOON = 150;
const SLOW = 300;

export class Texts {
  /** board: whose cursor it follows. say: of the status line. */
  constructor(kernel, board, line) {
    Object.assign(this, { kernel, board, line, kind: "random", place: 0, asked: 0, shown: "" });
    this.title = h("b", { class: "rl-stays" });
    this.slider = h("input", { type: "range", min: 0, step: 1, "aria-label": "step of the texts", oninput: ({ target }) => board.goTo(board.steps[Number(target.value)]) });
    this.kinds = KINDS.map(([kind, words]) => h("button", { type: "button", "aria-pressed": String(kind === this.kind), onclick: () => this.choose(kind) }, words));
    this.bar = h(
      "div",
      { class: "rl-toolbar rl-text-tools", role: "toolbar", "aria-label": "texts" },
      this.title,
      this.slider,
      h("span", { class: "rl-space" }),
      h("span", { class: "rl-choice", role: "group", "aria-label": "which texts" }, this.kinds),
      (this.back = h("button", { type: "button", "aria-label": "the text before", title: "the text before", disabled: true, onclick: () => this.turn(-1) }, "‹")),
      h("button", { type: "button", "aria-label": "next text", title: "next text", onclick: () => this.turn(1) }, "›"),
    );
    this.body = h("div", { class: "rl-text-body", role: "region", "aria-label": "texts of the step" });
    this.element = h("div", {}, this.bar, this.body);
  }

  /** Follow the cursor. */
  follow() {
    const { board, slider, title } = this;
    if (this.kernel.ended()) return; // the texts stay, and so does their step
    title.textContent = `Texts at step ${board.step}`;
    slider.max = board.steps.length - 1;
    slider.value = board.steps.indexOf(board.step);
    slider.setAttribute("aria-valuetext", `step ${board.step}`);
    this.ask(this.place);
  }

  choose(kind) {
    this.kind = kind;
    this.kinds.forEach((button, i) => button.setAttribute("aria-pressed", String(KINDS[i][0] === kind)));
    this.ask(0);
  }

  turn(by) {
    this.ask(Math.max(0, this.place + by));
  }

  /** The texts may be others, as the runs have gone on. */
  renew() {
    this.ask(this.place, true);
  }

  /** Ask for texts, soon: of several requests the last one counts. place: which of its kind. */
  ask(place, again = false) {
    this.place = place;
    this.step = this.board.step;
    this.back.disabled = !this.place;
    const wanted = JSON.stringify([this.step, this.kind, this.place]);
    if ((wanted === this.wanted && !again) || this.kernel.ended()) return;
    this.wanted = wanted;
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.fetch(), SOON);
  }

  async fetch() {
    const asked = (this.asked += 1);
    const slow = setTimeout(() => asked === this.asked && this.body.classList.add("rl-waits"), SLOW);
    try {
      const { texts } = await this.kernel.ask("texts", { step: this.step, kind: this.kind, place: this.place });
      if (asked === this.asked) this.show(texts);
    } catch (error) {
      if (asked === this.asked && !this.kernel.ended()) this.line.complain(error);
    } finally {
      clearTimeout(slow);
      if (asked === this.asked) this.body.classList.remove("rl-waits");
    }
  }

  show(texts) {
    const shown = JSON.stringify(texts);
    if (shown === this.shown) return;
    this.shown = shown;
    this.line.calm();
    this.body.replaceChildren(...(texts.length ? grow(texts) : [h("p", { class: "rl-foot" }, `no run sampled anything at step ${this.step}`)]));
    this.body.querySelectorAll("pre").forEach((each) => each.scrollHeight > each.clientHeight && each.setAttribute("tabindex", "0"));
    liveCells(this.body, (said) => this.line.say(said));
  }

  close() {
    clearTimeout(this.soon);
  }
}
