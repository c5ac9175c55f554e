// One or several runs: what differs, their numbers over common steps, and texts of each step.

import { liveCells } from "../kit/cells.js";
import { grow, h, statusLine } from "../kit/dom.js";
import { Board } from "./board.js";
import { numbersTable } from "./table.js";
import { Texts } from "./texts.js";
import { Tools } from "./tools.js";

const EVERY = 3000;

/** The view of a state {version, top, courses, numbers, best}, kept up to date by asking the kernel. */
export class RunView {
  constructor(kernel, state) {
    this.kernel = kernel;
    this.state = state;
    this.line = statusLine();
    this.above = h("div", { class: "rl-above" });
    this.next = h("div");
    this.board = new Board({ onMove: () => this.texts.follow(), onChange: () => this.tools.update() });
    this.table = numbersTable();
    this.tools = new Tools(this.board, this.table);
    this.texts = new Texts(kernel, this.board, this.line);
    this.element = h("section", { class: "rl-runs", "aria-label": "runs" }, this.above, this.line.element, this.tools.element, this.table.element, this.board.element, this.texts.element, this.next);
    this.said = "";
    kernel.onSilence((silent) => this.silence(silent));
  }

  /** Show it in a page, and begin to look for news. */
  open() {
    this.show(this.state);
    this.look = setInterval(() => this.renew(), EVERY);
  }

  show(state) {
    this.state = state;
    const said = JSON.stringify(state.top);
    if (said !== this.said) this.showTop(state.top);
    this.said = said;
    this.board.update(state);
    this.table.update(state);
  }

  showTop({ above, next }) {
    const opened = [...this.above.querySelectorAll("details[open]")].map(({ textContent }) => textContent);
    this.above.replaceChildren(...grow(above));
    this.above.querySelectorAll("details").forEach((each) => (each.open = opened.includes(each.textContent)));
    this.next.replaceChildren(...grow(next));
    for (const part of [this.above, this.next]) liveCells(part, (text) => this.line.say(text));
  }

  /** Ask for news, while the page is seen. */
  async renew() {
    if (this.kernel.ended()) return clearInterval(this.look);
    if (document.hidden || this.asking) return;
    this.asking = true;
    try {
      const state = await this.kernel.ask("renewed", { version: this.state.version });
      if (state) {
        this.show(state);
        this.texts.renew();
      }
    } catch (error) {
      if (!this.kernel.ended()) this.line.complain(error);
    }
    this.asking = false;
  }

  silence(silent) {
    if (silent) this.line.say("the kernel does not answer: it is busy, or was restarted");
    else if (this.waited) this.line.say("");
    this.waited = silent;
  }

  close() {
    clearInterval(this.look);
    this.texts.close();
    this.board.close();
  }
}
