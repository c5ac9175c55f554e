// The rewards view: a page of trajectories at a time, edited by keyboard, with advantages recomputed by the kernel.

import { dressGrid, dressHead, pagedTable } from "./rewards/grid.js"; // first: its styles are overruled by ours
import "./kit/theme.css";
import "./rewards.css";
import { frame, h, number, refusal, statusLine } from "./kit/dom.js";
import { connect } from "./kit/kernel.js";
import { Sight } from "./kit/sight.js";
import { columns, part } from "./rewards/columns.js";
import { editReward } from "./rewards/editing.js";
import { Cursor, keyTable } from "./rewards/cursor.js";
import { Opened } from "./rewards/opened.js";

const WAITING = "waiting for the kernel: it is busy, or was restarted (run the cell again)";
const NO_ROW = { message: "no row is chosen", hint: "click one, or select several with Shift and the arrow keys" };
const orderOf = ({ sort, filter }) => JSON.stringify([sort, filter]);
const plural = (n, noun) => `${n.toLocaleString()} ${n === 1 ? noun : noun.endsWith("y") ? `${noun.slice(0, -1)}ies` : `${noun}s`}`;

export default {
  render({ model, el }) {
    const state = model.get("state");
    if (state.refused) return el.append(refusal(state.refused));
    const kernel = connect(model, el);
    const view = new RewardsView(kernel, state);
    el.append(view.element);
    view.begin();
    return () => {
      view.sight.close();
      view.table.destroy();
      kernel.close();
    };
  },
};

class RewardsView {
  constructor(kernel, state) {
    this.kernel = kernel;
    this.first = this.answer = state.page;
    this.status = statusLine();
    this.summary = h("span", { class: "rl-dim rl-summary" });
    this.chosen = h("span", { class: "rl-dim rl-chosen" });
    this.bulk = h("input", { size: 6, inputmode: "decimal", placeholder: "reward", "aria-label": "reward to set" });
    this.all = h("button", { onClick: () => this.setAll() });
    this.grid = h("div", { class: "rl-grid", tabindex: 0 });
    this.opened = new Opened(this.kernel, this.status);
    this.element = frame("rl-rewards", this.head(state), this.tools(), this.grid, this.status.element, this.opened.element, keyTable());
    this.state = state;
    this.columns = columns(state, () => this.largest);
    this.sight = new Sight();
    this.tell(state.summary);
  }

  /** Make the grid, once its element is on the page: Tabulator measures it. */
  begin() {
    this.table = pagedTable(this.grid, {
      columns: this.columns.map(({ definition }) => definition),
      total: this.answer.total,
      fetch: (asked) => this.fetch(asked),
      dress: (row) => this.cursor.dress(row),
    });
    this.cursor = new Cursor(this.table, () => this.tellChosen());
    this.table.on("cellDblClick", (_event, cell) => cell.getField() === "reward" && this.edit());
    this.table.on("rowClick", (event, row) => this.clicked(event, row));
    this.table.on("dataLoadError", (error) => this.status.complain(error));
    this.table.on("tableBuilt", () => dressGrid(this.table, `rewards of ${this.state.title}`));
    if (this.state.summary.trainable == null) this.table.on("tableBuilt", () => requestAnimationFrame(() => this.reload()));
    this.table.on("dataProcessed", () => this.arrived());
    this.grid.addEventListener("focus", () => this.cursor.settle());
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.sight.watch(this);
    this.kernel.on("changed", ({ origin }) => origin !== this.kernel.id && this.reload());
    this.kernel.onSilence((late) => (late || this.status.element.textContent === WAITING) && this.status.say(late ? WAITING : ""));
  }

  head({ title }) {
    this.title = h("strong", {}, title);
    return h("header", { class: "rl-head" }, this.title, this.summary);
  }

  tools() {
    const set = h("button", { onClick: () => this.setBulk() }, "Set");
    this.bulk.addEventListener("keydown", (event) => event.key === "Enter" && this.setBulk());
    return h(
      "div",
      { class: "rl-tools", role: "toolbar", "aria-label": "rewards" },
      this.chosen,
      this.bulk,
      set,
      this.all,
      h("button", { onClick: () => this.undo() }, "Undo"),
      h("button", { onClick: () => this.unfilter() }, "Clear filters"),
    );
  }

  /** A page, as Tabulator needs it; the first one came with the state. After an error the old rows stay. */
  async fetch({ page, size, sort = [], filter = [] }) {
    const asked = {
      offset: (page - 1) * size,
      size,
      sort: sort.map(({ field, dir }) => [field, dir]),
      filter: Object.fromEntries(filter.map(({ field, value }) => [field, value])),
    };
    const before = this.shown;
    try {
      const answer = this.first ?? (await this.kernel.ask("page", asked));
      await this.typed; // other rows would take away the field that is typed into
      this.answer = answer;
      this.shown = asked;
      this.first = null;
      this.status.calm();
      if (before && orderOf(before) !== orderOf(asked)) this.cursor.clear(); // an edit must not hit rows that are not on the page
    } catch (error) {
      this.status.complain(error);
    }
    const { rows, filtered, summary } = this.answer;
    this.tell(summary);
    return { data: rows, last_page: Math.max(1, Math.ceil(filtered / size)), last_row: filtered };
  }

  /** Rows were drawn or changed. A component that is new since the grid was made becomes a column. */
  async arrived() {
    this.title.textContent = this.answer.title;
    const known = new Set(this.columns.map(({ definition }) => definition.field));
    const more = this.answer.components.map(part).filter(({ definition }) => !known.has(definition.field));
    this.columns.push(...more);
    for (const { definition } of more) dressHead(this.table, await this.table.addColumn(definition, true, "source"));
    const { filtered, total } = this.answer;
    this.all.textContent = filtered < total ? `Set the ${filtered.toLocaleString()} that fit` : `Set all ${total.toLocaleString()}`;
    this.all.disabled = !filtered;
    this.grid.setAttribute("aria-rowcount", filtered);
    this.cursor.offset = this.answer.offset;
    if (document.activeElement === this.grid) this.cursor.settle();
    this.cursor.paint();
  }

  seen(near) {
    this.near = near;
    if (this.stale) this.reload();
  }

  /** Fetch the page again, without scrolling: once it is visible, and no reward is being typed. */
  async reload() {
    this.stale = !this.near || this.editing();
    if (this.stale) return;
    try {
      const answer = await this.kernel.ask("page", this.shown);
      const same = answer.rows.map(({ id }) => id).join() === this.ids().join();
      if (!same) return this.table.setPage(this.table.getPage());
      this.answer = answer;
      this.take(answer);
      await this.arrived();
    } catch (error) {
      this.status.complain(error);
    }
  }

  ids() {
    return this.answer.rows.map(({ id }) => id);
  }

  editing() {
    return Boolean(this.grid.querySelector(".rl-reward-input"));
  }

  /** Have the kernel change rewards, and show the result or the error. */
  async change(call, args = {}) {
    try {
      const shown = { ...this.shown, ids: this.ids(), origin: this.kernel.id };
      const answer = await this.kernel.ask(call, { ...args, shown });
      this.take(answer);
      this.status.say(answer.message);
    } catch (error) {
      this.status.complain(error);
    }
  }

  set(names, reward) {
    return this.change("set", { names, reward });
  }

  /** Take the rewards of the selected rows away, or that of the current one. */
  clear() {
    const names = this.cursor.meant();
    return names.length ? this.change("clear", { names }) : this.status.complain(NO_ROW);
  }

  setBulk() {
    const names = this.cursor.meant();
    if (!names.length) this.status.complain(NO_ROW);
    else this.set(names, this.bulk.value);
  }

  /** As many as the button says. */
  setAll() {
    return this.change("set_all", { reward: this.bulk.value, rows: this.answer.filtered });
  }

  undo() {
    return this.change("undo");
  }

  take({ rows, summary }) {
    this.tell(summary);
    for (const row of rows) this.repaint(row);
  }

  /** Draw the changed cells of a row on the page; most advantages change invisibly little. */
  repaint(now) {
    const row = this.table.getRow(now.id);
    if (!row) return;
    const data = row.getData();
    const before = this.columns.map(({ cell }) => cell.key(data));
    for (const field of Object.keys(data)) if (/^component:|^error$|^place$/.test(field)) delete data[field]; // it may be gone
    Object.assign(data, now);
    this.columns.forEach(({ definition, cell }, i) => {
      if (cell.key(data) === before[i]) return;
      const element = row.getCell(definition.field).getElement();
      if (!element.querySelector(".rl-reward-input")) element.replaceChildren(cell.draw(data)); // else when that is done
    });
  }

  tell(summary) {
    this.largest = summary.largest;
    const { scored, trajectories, trainable, groups, trainable_groups: training, tokens, mean_reward: mean } = summary;
    const parts = [
      `${plural(scored, "reward")} of ${trajectories.toLocaleString()}`,
      mean != null && `mean ${number(mean, 3)}`,
      trainable == null
        ? "reading what would train…"
        : `${plural(trainable, "trajectory")} will train: ${plural(tokens, "token")} in ${training.toLocaleString()} of ${plural(groups, "group")}${summary.collections > 1 ? `, in one job of these ${summary.collections} collections` : ""}`,
    ];
    this.summary.textContent = parts.filter(Boolean).join(" · ");
  }

  tellChosen() {
    const { selected } = this.cursor;
    const away = selected.size - this.cursor.rows().filter((row) => selected.has(row.getData().id)).length;
    const where = away ? ` (${away.toLocaleString()} elsewhere)` : "";
    this.chosen.textContent = selected.size ? `${plural(selected.size, "row")} selected${where}` : (this.cursor.row()?.getData().name ?? "no row chosen");
  }

  unfilter() {
    this.table.modules.sort.clear(); // without asking for a page, as the next does
    this.table.clearHeaderFilter();
  }

  clicked(event, row) {
    if (event.metaKey || event.ctrlKey) this.cursor.toggle(row.getData().id);
    this.cursor.to(row, event.shiftKey);
    if (!event.target.closest("input")) this.grid.focus({ preventScroll: true });
  }

  /** Begin to edit the current row; what was typed first is there already. */
  edit(begun) {
    const row = this.cursor.row();
    if (!row || this.kernel.ended()) return;
    const data = row.getData();
    const names = this.cursor.selected.has(data.id) ? [...this.cursor.selected] : [data.id];
    let over;
    this.typed = new Promise((resolve) => (over = resolve));
    this.table.blockRedraw(); // a grid that changes its width puts every row in anew, and the field would lose its keys
    const element = row.getCell("reward").getElement();
    const { cell } = this.columns.find(({ definition }) => definition.field === "reward");
    editReward(element, {
      label: names.length === 1 ? `reward of ${data.name}` : `reward of ${plural(names.length, "row")}`,
      had: data.reward == null ? "" : String(data.reward),
      begun,
      draw: () => element.replaceChildren(cell.draw(data)),
      refuse: (typed) => this.set(names, typed),
      done: (typed, by) => {
        if (typed != null) this.set(names, typed); // first, as the kernel works on it meanwhile
        if (by !== "click") this.grid.focus({ preventScroll: true }); // or the notebook takes the next keys
        if (by === "key" && names.length === 1) this.cursor.move(1);
        over();
        this.table.restoreRedraw();
        if (this.stale) this.reload();
      },
    });
  }

  key(event) {
    if (event.target !== this.grid && event.target.closest("input, select, button, .tabulator-header")) return;
    const act = this.action(event);
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  action(event) {
    const { key, shiftKey } = event;
    const held = event.ctrlKey || event.metaKey;
    if (held) return { a: () => this.cursor.selectPage(), z: () => this.undo() }[key.toLowerCase()];
    if (/^[-+0-9.]$/.test(key)) return () => this.edit(key);
    return {
      ArrowDown: () => this.cursor.move(1, shiftKey),
      ArrowUp: () => this.cursor.move(-1, shiftKey),
      Enter: () => this.edit(),
      F2: () => this.edit(),
      " ": () => this.cursor.toggle(),
      Escape: () => this.cursor.clear(),
      u: () => this.undo(),
      Delete: () => this.clear(),
      Backspace: () => this.clear(),
      PageDown: () => this.turn(1),
      PageUp: () => this.turn(-1),
      o: () => this.open(),
    }[key];
  }

  turn(by) {
    const page = this.table.getPage() + by;
    if (page >= 1 && page <= this.table.getPageMax()) this.table.setPage(page);
  }

  /** Open the conversation of the current trajectory, or close it. */
  open() {
    const row = this.cursor.row();
    if (row) this.opened.toggle(row.getData());
  }
}
