// One row of the grid is current; others may be selected. Both are remembered by id, so sorting moves neither.

import { h } from "../kit/dom.js";

/**
 * The cursor of a grid. moved(): the current row or the selection is another.
 *
 * Arrow keys move it, with Shift they select; Space selects or unselects the current row, Control or Command A the page.
 */
export class Cursor {
  constructor(table, moved) {
    this.table = table;
    this.moved = moved;
    this.current = null;
    this.anchor = null;
    this.selected = new Set();
    this.offset = 0;
  }

  rows() {
    return this.table.getRows("active");
  }

  /** The current row, where it is on the page. */
  row() {
    return this.rows().find((row) => row.getData().id === this.current);
  }

  /** Make a row current if the page has any: the next keys are for a row that is visibly current. */
  settle() {
    const [first] = this.rows();
    if (first && !this.row()) this.to(first);
  }

  /** The rows of an edit: the selection, or else the current row. */
  meant() {
    if (this.selected.size) return [...this.selected];
    const row = this.row();
    return row ? [row.getData().id] : [];
  }

  move(by, extend = false) {
    const rows = this.rows();
    const at = rows.findIndex((row) => row.getData().id === this.current);
    const next = Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + by));
    if (rows[next]) this.to(rows[next], extend);
  }

  to(row, extend = false) {
    const before = this.current;
    this.current = row.getData().id;
    if (extend) this.reach(before);
    else this.anchor = null;
    this.table.scrollToRow(row, "nearest", false).catch(() => {});
    this.paint();
  }

  /** Select everything between where the selection began and the current row. */
  reach(before) {
    this.anchor ??= before ?? this.current;
    const ids = this.rows().map((row) => row.getData().id);
    const ends = [ids.indexOf(this.anchor), ids.indexOf(this.current)].sort((a, b) => a - b);
    this.selected = new Set(ids.slice(Math.max(0, ends[0]), ends[1] + 1));
  }

  toggle(id = this.current) {
    if (id == null) return;
    if (!this.selected.delete(id)) this.selected.add(id);
    this.paint();
  }

  selectPage() {
    this.selected = new Set(this.rows().map((row) => row.getData().id));
    this.paint();
  }

  clear() {
    this.selected.clear();
    this.anchor = null;
    this.paint();
  }

  paint() {
    if (!this.row()) this.table.element.removeAttribute("aria-activedescendant");
    for (const row of this.rows()) this.dress(row);
    this.moved();
  }

  /** Set the classes and the ARIA state of a row; Tabulator calls it for each row it draws. */
  dress(row) {
    const { id } = row.getData();
    const element = row.getElement();
    const current = id === this.current;
    element.id ||= `rl-row-${crypto.randomUUID?.() ?? Math.random()}`;
    element.classList.toggle("rl-current", current);
    element.classList.toggle("rl-selected", this.selected.has(id));
    element.setAttribute("aria-rowindex", this.offset + row.getPosition());
    element.setAttribute("aria-selected", String(this.selected.has(id)));
    if (current) this.table.element.setAttribute("aria-activedescendant", element.id);
  }
}

export const KEYS = [
  ["↑ ↓", "move"],
  ["0–9 . −", "type a reward for the current row, or for all that are selected"],
  ["Enter", "edit the reward; Enter again stores it and goes on to the next row"],
  ["Delete, Backspace", "take the reward away, also from all that are selected"],
  ["Shift ↑ ↓, Space, Ctrl A", "select several rows, one more, the whole page"],
  ["Escape", "leave an edit; unselect"],
  ["U, Ctrl Z", "undo the newest change, also of another user"],
  ["PageUp PageDown", "another page"],
  ["Tab, then ← →, Enter", "to the headers, another header, sort by it"],
  ["/", "filter"],
  ["O, or a tap", "open the current row: the conversation, and the history of its reward"],
];

export function keyTable() {
  const rows = KEYS.map(([keys, does]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, keys)), h("td", {}, does)));
  return h("details", { class: "rl-keys" }, h("summary", {}, "keys"), h("table", {}, h("tbody", {}, ...rows)));
}
