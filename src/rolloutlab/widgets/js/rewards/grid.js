// A page of rows at a time: Tabulator as the rewards view needs it, with the ARIA properties that it lacks.

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
import { h } from "../kit/dom.js";

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
const FEW = 12; // rows that need no scrolling

/** fetch({ page, size, sort, filter }) is a promise of a page of rows; dress(row) is called for each that is drawn; total: how many there are. */
export function pagedTable(element, { columns, total, fetch, dress }) {
  const table = new Tabulator(element, {
    index: "id",
    columns,
    nestedFieldSeparator: false,
    height: total <= FEW ? false : "min(60vh, 460px)",
    layout: "fitColumns",
    rowHeight: 28,
    renderVerticalBuffer: 140,
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
    ajaxRequestFunc: (_url, _config, asked) => fetch(asked),
    dataLoader: false,
    rowFormatter: dress,
  });
  // A grid that began out of sight is drawn by force, every row anew, once it is seen: a reward may be typed by then.
  const redraw = table.redraw.bind(table);
  table.redraw = (force) => redraw(force && !element.querySelector(".rl-reward-input"));
  return table;
}

/** The ARIA properties that Tabulator lacks, and sorting by keyboard. */
export function dressGrid(table, label) {
  table.element.setAttribute("aria-label", label);
  table.element.setAttribute("aria-multiselectable", "true");
  const holder = table.element.querySelector(".tabulator-tableholder");
  holder.tabIndex = 0; // what scrolls can be reached without a mouse
  holder.setAttribute("role", "rowgroup");
  holder.firstElementChild.setAttribute("role", "presentation");
  // a header that takes the focus may be scrolled into view: its columns come along
  const heads = table.element.querySelector(".tabulator-header-contents");
  heads.addEventListener("scroll", () => (holder.scrollLeft = heads.scrollLeft));
  table.element.querySelector(".tabulator-page-size").setAttribute("aria-label", "rows of a page");
  for (const column of table.getColumns()) dressHead(table, column);
  const pages = h("div", { class: "tabulator rl-pages" }, table.footerManager.getElement()); // a grid has rows and nothing else
  table.footerManager.external = true;
  table.element.after(pages);
}

export function dressHead(table, column) {
  const head = column.getElement();
  head.tabIndex = head.previousElementSibling ? -1 : 0; // one tab stop for all: the arrow keys move between them
  head.setAttribute("aria-label", column.getDefinition().title); // else the arrow and the filter are part of its name
  head.addEventListener("keydown", (event) => {
    if (event.target !== head) return;
    const beside = { ArrowLeft: head.previousElementSibling, ArrowRight: head.nextElementSibling }[event.key];
    beside?.focus();
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    table.setSort(column.getField(), head.getAttribute("aria-sort") === "ascending" ? "desc" : "asc");
  });
}
