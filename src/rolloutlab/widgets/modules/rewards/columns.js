// The columns of the rewards view: how each value looks, and how it is filtered.

import { h, number } from "../kit/dom.js";

const LEFT = "left";
const RIGHT = "right";

/** The columns for Tabulator. state.components: names of the parts of the reward; edited(cell): a reward was typed. */
export function columns(state, edited) {
  const parts = state.components.map((name) =>
    column(`component:${name}`, name, { hozAlign: RIGHT, width: Math.min(140, 44 + 8 * name.length), formatter: figure }, NUMBER),
  );
  return [
    column("name", "trajectory", { width: 124, formatter: code, frozen: true }, TEXT),
    column("reward", "reward", { hozAlign: RIGHT, width: 96, formatter: figure, ...editable(edited) }, NUMBER),
    column("advantage", "advantage", { width: 150, formatter: advantage }, oneOf(["trains", ...state.reasons])),
    column("completion", "completion", { minWidth: 160, widthGrow: 3, formatter: said }, TEXT),
    column("prompt", "prompt", { minWidth: 110, widthGrow: 2, formatter: said }, TEXT),
    ...parts,
    column("source", "source", { width: 112, formatter: source }, oneOf(state.sources)),
    column("tokens", "tokens", { hozAlign: RIGHT, width: 84, formatter: figure }, NUMBER),
    column("finish_reason", "finish", { width: 84, formatter: finish }, oneOf(state.finish_reasons)),
  ];
}

const TEXT = { placeholder: "contains…" };
const NUMBER = { placeholder: "> 0.5" };
const oneOf = (values) => ({ values });

function column(field, title, more, filter) {
  return {
    field,
    title,
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

function editable(edited) {
  return { editor: rewardEditor, editorParams: {}, editable: true, cellEdited: edited, cssClass: "rl-editable" };
}

/** A text field rather than a number field: what is no number is for the kernel to refuse, in words. */
function rewardEditor(cell, onRendered, success, cancel, { begun }) {
  const had = cell.getValue();
  const input = h("input", {
    class: "rl-reward-input",
    inputmode: "decimal",
    "aria-label": `reward of ${cell.getData().name}`,
    value: begun ?? (had == null ? "" : String(had)),
  });
  let over = false;
  const end = (keep, stay = true) => {
    if (over) return;
    over = true;
    if (stay) cell.getTable().element.focus({ preventScroll: true }); // or the notebook takes the next keys
    const typed = input.value.trim();
    if (keep && typed !== (had == null ? "" : String(had))) success(typed);
    else cancel();
  };
  onRendered(() => {
    input.focus({ preventScroll: true });
    if (begun == null) input.select();
  });
  input.addEventListener("blur", () => end(true, false));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === "Tab") end(true);
    else if (event.key === "Escape") end(false);
    else return event.stopPropagation(); // arrows and letters belong to the field
    event.preventDefault();
  });
  return input;
}

const figure = (cell) => document.createTextNode(number(cell.getValue()));
const code = (cell) => h("code", {}, cell.getValue());
const said = (cell) => h("span", { class: "rl-line", dir: "auto", title: cell.getValue() }, cell.getValue());

/** A bar from the middle, to the right for what training repeats, to the left for what it avoids. */
function advantage(cell) {
  const { advantage: value, reason, why } = cell.getData();
  if (reason) return h("span", { class: "rl-why", title: why }, reason.replaceAll("_", " "));
  const most = Math.max(1e-9, cell.getTable().rlLargest ?? Math.abs(value));
  const share = Math.min(1, Math.abs(value) / most) * 50;
  const side = value < 0 ? `right:50%` : `left:50%`;
  return h(
    "span",
    { class: "rl-advantage" },
    h("span", { class: "rl-track", "aria-hidden": "true" }, h("span", {
      class: `rl-bar ${value < 0 ? "rl-negative" : "rl-positive"}`,
      style: `${side};width:${share}%`,
    })),
    h("span", { class: "rl-figure" }, (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2)),
  );
}

/** Who gave the reward; a hand that disagrees with what a function or a judge had given stands out. */
function source(cell) {
  const { source: by, was } = cell.getData();
  if (by == null) return h("span", { class: "rl-dim" }, "no reward");
  if (was == null) return document.createTextNode(by);
  return h("span", { class: "rl-disagrees", title: `the function gave ${number(was)}` }, `${by}, was ${number(was)}`);
}

function finish(cell) {
  const value = cell.getValue();
  return value === "length" ? h("span", { class: "rl-cut", title: "cut off at the token limit" }, "cut off") : document.createTextNode(value ?? "");
}
