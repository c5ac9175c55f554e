// A reward is typed into its cell. The grid itself changes nothing: it shows the response of the kernel.

import { h } from "../kit/dom.js";

const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const isReward = (text) => NUMBER.test(text) && Number.isFinite(Number(text));

/**
 * Put a field into a cell. had: the reward as text; begun: what was typed already; draw() puts back what the cell holds.
 * done(text, by): by is `key` after Enter or Tab, `escape`, or `click` elsewhere; text is null unless a key stored it.
 *
 * A text field rather than a number field: the kernel rejects other texts with a message. refuse(text) requests that, and
 * the field keeps the text.
 */
export function editReward(element, { label, had, begun, draw, done, refuse }) {
  const input = h("input", { class: "rl-reward-input", inputmode: "decimal", "aria-label": label, value: begun ?? had });
  let over = false;
  const end = (by) => {
    if (over) return;
    over = true;
    const typed = input.value.trim();
    draw();
    done(by === "key" && typed !== had ? typed : null, by);
  };
  input.addEventListener("blur", () => end("click"));
  input.addEventListener("keydown", (event) => {
    event.stopPropagation(); // arrows and letters belong to the field
    const stores = event.key === "Enter" || event.key === "Tab";
    const typed = input.value.trim();
    if (stores && typed !== had && !isReward(typed)) {
      input.setAttribute("aria-invalid", "true");
      input.select();
      refuse(typed);
    } else if (stores) end("key");
    else if (event.key === "Escape") end("escape");
    else return;
    event.preventDefault();
  });
  element.replaceChildren(input);
  input.focus({ preventScroll: true });
  if (begun == null) input.select();
  else input.setSelectionRange(begun.length, begun.length); // the next keys come after it
}
