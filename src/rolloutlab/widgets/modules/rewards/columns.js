// The columns of the rewards view: how they are filtered. How their values look is in cells.js.

import { h } from "../kit/dom.js";
import { advantage, component, figure, finish, name, said, source } from "./cells.js";

const LEFT = "left";
const RIGHT = "right";

/** The columns for Tabulator. state.components: names of the parts of the reward; largest(): the largest |advantage|. */
export function columns(state, largest) {
  const parts = state.components.map((part) =>
    column(`component:${part}`, part, { hozAlign: RIGHT, width: Math.min(140, 44 + 8 * part.length) }, component(part), NUMBER),
  );
  return [
    column("name", "trajectory", { width: 124, frozen: true }, name, TEXT),
    column("reward", "reward", { hozAlign: RIGHT, width: 96, cssClass: "rl-editable" }, figure("reward"), NUMBER),
    column("advantage", "advantage", { width: 150 }, advantage(largest), oneOf(["trains", ...state.reasons])),
    column("completion", "completion", { minWidth: 160, widthGrow: 3 }, said("completion"), TEXT),
    column("prompt", "prompt", { minWidth: 110, widthGrow: 2 }, said("prompt"), TEXT),
    ...parts,
    column("source", "source", { width: 112 }, source, oneOf(state.sources)),
    column("tokens", "tokens", { hozAlign: RIGHT, width: 84 }, figure("tokens"), NUMBER),
    column("finish_reason", "finish", { width: 84 }, finish, oneOf(state.finish_reasons)),
  ];
}

const TEXT = { placeholder: "contains…" };
const NUMBER = { placeholder: "> 0.5" };
const oneOf = (values) => ({ values });

function column(field, title, more, cell, filter) {
  return {
    field,
    title,
    formatter: (shown) => cell.draw(shown.getData()),
    draw: cell.draw,
    look: cell.key,
    titleFormatter: () => document.createTextNode(title), // a title as text would become markup
    vertAlign: "middle",
    headerHozAlign: more.hozAlign ?? LEFT,
    headerFilterPlaceholder: filter.placeholder ?? "",
    headerFilter: (_cell, _rendered, success) => filterInput(title, filter, success),
    headerFilterLiveFilter: false,
    headerFilterFunc: () => true, // the kernel filters
    ...more,
  };
}

function filterInput(title, { placeholder, values }, success) {
  const told = (event) => success(event.target.value);
  const label = `filter by ${title}`;
  if (!values) {
    const input = h("input", { type: "search", placeholder, "aria-label": label, onChange: told, onSearch: told });
    input.addEventListener("keydown", (event) => event.key === "Enter" && told(event));
    return input;
  }
  const options = values.map((value) => h("option", { value }, value));
  return h("select", { "aria-label": label, onChange: told }, h("option", { value: "" }, "all"), ...options);
}
