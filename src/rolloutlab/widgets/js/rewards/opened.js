// The conversation of a trajectory, below the grid.

import { earned, h, number } from "../kit/dom.js";

const SOON = 120;

export class Opened {
  constructor(kernel, status) {
    this.kernel = kernel;
    this.status = status;
    this.element = h("section", { class: "rl-conversation", "aria-label": "the current trajectory", hidden: true });
  }

  /** Open the conversation of a trajectory with the history of its reward, or close it. */
  async toggle(trajectory) {
    clearTimeout(this.soon);
    const closes = this.shows(trajectory);
    this.asked = null; // what is still to come would open it again
    if (closes) this.element.hidden = true;
    else if (await this.open(trajectory)) this.element.scrollIntoView({ block: "nearest" }); // it is below the grid
  }

  /** While it is open it is about the current row, soon after that has changed. */
  follow(trajectory) {
    clearTimeout(this.soon);
    if (trajectory && !this.element.hidden && !this.shows(trajectory)) this.soon = setTimeout(() => this.open(trajectory), SOON);
  }

  shows({ id }) {
    return !this.element.hidden && this.element.dataset.id === String(id);
  }

  async open({ id, name }) {
    const asked = (this.asked = {});
    let read;
    try {
      read = await this.kernel.ask("read", { name: id });
    } catch (error) {
      this.status.complain(error);
      return false;
    }
    if (asked !== this.asked) return false;
    this.element.replaceChildren(
      h("h4", {}, h("code", {}, name), ...Object.entries(read.components).map(([part, value]) => h("span", { class: "rl-chip" }, `${part} `, h("b", {}, number(value))))),
      ...(Object.keys(read.row).length ? [h("dl", { class: "rl-of-row" }, Object.entries(read.row).map(([column, value]) => [h("dt", {}, column), h("dd", { class: "rl-text", dir: "auto" }, value)]))] : []),
      ...read.turns.map(({ role, text, reasoning, reward }) =>
        h(
          "div",
          { class: "rl-turn" },
          h("div", {}, h("b", {}, role), earned(reward)),
          h(
            "div",
            {},
            reasoning && h("details", {}, h("summary", {}, "reasoning"), h("div", { class: "rl-text", dir: "auto" }, reasoning)),
            h("div", { class: "rl-text", dir: "auto" }, text),
          ),
        ),
      ),
      ...(read.failed.length ? [h("h5", {}, "a reward function failed on it"), ...read.failed.map((text) => h("div", { class: "rl-text", dir: "auto" }, text))] : []),
      ...(read.logs.length ? [h("h5", {}, "logs"), ...read.logs.map((text) => h("div", { class: "rl-text", dir: "auto" }, text))] : []),
      h("h5", {}, "its reward"),
      h("ol", {}, ...read.history.map((line) => h("li", {}, line))),
    );
    this.element.dataset.id = id;
    this.element.hidden = false;
    return true;
  }
}
