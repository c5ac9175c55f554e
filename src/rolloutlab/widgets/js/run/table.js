// All numbers of a run as a table, for screen readers and for reading.

import { h, number } from "../kit/dom.js";
import { known } from "./series.js";

/** A table that is made while it is open: of one run at a time. */
export function numbersTable() {
  const choice = h("select", { "aria-label": "run", onchange: () => draw() });
  const body = h("div", { class: "rl-scroll", tabindex: "0", role: "region", "aria-label": "all numbers" });
  const element = h("div", { class: "rl-numbers", hidden: true }, choice, body);
  let state = { courses: [], numbers: [] };

  function draw() {
    if (element.hidden) return;
    const course = state.courses[choice.selectedIndex] ?? state.courses[0];
    const names = state.numbers.filter(({ name }) => known(course.numbers[name]).length);
    const banded = (name) => course.lows[name];
    const cell = ({ name }, i) => {
      const value = course.numbers[name][i];
      const [low, high] = banded(name) ? [course.lows[name][i], course.highs[name][i]] : [];
      return h("td", {}, number(value), low == null ? [] : h("span", { class: "rl-dim" }, ` ${number(low)} to ${number(high)}`));
    };
    const rows = course.steps.map((step, i) => h("tr", {}, h("th", { scope: "row" }, String(step)), h("td", {}, number(course.hours[i])), names.map((each) => cell(each, i))));
    const head = h("tr", {}, ["step", "hours", ...names.map(({ title, unit }) => (unit === "share" ? `${title}, share` : title))].map((title) => h("th", { scope: "col" }, title)));
    const caption = h("caption", { class: "rl-unseen" }, `numbers of ${course.name}`);
    body.replaceChildren(h("table", {}, caption, h("thead", {}, head), h("tbody", {}, rows)));
  }

  return {
    element,
    toggle() {
      element.hidden = !element.hidden;
      draw();
      return !element.hidden;
    },
    update(fresh) {
      state = fresh;
      const chosen = choice.value;
      choice.replaceChildren(...state.courses.map(({ name }) => h("option", { value: name, selected: name === chosen }, name)));
      choice.hidden = state.courses.length < 2;
      draw();
    },
  };
}
