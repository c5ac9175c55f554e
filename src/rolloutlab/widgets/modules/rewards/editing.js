// A reward is typed into its cell. The grid itself changes nothing: what is shown is what the kernel answered.

import { h } from "../kit/dom.js";

/**
 * Put a field into a cell. had: the reward as text; begun: what was typed already; done(text, stay): Enter or Tab, or,
 * with stay false, a click elsewhere; text is null where nothing was changed. draw() puts back what the cell holds.
 *
 * A text field rather than a number field: what is no number is for the kernel to refuse, in words.
 */
export function editReward(element, label, had, begun, draw, done) {
  const input = h("input", { class: "rl-reward-input", inputmode: "decimal", "aria-label": label, value: begun ?? had });
  let over = false;
  const end = (keep, stay = true) => {
    if (over) return;
    over = true;
    const typed = input.value.trim();
    draw();
    done(keep && typed !== had ? typed : null, stay);
  };
  input.addEventListener("blur", () => end(true, false));
  input.addEventListener("keydown", (event) => {
    event.stopPropagation(); // arrows and letters belong to the field
    if (event.key === "Enter" || event.key === "Tab") end(true);
    else if (event.key === "Escape") end(false);
    else return;
    event.preventDefault();
  });
  element.replaceChildren(input);
  input.focus({ preventScroll: true });
  if (begun == null) input.select();
}
