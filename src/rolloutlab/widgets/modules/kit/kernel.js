// Asking Python, and hearing from it: the other end of widgets/interactive.py.

const PATIENCE = 2000;

/** An error that Python told: what happened, and what to type about it. */
export class Told extends Error {
  constructor({ message, hint }) {
    super(message);
    this.hint = hint;
  }
}

/**
 * The kernel behind a model.
 *
 * id is of this rendering alone. ask(call, args) is a promise of the answer; it fails with Told. on(event, heard) hears what Python pushes.
 * onSilence(told) is told true while an answer is overdue (a busy or dead kernel), then false. close() ends it all.
 */
export function connect(model) {
  const waiting = new Map();
  const heard = new Map();
  let silent = () => {};
  const mine = crypto.randomUUID?.() ?? String(Math.random()); // none where the page is not served safely
  let last = 0;

  const settle = (id) => {
    const found = waiting.get(id);
    clearTimeout(found?.timer);
    waiting.delete(id);
    if (![...waiting.values()].some(({ late }) => late)) silent(false);
    return found;
  };
  const receive = (message) => {
    if (message.event) heard.get(message.event)?.forEach((each) => each(message));
    const asked = waiting.has(message.id) && settle(message.id);
    if (asked && message.error) asked.reject(new Told(message.error));
    else if (asked) asked.resolve(message.result);
  };
  model.on("msg:custom", receive);

  return {
    id: mine,
    ask(call, args = {}) {
      const id = `${mine}/${(last += 1)}`;
      return new Promise((resolve, reject) => {
        const entry = { resolve, reject, late: false };
        entry.timer = setTimeout(() => {
          entry.late = true;
          silent(true);
        }, PATIENCE);
        waiting.set(id, entry);
        model.send({ id, call, args });
      });
    },
    on(event, each) {
      heard.set(event, [...(heard.get(event) ?? []), each]);
    },
    onSilence(told) {
      silent = told;
    },
    close() {
      model.off("msg:custom", receive);
      [...waiting.keys()].forEach(settle);
    },
  };
}
