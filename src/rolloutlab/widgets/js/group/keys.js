// Keys and their actions, in the order of the help.

export const KEYS = [
  ["← →", "another completion"],
  ["↑ ↓", "scroll its text"],
  ["Home End", "the first, the last"],
  ["n p", "next, previous group"],
  ["r", "rank: digits or Space, Enter gives the rewards, Escape cancels, l ties the rest last"],
  ["e", "edit the reward: Enter gives it, Escape leaves it"],
  ["u", "undo what was given by hand last"],
  ["c", "compare with the best, with this one, with nothing"],
  ["m", "Markdown, or the text as it is"],
  ["t", "tokens"],
  ["g", "in tokens: gap to the newest checkpoint"],
  ["?", "these keys"],
];

/** Run the action of a key; fields, buttons and folds keep their own keys. */
export function onKey(view, event) {
  if (!view.group || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const own = event.target.matches("button, summary") && [" ", "Enter"].includes(event.key);
  const deed = !own && ((view.ranking && ranking(view, event.key)) || reading(view, event.key));
  if (!deed) return;
  event.preventDefault();
  event.stopPropagation();
  deed();
}

function ranking(view, key) {
  const { seat } = view.cards[view.focused].member;
  const does = (deed) => () => (deed(), view.ranked());
  if (/^\d$/.test(key)) return does(() => view.ranking.digit(seat, Number(key)));
  return {
    " ": does(() => view.ranking.next(seat)),
    Backspace: does(() => view.ranking.clear(seat)),
    l: () => view.restLast(),
    Enter: () => view.giveRanks(),
    Escape: () => view.stopRanking(),
    r: () => {},
  }[key];
}

function reading(view, key) {
  const card = view.cards[view.focused];
  const move = (i) => () => (view.ranking?.moved(), view.focus(Math.max(0, Math.min(view.cards.length - 1, i))));
  return {
    ArrowRight: move(view.focused + 1),
    ArrowLeft: move(view.focused - 1),
    Home: move(0),
    End: move(view.cards.length - 1),
    ArrowDown: () => card.body.scrollBy(0, 60),
    ArrowUp: () => card.body.scrollBy(0, -60),
    n: () => view.step(1),
    p: () => view.step(-1),
    r: () => view.startRanking(),
    e: () => card.edit(),
    u: () => view.undo(),
    c: () => view.cycleReference(),
    m: () => view.toggle("markdown"),
    t: () => view.toggle("tokens"),
    g: () => view.toggle("gap"),
    "?": () => view.toggleHelp(),
  }[key];
}
