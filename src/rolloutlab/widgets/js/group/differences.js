// Words added and removed against another text, marked as ins and del; with a timeout, so that no text can block the page.

import { diffLines, diffWordsWithSpace } from "diff";
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
  const cut = text.end < text.size || reference.end < reference.size;
  const changes = differences(reference.text, text.text);
  const note = !changes
    ? "too different to mark words"
    : cut && "words are marked in the beginning only: the texts are long";
  if (changes) element.replaceChildren(...changes.map(word));
  if (note) element.after(h("div", { class: "rl-note" }, note));
}

/** What changed, by words; by lines where under half of the words are the same; null where nothing is, or it takes too long. */
function differences(before, after) {
  const options = { timeout: PATIENCE };
  const words = diffWordsWithSpace(before, after, options);
  if (words && same(words) >= 0.5 * Math.max(size(before), size(after))) return words;
  const lines = diffLines(before, after, options);
  return lines && same(lines) ? lines : null;
}

/** How many words both have. */
function same(changes) {
  return changes.reduce((sum, { added, removed, value }) => sum + (added || removed ? 0 : size(value)), 0);
}

function size(text) {
  return text.match(/\S+/g)?.length ?? 0;
}

function word({ added, removed, value }) {
  return added ? h("ins", {}, value) : removed ? h("del", {}, value) : value;
}
