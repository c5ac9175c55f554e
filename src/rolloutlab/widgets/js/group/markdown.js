// Markdown as elements. The tokens are marked's, the elements ours: HTML in a text stays text, links and pictures load nothing.

import { Lexer } from "marked";
import { h } from "../kit/dom.js";

/** A text as paragraphs, lists, tables and code. */
export function markdown(text) {
  return h("div", { class: "rl-text rl-markdown" }, blocks(new Lexer({ gfm: true }).lex(text)));
}

function blocks(tokens) {
  return tokens.map(block);
}

function block(token) {
  const { type, tokens } = token;
  if (type === "space" || type === "def") return null;
  if (type === "heading") return h("p", { class: "rl-heading" }, h("b", {}, words(tokens)));
  if (type === "code") return h("pre", {}, h("code", {}, token.text));
  if (type === "blockquote") return h("blockquote", {}, blocks(tokens));
  if (type === "hr") return h("hr");
  if (type === "paragraph") return h("p", {}, words(tokens));
  if (type === "list") return h(token.ordered ? "ol" : "ul", { start: token.start || null }, token.items.map(item));
  if (type === "table") return h("table", {}, h("tr", {}, token.header.map((cell) => h("th", {}, words(cell.tokens)))), token.rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, words(cell.tokens))))));
  return type === "text" && tokens ? h("span", {}, words(tokens)) : token.raw;
}

function item({ task, checked, tokens }) {
  return h("li", {}, task && (checked ? "☑ " : "☐ "), blocks(tokens.filter(({ type }) => type !== "checkbox")));
}

const INLINE = { strong: "b", em: "em", del: "s" };

function words(tokens) {
  return tokens.map((token) => {
    const { type, text, tokens: within, href } = token;
    if (INLINE[type]) return h(INLINE[type], {}, words(within));
    if (type === "codespan") return h("code", {}, text);
    if (type === "br") return h("br");
    if (type === "link") return h("span", { title: href }, words(within), href === text ? null : ` (${href})`);
    if (type === "image") return h("span", { title: href }, `${text || "picture"} (${href})`);
    if (type === "escape") return text;
    return within ? h("span", {}, words(within)) : token.raw;
  });
}
