// The columns of the rewards view: how they are filtered. Their cells are in cells.js.

import { h } from "../kit/dom.js";
import { advantage, component, end, figure, finish, name, plainText, source } from "./cells.js";

const RIGHT = { hozAlign: "right", headerHozAlign: "right", cssClass: "rl-number" };

/**
 * The columns: for each its `definition` for Tabulator, and the `cell` that draws its values.
 *
 * state.components: names of the parts of the reward; largest(): the largest |advantage|.
 */
export function columns(state, largest) {
  const episodes = state.page.rows.some(({ episode_end }) => episode_end);
  const failed = state.page.rows.some(({ error }) => error); // with the message of an error in place of the advantage
  return [
    column("name", "trajectory", { width: 120, frozen: true }, name, TEXT),
    column("reward", "reward", { ...RIGHT, width: 84, cssClass: "rl-number rl-editable" }, figure("reward"), NUMBER),
    column("advantage", "advantage", { width: failed ? 240 : 150 }, advantage(largest), { values: Object.entries(state.reasons) }),
    ...(episodes ? [column("episode_end", "ended", { width: 96 }, end, oneOf(state.episode_ends))] : []),
    ...state.row_columns.map((name) => column(`row:${name}`, name, { width: Math.max(90, 40 + 8 * name.length) }, plainText(`row:${name}`), TEXT)),
    column("completion", "completion", { minWidth: 160, widthGrow: 3 }, plainText("completion"), TEXT),
    column("prompt", "prompt", { minWidth: 110, widthGrow: 2 }, plainText("prompt"), TEXT),
    ...state.components.map(part),
    column("source", "source", { width: 124 }, source, oneOf(state.sources)),
    column("tokens", "tokens", { ...RIGHT, width: 92 }, figure("tokens"), NUMBER),
    ...(episodes ? [] : [column("finish_reason", "finish", { width: 84 }, finish, oneOf(state.finish_reasons))]),
  ];
}

/** The column of one part of the reward. */
export function part(name) {
  const width = Math.max(76, Math.min(160, 40 + 8 * name.length));
  return column(`component:${name}`, name, { ...RIGHT, width }, component(name), NUMBER);
}

const TEXT = { placeholder: "contains…" };
const NUMBER = { placeholder: "> 0.5" };
const oneOf = (values) => ({ values: values.map((value) => [value, value.replaceAll("_", " ")]) });
const PAUSE = 150;
const BEGUN = /^\s*([<>]=?|!=?|==?)?\s*[-+]?\.?\s*$|\.\.$/; // a condition of which the number is still to come

function column(field, title, more, cell, filter) {
  const definition = {
    field,
    title,
    formatter: (shown) => cell.draw(shown.getData()),
    titleFormatter: () => h("span", { title }, title), // a title as text would become markup
    vertAlign: "middle",
    headerFilterPlaceholder: filter.placeholder ?? "",
    headerFilter: (_cell, _rendered, success) => filterInput(title, filter, success),
    headerFilterLiveFilter: false,
    headerFilterFunc: () => true, // the kernel filters
    ...more,
  };
  return { definition, cell };
}

function filterInput(title, { placeholder, values }, success) {
  const apply = (event) => success(event.target.value);
  const label = `filter by ${title}`;
  if (!values) {
    let pause;
    const soon = (event) => {
      clearTimeout(pause);
      const { value } = event.target;
      if (placeholder !== NUMBER.placeholder || !value || !BEGUN.test(value)) pause = setTimeout(apply, PAUSE, event);
    };
    const now = (event) => (clearTimeout(pause), apply(event));
    const input = h("input", { type: "search", placeholder, "aria-label": label, onInput: soon, onSearch: now });
    input.addEventListener("keydown", (event) => event.key === "Enter" && now(event));
    return input;
  }
  const options = values.map(([value, words]) => h("option", { value }, words));
  return h("select", { "aria-label": label, onChange: apply }, h("option", { value: "" }, "all"), ...options);
}
