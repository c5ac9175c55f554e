// The rewards view: a page of trajectories at a time, edited by keyboard, with advantages recomputed by the kernel.

import { dressGrid, dressHead, pagedTable } from "./rewards/grid.js"; // first: its styles are overruled by ours
import "../kit/theme.css";
import "./kit/controls.css";
import "./rewards.css";
import { showFigures } from "./kit/cells.js";
import { frame, h, number, refusal, statusLine } from "./kit/dom.js";
import { connect } from "./kit/kernel.js";
import { Sight } from "./kit/sight.js";
import { columns, part } from "./rewards/columns.js";
import { Confirmation } from "./rewards/confirmation.js";
import { editReward } from "./rewards/editing.js";
import { Cursor, keyTable } from "./rewards/cursor.js";
import { Opened } from "./rewards/opened.js";

const SOON = 400; // after the last edit: the figures of 100,000 rows take 0.15 s, for which the next edit would wait
const NARROW = 560; // pixels
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
      clearTimeout(view.soon);
      view.sight.close();
      view.table.destroy();
      kernel.close();
    };
  },
};

class RewardsView {
  constructor(kernel, state) {
    this.kernel = kernel;
    this.byInfluence = false;
    this.first = this.answer = state.page;
    this.status = statusLine();
    this.summary = h("span", { class: "rl-dim rl-summary" });
    this.chosen = h("b", { class: "rl-chosen" });
    this.chips = h("span", { class: "rl-chips" });
    this.above = h("div", { class: "rl-above" });
    this.above.addEventListener("click", ({ target }) => target.dataset.position && this.filterGroup(target.title));
    this.bulk = h("input", { size: 6, inputmode: "decimal", placeholder: "reward", "aria-label": "reward to set" });
    this.undoes = h("span", { class: "rl-dim" });
    this.all = h("button", { onClick: () => this.confirmAll() });
    this.confirmation = new Confirmation(this);
    this.grid = h("div", { class: "rl-grid", tabindex: 0 });
    this.opened = new Opened(this.kernel, this.status);
    this.element = frame("rl-panel rl-rewards", this.above, this.head(), this.tools(), this.confirmation.element, this.status.element, this.grid, this.opened.element, keyTable());
    this.showAbove(state.above);
    this.nameUndo(state.undoable);
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
      dress: (row) => this.dress(row),
    });
    this.cursor = new Cursor(this.table, () => this.tellChosen());
    this.table.on("cellDblClick", (_event, cell) => cell.getField() === "reward" && this.edit());
    this.table.on("rowClick", (event, row) => this.clicked(event, row));
    this.table.on("dataLoadError", (error) => this.status.complain(error));
    this.table.on("tableBuilt", () => dressGrid(this.table, `rewards of ${this.state.title}`));
    if (this.state.summary.trainable == null) this.table.on("tableBuilt", () => requestAnimationFrame(() => this.reload()));
    this.table.on("dataProcessed", () => this.arrived());
    // of a click the rows decide themselves which one is meant
    this.grid.addEventListener("focusin", ({ target }) => this.isHeld(target) && (target === this.grid || target.matches(":focus-visible")) && this.cursor.settle());
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.sight.watch(this);
    this.kernel.on("changed", ({ origin }) => origin !== this.kernel.id && this.reload());
    this.kernel.onSilence((late) => (late || this.status.element.textContent === WAITING) && this.status.say(late ? WAITING : ""));
  }

  /** What fits, by which filters, and how many will train. */
  head() {
    this.fitting = h("b", {});
    this.influence = h("button", { type: "button", "aria-pressed": "false", onClick: () => this.sortByInfluence() }, "Largest |advantage| first");
    return h("div", { class: "rl-toolbar rl-filters" }, this.fitting, this.chips, this.influence, this.summary);
  }

  /** The figures of the collection and of what fits the filters, made by Python; a click on a bar shows that group. */
  showAbove(above) {
    if (!above) return;
    showFigures(this.above, above, (text) => this.status.say(text));
  }

  /** Say what an undo would take back. */
  nameUndo(what) {
    this.named = what;
    this.undoes.textContent = what;
  }

  /** Ask for the figures: those that are there already are renewed once no reward has been typed for a while. */
  renewAbove() {
    clearTimeout(this.soon);
    this.soon = setTimeout(async () => {
      if (this.editing()) return this.renewAbove();
      try {
        this.showAbove(await this.kernel.ask("overview"));
        this.nameUndo(await this.kernel.ask("undoable"));
      } catch (error) {
        this.status.complain(error);
      }
    }, this.above.firstChild ? SOON : 0);
  }

  /** Show one group: its bar is called `NAME/3: all pass`. */
  filterGroup(title) {
    this.table.setHeaderFilterValue("name", `${title.split(": ")[0].split(" ")[0]}/`);
  }

  /** A chip for each filter, which a click takes away. */
  showFilters() {
    const { filtered, total } = this.answer;
    this.fitting.textContent = filtered < total ? `${filtered.toLocaleString()} of ${total.toLocaleString()}` : plural(total, "row");
    const filters = Object.entries(this.shown?.filter ?? {}).filter(([, value]) => value !== "" && value != null);
    const title = (field) => this.columns.find(({ definition }) => definition.field === field)?.definition.title ?? field;
    const chip = ([field, value]) => h("button", { class: "rl-chip rl-is-now", title: "take this filter away", onClick: () => this.table.setHeaderFilterValue(field, "") }, `${title(field)} ${value} ×`);
    const copy = () => this.copy(`lab.rewards(${JSON.stringify(this.state.names)}).page(filter=${JSON.stringify(Object.fromEntries(filters))})`);
    const unfit = this.cursor.rows().filter((row) => row.getData().fits === false).length;
    const anew = unfit > 0 && h("button", { class: "rl-plain rl-anew", onClick: () => this.table.setPage(this.table.getPage()) }, `${plural(unfit, "row")} no longer fit${unfit === 1 ? "s" : ""}: apply anew`);
    this.chips.replaceChildren(...filters.map(chip), ...(anew ? [anew] : []), ...(filters.length ? [h("button", { class: "rl-plain", onClick: () => this.unfilter() }, "Clear filters"), h("button", { class: "rl-plain", onClick: copy }, "Copy as code")] : []));
  }

  async copy(code) {
    try {
      await navigator.clipboard.writeText(code);
      this.status.say(`copied: ${code}`);
    } catch {
      this.status.say(code); // a page in an insecure context has no clipboard
    }
  }

  tools() {
    const set = h("button", { onClick: () => this.setBulk() }, "Set");
    this.bulk.addEventListener("keydown", (event) => event.key === "Enter" && this.setBulk());
    return h(
      "div",
      { class: "rl-toolbar", role: "toolbar", "aria-label": "rewards" },
      this.chosen,
      this.bulk,
      set,
      h("button", { onClick: () => this.undo(), title: "take back the newest change: u" }, "Undo ", this.undoes, h("kbd", {}, "u")),
      h("span", { class: "rl-space" }),
      this.all,
    );
  }

  /** A page, as Tabulator needs it; the first one came with the state. After an error the old rows stay. */
  async fetch({ page, size, sort = [], filter = [] }) {
    const asked = {
      offset: (page - 1) * size,
      size,
      sort: sort.length ? sort.map(({ field, dir }) => [field, dir]) : this.byInfluence ? [["|advantage|", "desc"]] : [],
      filter: Object.fromEntries(filter.map(({ field, value }) => [field, value])),
    };
    this.byInfluence = !sort.length && this.byInfluence;
    this.influence.setAttribute("aria-pressed", String(this.byInfluence));
    const before = this.shown;
    try {
      const answer = this.first ?? (await this.kernel.ask("page", asked));
      await this.typed; // other rows would take away the field that is typed into
      this.answer = answer;
      this.shown = asked;
      this.first = null;
      this.status.calm();
      if (before && orderOf(before) !== orderOf(asked)) this.cursor.clear(); // an edit must not hit rows that are not on the page
      if (before && JSON.stringify(before.filter) !== JSON.stringify(asked.filter)) this.renewAbove();
    } catch (error) {
      this.status.complain(error);
    }
    const { rows, filtered, summary } = this.answer;
    this.tell(summary);
    return { data: rows, last_page: Math.max(1, Math.ceil(filtered / size)), last_row: filtered };
  }

  /** Rows were drawn or changed. A component that is new since the grid was made becomes a column. */
  async arrived() {
    const known = new Set(this.columns.map(({ definition }) => definition.field));
    const more = this.answer.components.map(part).filter(({ definition }) => !known.has(definition.field));
    this.columns.push(...more);
    for (const { definition } of more) dressHead(this.table, await this.table.addColumn(definition, true, "source"));
    const { filtered, total } = this.answer;
    this.all.textContent = filtered < total ? `Set the ${filtered.toLocaleString()} that fit…` : `Set all ${total.toLocaleString()}…`;
    this.confirmation.close();
    this.showFilters();
    this.all.disabled = !filtered;
    this.grid.setAttribute("aria-rowcount", filtered);
    this.cursor.offset = this.answer.offset;
    if (this.isHeld(document.activeElement)) this.cursor.settle();
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
      this.renewAbove();
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
      this.nameUndo(answer.undoable);
      this.renewAbove();
      this.status.say(answer.message);
    } catch (error) {
      this.renewAbove();
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

  /** Show what setting all that fit would change, before it does. */
  async confirmAll() {
    if (!this.bulk.value.trim()) {
      this.bulk.focus();
      return this.status.say("type the reward first");
    }
    this.status.calm();
    try {
      this.confirmation.open(await this.kernel.ask("outlook", { reward: this.bulk.value }));
    } catch (error) {
      this.status.complain(error);
    }
  }

  setAll({ reward, rows }) {
    return this.change("set_all", { reward, rows });
  }

  /** One after the other: a second key names what is left by the first. */
  undo() {
    this.undone = Promise.resolve(this.undone).then(() => this.change("undo", { named: this.named }));
    return this.undone;
  }

  take({ rows, summary }) {
    this.tell(summary);
    for (const row of rows) this.repaint(row);
    this.showFilters();
  }

  /** A row after an edit stays where it is; it is marked where it does not fit the filters any more. */
  dress(row) {
    this.cursor.dress(row);
    const { fits } = row.getData();
    row.getElement().classList.toggle("rl-unfit", fits === false);
  }

  /** Draw the changed cells of a row on the page; most advantages change invisibly little. */
  repaint(now) {
    const row = this.table.getRow(now.id);
    if (!row) return;
    const data = row.getData();
    const before = this.columns.map(({ cell }) => cell.key(data));
    for (const field of Object.keys(data)) if (/^component:|^error$|^place$/.test(field)) delete data[field]; // it may be gone
    Object.assign(data, now);
    this.dress(row);
    this.columns.forEach(({ definition, cell }, i) => {
      if (cell.key(data) === before[i]) return;
      const element = row.getCell(definition.field).getElement();
      if (!element.querySelector(".rl-reward-input")) element.replaceChildren(cell.draw(data)); // else when that is done
    });
  }

  tell(summary) {
    this.largest = summary.largest;
    const { scored, trajectories, trainable, groups, trainable_groups: training, tokens } = summary;
    const parts = [
      scored < trajectories && `${plural(scored, "reward")} of ${trajectories.toLocaleString()}`,
      trainable == null
        ? "reading what would train…"
        : `${plural(trainable, "trajectory")} will train: ${plural(tokens, "token")} in ${training.toLocaleString()} of ${plural(groups, "group")}${summary.collections > 1 ? `, in one job of these ${summary.collections} collections` : ""}`,
    ];
    this.summary.textContent = parts.filter(Boolean).join(" · ");
  }

  tellChosen() {
    this.opened.follow(this.cursor.row()?.getData());
    const { selected } = this.cursor;
    const away = selected.size - this.cursor.rows().filter((row) => selected.has(row.getData().id)).length;
    const where = away ? ` (${away.toLocaleString()} elsewhere)` : "";
    this.chosen.textContent = selected.size ? `${plural(selected.size, "row")} selected${where}` : (this.cursor.row()?.getData().name ?? "no row chosen");
  }

  /** Sort by the size of the advantage, or no longer; a click on a header sorts by that column instead. */
  sortByInfluence() {
    this.byInfluence = !this.byInfluence;
    this.table.modules.sort.clear();
    this.table.setPage(1);
  }

  unfilter() {
    this.byInfluence = false;
    this.table.modules.sort.clear(); // without asking for a page, as the next does
    this.table.clearHeaderFilter();
  }

  clicked(event, row) {
    if (event.metaKey || event.ctrlKey) this.cursor.toggle(row.getData().id);
    this.cursor.to(row, event.shiftKey);
    if (!event.target.closest("input")) this.grid.focus({ preventScroll: true });
    const cut = event.pointerType === "touch" || this.grid.clientWidth < NARROW; // where no cell shows a whole completion
    if (cut && !event.target.closest(".rl-editable")) this.open();
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

  /** Whether the keys of the grid go there: to it, or to its rows where they scroll. */
  isHeld(element) {
    return element === this.grid || Boolean(element?.matches?.(".tabulator-tableholder") && this.grid.contains(element));
  }

  key(event) {
    if (event.key === "/" && this.isHeld(event.target)) {
      event.preventDefault();
      event.stopPropagation();
      return this.grid.querySelector(".tabulator-header-filter input")?.focus();
    }
    if (event.target.matches(".tabulator-header-filter input") && ["Enter", "ArrowDown"].includes(event.key)) this.grid.focus({ preventScroll: true });
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
