// Words added and removed against another text, marked as ins and del; with a timeout, so that no text can block the page.

import { diffWordsWithSpace } from "diff";
import { h } from "../kit/dom.js";

const PATIENCE = 80;
const waiting = [];
let running = false;

/** Mark in `element` the words that only `text` or only `reference` has; one text after the other, between frames. */
export function markDifferences(element, text, reference) {
  waiting.push(() => mark(element, text, reference));
  if (!running) next();
}

function next() {
  const job = waiting.shift();
  running = job !== undefined;
  if (running) setTimeout(() => (job(), next()));
}

function mark(element, text, reference) {
  if (!element.isConnected) return;
  const changes = diffWordsWithSpace(reference.text, text.text, { timeout: PATIENCE });
  const cut = text.end < text.size || reference.end < reference.size;
  const note = !changes
    ? "too long or too different to mark words"
    : cut && "words are marked in the beginning only: the texts are long";
  if (changes) element.replaceChildren(...changes.map(word));
  if (note) element.after(h("div", { class: "rl-note" }, note));
}

function word({ added, removed, value }) {
  return added ? h("ins", {}, value) : removed ? h("del", {}, value) : value;
}
