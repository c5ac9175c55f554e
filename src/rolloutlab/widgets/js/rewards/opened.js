// The conversation of a trajectory, below the grid.

import { earned, h } from "../kit/dom.js";

export class Opened {
  constructor(kernel, status) {
    this.kernel = kernel;
    this.status = status;
    this.element = h("section", { class: "rl-opened", "aria-label": "the current trajectory", hidden: true });
  }

  /** Open the conversation of a trajectory with the history of its reward, or close it. */
  async toggle({ id, name }) {
    if (!this.element.hidden && this.element.dataset.id === String(id)) {
      this.element.hidden = true;
      return;
    }
    let read;
    try {
      read = await this.kernel.ask("read", { name: id });
    } catch (error) {
      this.status.complain(error);
      return;
    }
    this.element.replaceChildren(
      h("h4", {}, h("code", {}, name)),
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
  }
}
