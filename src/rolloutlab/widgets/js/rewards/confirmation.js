// What setting the reward of many rows would change, asked before it does.

import { h, number } from "../kit/dom.js";

const MANY = 1000; // from here on the number has to be typed

export class Confirmation {
  constructor(view) {
    this.view = view;
    this.element = h("section", { class: "rl-confirmation", role: "alertdialog", "aria-label": "set rewards", hidden: true });
    this.element.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Escape") this.close();
    });
  }

  /** outlook: what `_outlook` of the view's Python part says. */
  open(outlook) {
    const { reward, rows, groups, before, after, by_hand: byHand } = outlook;
    const n = rows.toLocaleString("en");
    const set = h("button", { class: "rl-danger", disabled: rows > MANY, onClick: () => this.set(outlook) }, `Set ${n}`);
    const typed = rows > MANY && h("label", {}, `type ${rows} `, h("input", { size: 8, inputmode: "numeric", onInput: ({ target }) => (set.disabled = target.value.trim() !== String(rows)) }));
    const cancel = h("button", { onClick: () => this.close() }, "Cancel", h("kbd", {}, "Esc"));
    this.element.replaceChildren(
      h("p", {}, h("b", {}, `Set the reward of ${n} answer${rows === 1 ? "" : "s"} to ${number(reward)}?`)),
      h("p", {}, `In ${groups.toLocaleString("en")} group${groups === 1 ? "" : "s"}. Mean ${before == null ? "none" : number(before, 3)} → ${number(after, 3)}.${byHand ? ` ${byHand.toLocaleString("en")} given by hand ${byHand === 1 ? "is" : "are"} replaced.` : ""} One undo restores all.`),
      h("p", { class: "rl-row" }, typed, cancel, set),
    );
    this.element.hidden = false;
    cancel.focus();
  }

  close() {
    this.element.hidden = true;
  }

  async set(outlook) {
    this.close();
    await this.view.setAll(outlook);
  }
}
