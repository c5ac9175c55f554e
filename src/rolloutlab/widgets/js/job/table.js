// The numbers behind the curves as a table, for screen readers and for reading.

import { h, number } from "../kit/dom.js";
import { length } from "./numbers.js";

const MOST = 200;

/** A table that is made when it is opened, and kept up to date while it is open. */
export function numbersTable(state) {
  const summary = h("summary", {}, "as table");
  const body = h("div", { class: "rl-scroll", tabindex: "0", role: "region", "aria-label": "numbers of the gradient steps" });
  const element = h("details", { class: "rl-numbers", ontoggle: () => update() }, summary, body);

  function update() {
    const steps = length(state.numbers);
    element.hidden = !steps;
    if (!element.open) return;
    const every = Math.ceil(steps / MOST);
    const names = Object.keys(state.numbers);
    const head = h("tr", {}, ["step", ...names].map((name) => h("th", { scope: "col" }, name)));
    const rows = [];
    for (let i = 0; i < steps; i += every) {
      const cells = names.map((name) => h("td", {}, number(state.numbers[name][i])));
      rows.push(h("tr", {}, h("th", { scope: "row" }, String(i + 1)), cells));
    }
    const caption = every > 1 ? h("caption", {}, `every ${every}th of ${steps} steps; job.metrics() has all`) : null;
    body.replaceChildren(h("table", {}, caption ?? [], h("thead", {}, head), h("tbody", {}, rows)));
  }
  return { element, update };
}
