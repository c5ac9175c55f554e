// Branches of a trajectory, each folded where it leaves a history; 0 is the main history.

import { h } from "../kit/dom.js";
import { folded, turn } from "./text.js";

/** A function of the turns of a history, in their order: the branches that leave it after each. */
export function leaving(view, member, number) {
  let answers = 0;
  return ({ role }) => (role === "assistant" ? branchesAt(view, member, number, ++answers) : []);
}

/** The branches that leave a history after so many of its answers; parent null: those on their own. */
export function branchesAt(view, member, parent, place) {
  return member.branches.flatMap((each, i) => (each.parent === parent && each.place === place ? [branch(view, member, each, i + 1)] : []));
}

function branch(view, member, { title, turns }, number) {
  const inside = () => {
    const after = leaving(view, member, number);
    const conversation = turns.flatMap((message) => [turn(view, member.seat, message), ...after(message)]);
    return h("div", {}, branchesAt(view, member, number, 0), conversation);
  };
  return folded(title, inside, { class: "rl-fold rl-branch" });
}
