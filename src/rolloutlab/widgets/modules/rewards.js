// The rewards view: a page of trajectories at a time, edited by keyboard, answered with recomputed advantages.

import "tabulator-tables/dist/css/tabulator_simple.css";
import {
  AjaxModule,
  EditModule,
  FilterModule,
  FormatModule,
  FrozenColumnsModule,
  InteractionModule,
  PageModule,
  ResizeColumnsModule,
  ResizeTableModule,
  SortModule,
  Tabulator,
} from "tabulator-tables";
import "./kit/theme.css";
import "./rewards.css";
import { frame, h, number, statusLine } from "./kit/dom.js";
import { connect } from "./kit/kernel.js";
import { columns } from "./rewards/columns.js";
import { editReward } from "./rewards/editing.js";
import { Cursor, keyTable } from "./rewards/cursor.js";

Tabulator.registerModule([
  AjaxModule,
  EditModule,
  FilterModule,
  FormatModule,
  FrozenColumnsModule,
  InteractionModule,
  PageModule,
  ResizeColumnsModule,
  ResizeTableModule,
  SortModule,
]);

const PAGE = 100;
const plural = (n, noun) => `${n.toLocaleString()} ${n === 1 ? noun : noun.endsWith("y") ? `${noun.slice(0, -1)}ies` : `${noun}s`}`;

export default {
  render({ model, el }) {
    const kernel = connect(model);
    const view = new RewardsView(kernel, model.get("state"));
    el.append(view.element);
    view.begin();
    return () => {
      view.table.destroy();
      kernel.close();
    };
  },
};

class RewardsView {
  constructor(kernel, state) {
    this.kernel = kernel;
    this.first = state.page;
    this.status = statusLine();
    this.summary = h("span", { class: "rl-dim rl-summary" });
    this.chosen = h("span", { class: "rl-dim" });
    this.bulk = h("input", { size: 6, inputmode: "decimal", placeholder: "reward", "aria-label": "reward for the selected rows" });
    this.grid = h("div", { class: "rl-grid", tabindex: 0 });
    this.opened = h("section", { class: "rl-opened", "aria-label": "the current trajectory", hidden: true });
    this.element = frame("rl-rewards", this.head(state), this.tools(), this.grid, this.status.element, this.opened, keyTable());
    this.state = state;
    this.columns = columns(state, () => this.largest);
    this.tell(state.summary);
  }

  /** Make the grid, once its element is on the page: Tabulator measures it. */
  begin() {
    this.table = new Tabulator(this.grid, {
      index: "name",
      columns: this.columns,
      nestedFieldSeparator: false,
      height: "min(60vh, 460px)",
      layout: "fitColumns",
      rowHeight: 28,
      placeholder: () => h("span", { class: "rl-dim" }, "no trajectory fits the filters"),
      headerSortElement: () => "",
      pagination: true,
      paginationMode: "remote",
      paginationSize: PAGE,
      paginationSizeSelector: [25, 100, 500],
      paginationCounter: "rows",
      sortMode: "remote",
      filterMode: "remote",
      ajaxURL: "kernel",
      ajaxRequestFunc: (_url, _config, asked) => this.fetch(asked),
      dataLoader: false,
      rowFormatter: (row) => this.cursor.dress(row),
    });
    this.cursor = new Cursor(this.table, () => this.tellChosen());
    this.table.on("cellDblClick", (_event, cell) => cell.getField() === "reward" && this.edit());
    this.table.on("rowClick", (event, row) => this.clicked(event, row));
    this.table.on("dataLoadError", (error) => this.status.complain(error));
    this.table.on("tableBuilt", () => this.dressGrid());
    if (this.state.summary.trainable == null) this.table.on("tableBuilt", () => requestAnimationFrame(() => this.complete()));
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.kernel.on("changed", () => this.reload());
    this.kernel.onSilence((late) => late && this.status.say("waiting for the kernel: it is busy, or was restarted (run the cell again)"));
  }

  head({ title }) {
    return h("header", { class: "rl-head" }, h("strong", {}, title), this.summary);
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
      h("button", { onClick: () => this.undo() }, "Undo"),
      h("button", { onClick: () => this.unfilter() }, "Clear filters"),
    );
  }

  /** What Tabulator leaves to be said for those who do not see the grid, and sorting by keyboard. */
  dressGrid() {
    this.grid.setAttribute("aria-label", `rewards of ${this.state.title}`);
    this.grid.setAttribute("aria-multiselectable", "true");
    this.grid.querySelector(".tabulator-tableholder").tabIndex = -1; // the grid itself has the focus
    for (const column of this.table.getColumns()) {
      const head = column.getElement();
      head.tabIndex = 0;
      head.addEventListener("keydown", (event) => {
        if (event.target !== head || (event.key !== "Enter" && event.key !== " ")) return;
        event.preventDefault();
        event.stopPropagation();
        this.table.setSort(column.getField(), head.getAttribute("aria-sort") === "ascending" ? "desc" : "asc");
      });
    }
  }

  /** A page, as Tabulator wants it; the very first came with the state. */
  async fetch({ page, size, sort = [], filter = [] }) {
    const asked = {
      offset: (page - 1) * size,
      size,
      sort: sort.map(({ field, dir }) => [field, dir]),
      filter: Object.fromEntries(filter.map(({ field, value }) => [field, value])),
    };
    this.shown = asked;
    const answer = this.first ?? (await this.kernel.ask("page", asked));
    this.first = null;
    this.tell(answer.summary);
    return { data: answer.rows, last_page: Math.max(1, Math.ceil(answer.filtered / size)), last_row: answer.filtered };
  }

  /** Ask for the first page again, which came before all was read. */
  async complete() {
    try {
      this.take(await this.kernel.ask("page", this.shown));
    } catch (error) {
      this.status.complain(error);
    }
  }

  reload() {
    if (!this.grid.querySelector(".rl-reward-input")) this.table.replaceData().then(() => this.cursor.paint());
  }

  /** Give these rewards and show what came of it, or why the kernel refused. */
  async set(names, reward) {
    try {
      this.take(await this.kernel.ask("set", { names, reward, shown: this.shown }));
    } catch (error) {
      this.status.complain(error);
    }
  }

  setBulk() {
    return this.set(this.cursor.meant(), this.bulk.value);
  }

  async undo() {
    try {
      this.take(await this.kernel.ask("undo", { shown: this.shown }));
    } catch (error) {
      this.status.complain(error);
    }
  }

  take({ rows, summary, said }) {
    this.tell(summary);
    for (const row of rows) this.repaint(row);
    this.status.say(said ?? "");
  }

  /** Draw what has changed of a row that is on the page; most advantages change by less than is seen. */
  repaint(now) {
    const row = this.table.getRow(now.name);
    if (!row) return;
    const data = row.getData();
    const before = this.columns.map(({ look }) => look(data));
    Object.assign(data, now);
    this.columns.forEach(({ field, look, draw }, i) => {
      if (look(data) !== before[i]) row.getCell(field).getElement().replaceChildren(draw(data));
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
        : `${plural(trainable, "trajectory")} will train: ${plural(tokens, "token")} in ${training.toLocaleString()} of ${plural(groups, "group")}`,
    ];
    this.summary.textContent = parts.filter(Boolean).join(" · ");
  }

  tellChosen() {
    const n = this.cursor.selected.size;
    this.chosen.textContent = n ? `${plural(n, "row")} selected` : "current row";
  }

  unfilter() {
    this.table.clearHeaderFilter();
    this.table.clearSort();
    for (const control of this.grid.querySelectorAll(".tabulator-header-filter select")) control.value = "";
  }

  clicked(event, row) {
    if (event.metaKey || event.ctrlKey) this.cursor.toggle(row.getData().name);
    this.cursor.to(row, event.shiftKey);
    if (!event.target.closest("input")) this.grid.focus({ preventScroll: true });
  }

  /** Begin to edit the current row; what was typed first is there already. */
  edit(begun) {
    const row = this.cursor.row();
    if (!row) return;
    const data = row.getData();
    const names = this.cursor.selected.has(data.name) ? [...this.cursor.selected] : [data.name];
    const cell = row.getCell("reward").getElement();
    const { draw } = this.columns.find(({ field }) => field === "reward");
    editReward(cell, `reward of ${data.name}`, data.reward == null ? "" : String(data.reward), begun, () => cell.replaceChildren(draw(data)), (typed, stay) => {
      if (stay) this.grid.focus({ preventScroll: true }); // or the notebook takes the next keys
      if (stay && names.length === 1) this.cursor.move(1);
      if (typed != null) this.set(names, typed);
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
      PageDown: () => this.table.nextPage(),
      PageUp: () => this.table.previousPage(),
      o: () => this.open(),
    }[key];
  }

  /** All that was said in the current trajectory, and how its reward came to be; again: away with it. */
  async open() {
    const name = this.cursor.row()?.getData().name;
    if (!name || (!this.opened.hidden && this.opened.dataset.name === name)) {
      this.opened.hidden = true;
      return;
    }
    const { turns, history } = await this.kernel.ask("read", { name });
    this.opened.replaceChildren(
      h("h4", {}, h("code", {}, name)),
      ...turns.map(({ role, text }) => h("div", { class: "rl-turn" }, h("b", {}, role), h("div", { class: "rl-said", dir: "auto" }, text))),
      h("h5", {}, "its reward"),
      h("ol", {}, ...history.map((line) => h("li", {}, line))),
    );
    this.opened.dataset.name = name;
    this.opened.hidden = false;
  }
}
