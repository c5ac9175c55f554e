// Cells to run next, which Python's part of a view names: a click puts one below, or into the clipboard.

import { grow, h } from "./dom.js";

const EVENT = "rolloutlab:cell";

/** Make the cells in an element buttons. say(text): shows what was done. */
export function liveCells(element, say) {
  for (const cell of element.querySelectorAll("code.rl-cell")) {
    const code = cell.textContent;
    const button = h("button", { class: "rl-cell rl-stays", type: "button", title: "put it into a cell below", onclick: () => insertCell(button, code, say) }, code);
    cell.replaceWith(button);
  }
}

/** Show the figures of a collection, which Python's part has made; their cells and the bars of groups become buttons. */
export function showFigures(element, nodes, say) {
  element.replaceChildren(...grow(nodes));
  liveCells(element, say);
  element.querySelector(".rl-groups [role='list']")?.setAttribute("role", "group");
  for (const bar of element.querySelectorAll("i.rl-groups-bar")) {
    const { className, title, dataset } = bar;
    bar.replaceWith(h("button", { class: `${className} rl-stays`, title, "data-position": dataset.position, "aria-label": title, tabindex: -1, type: "button" }, ...bar.childNodes));
  }
}

/** Have the page insert a cell, where it has our extension; else copy its code. */
export async function insertCell(button, code, say) {
  const event = new CustomEvent(EVENT, { bubbles: true, cancelable: true, detail: { code } });
  if (!button.dispatchEvent(event)) return;
  try {
    await navigator.clipboard.writeText(code);
    say(`copied: ${code}`);
  } catch {
    say(`type it into a cell: ${code}`); // a page in an insecure context has no clipboard
  }
}
