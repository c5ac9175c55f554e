// Texts of any length: a beginning, the rest on demand and in pieces, and what is folded.

import { earned, h } from "../kit/dom.js";
import { markdown } from "./markdown.js";

const BLOCK = 20_000;

/** A readable size; characters count as bytes. */
export function size(characters) {
  if (characters < 1e3) return `${characters} B`;
  return characters < 1e6 ? `${(characters / 1e3).toFixed(0)} kB` : `${(characters / 1e6).toFixed(1)} MB`;
}

/** Details behind a summary; they are made when they are first opened. */
export function folded(summary, make, properties = {}) {
  const element = h("details", { class: "rl-fold", ...properties }, h("summary", {}, summary));
  element.addEventListener("toggle", () => element.open && element.children.length === 1 && element.append(make()));
  return element;
}

/** A text of `seat` (null: of the prompt); the rest of a long one is fetched on demand. */
export function longText(view, seat, text) {
  const words = h("div", { class: "rl-text" }, text.text);
  if (text.end >= text.size) return words;
  const more = h("button", { class: "rl-rest" }, `show all (${size(text.size)})`);
  more.addEventListener("click", () => view.attempt(() => whole(view, seat, text, words, more)));
  return h("div", {}, words, more);
}

/** A text of `seat`, as Markdown where the view shows that; of a long text the beginning is not enough to read it so. */
export function written(view, seat, text) {
  return view.mode.markdown && text.end >= text.size ? markdown(text.text) : longText(view, seat, text);
}

/** Fetch the rest piece by piece, so that the page stays responsive. */
async function whole(view, seat, text, words, more) {
  more.disabled = true;
  const { position } = view.group;
  let { end } = text;
  let tail = text.text;
  words.textContent = "";
  while (end < text.size) {
    const piece = await view.kernel.ask("text", { position, seat, number: text.number, start: end });
    if (!words.isConnected && !more.isConnected && view.group.position !== position) return;
    end = piece.end;
    tail = blocks(words, tail + piece.text);
    more.textContent = `${Math.round((100 * end) / text.size)}% of ${size(text.size)}`;
  }
  words.append(h("div", { class: "rl-block" }, tail));
  more.remove();
}

/** Append a long text as blocks that are laid out when they are visible; returns the part after the last break. */
function blocks(words, text) {
  let start = 0;
  while (text.length - start > BLOCK) {
    const line = text.lastIndexOf("\n", start + BLOCK);
    const breaks = line > start;
    const end = breaks ? line + 1 : start + BLOCK;
    words.append(h("div", { class: breaks ? "rl-block" : "rl-block rl-goes-on" }, text.slice(start, breaks ? line : end)));
    start = end;
  }
  return text.slice(start);
}

/** One message: role, text, and its tool calls with their results folded. */
export function turn(view, seat, message, body) {
  return h(
    "div",
    { class: message.sampled ? "rl-turn rl-sampled" : "rl-turn rl-context" },
    h("div", { class: "rl-role" }, message.role, earned(message.reward)),
    h("div", { class: "rl-what" }, body ?? parts(view, seat, message)),
  );
}

/** The parts of a message without its role. */
export function parts(view, seat, message, words = () => written(view, seat, message.content)) {
  return [
    message.reasoning && folded("reasoning", () => longText(view, seat, message.reasoning), { class: "rl-fold rl-reasoning" }),
    message.content && words(),
    message.refusal && h("div", {}, h("span", { class: "rl-flag" }, "refused"), longText(view, seat, message.refusal)),
    ...calls(view, seat, message),
  ];
}

export function calls(view, seat, message) {
  return message.calls.map((call) => {
    const result = call.result && [h("span", { class: "rl-dim" }, " → "), short(call.result.text, 40)];
    return folded([h("code", {}, `${call.name}(${short(call.arguments.text, 60)})`), ...(result || [])], () =>
      h(
        "div",
        { class: "rl-call" },
        h("div", { class: "rl-role" }, "arguments"),
        longText(view, seat, call.arguments),
        h("div", { class: "rl-role" }, "result"),
        call.result ? longText(view, seat, call.result) : h("div", { class: "rl-dim" }, "none"),
      ),
    );
  });
}

function short(text, most) {
  const line = text.replace(/\s+/g, " ");
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}
