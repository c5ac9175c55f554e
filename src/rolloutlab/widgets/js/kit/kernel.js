// Calls to Python and events from it: the browser's part of widgets/base.py.

import { h } from "./dom.js";

const PATIENCE = 2000;
const OVER = ["restarting", "autorestarting", "terminating", "dead"];

/** An error from Python: its message, and what to type. */
export class KernelError extends Error {
  constructor({ message, hint }) {
    super(message);
    this.hint = hint;
  }
}

/** Call onEnd() once the kernel of a model has ended, from here or elsewhere; returns the function that stops listening. */
function atEnd(model, el, onEnd) {
  const kernel = model.widget_manager?.kernel; // JupyterLab and Notebook; elsewhere a page is not notified
  const changed = (_kernel, status) => OVER.includes(status) && onEnd();
  const disposed = () => onEnd();
  const left = () => el.classList.contains("jupyter-widgets-disconnected") && onEnd();
  kernel?.statusChanged?.connect(changed);
  kernel?.disposed?.connect(disposed);
  model.on("comm_live_update", left);
  return () => {
    kernel?.statusChanged?.disconnect(changed);
    kernel?.disposed?.disconnect(disposed);
    model.off("comm_live_update", left);
  };
}

/** Make a button text, and a field one that keeps what is in it. */
function freeze(control) {
  control.disabled = true;
  if (!control.matches("button")) return;
  const { className, title, style } = control;
  control.replaceWith(h("span", { class: className, title, style: style.cssText }, ...control.childNodes));
}

/**
 * The kernel behind a model, shown in `el`. again: what to type where it has ended; all controls are hidden then.
 *
 * id is of this rendering alone. ask(call, args) is a promise of the result; it rejects with KernelError. on(event, onEvent) gets the events of Python.
 * ended(): whether the kernel has ended.
 * onSilence(changed): changed(true) is called while a response is overdue (a busy or dead kernel), changed(false) after it. close() ends it all.
 */
export function connect(model, el, again = "run the cell again") {
  const waiting = new Map();
  const handlers = new Map();
  let silent = () => {};
  const mine = crypto.randomUUID?.() ?? String(Math.random()); // undefined in an insecure context
  let last = 0;

  let gone = null;

  const end = () => {
    if (gone) return;
    gone = new KernelError({ message: "the kernel has ended or was restarted: this is what it showed last", hint: again });
    el.querySelectorAll(".rl-stays").forEach(freeze); // they show something
    el.classList.add("rl-gone"); // its other buttons and fields are hidden
    el.prepend(h("p", { class: "rl rl-ended", role: "status" }, `${gone.message} → `, h("code", {}, again)));
    for (const id of [...waiting.keys()]) settle(id).reject(gone);
  };
  const settle = (id) => {
    const entry = waiting.get(id);
    clearTimeout(entry?.timer);
    waiting.delete(id);
    if (![...waiting.values()].some(({ late }) => late)) silent(false);
    return entry;
  };
  const receive = (message) => {
    if (message.event) handlers.get(message.event)?.forEach((each) => each(message));
    const request = waiting.has(message.id) && settle(message.id);
    if (request && message.error) request.reject(new KernelError(message.error));
    else if (request) request.resolve(message.result);
  };
  model.on("msg:custom", receive);
  const hearNoMore = atEnd(model, el, end);

  return {
    id: mine,
    ask(call, args = {}) {
      if (gone) return Promise.reject(gone);
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
    ended: () => Boolean(gone),
    on(event, each) {
      handlers.set(event, [...(handlers.get(event) ?? []), each]);
    },
    onSilence(changed) {
      silent = changed;
    },
    close() {
      model.off("msg:custom", receive);
      hearNoMore();
      [...waiting.keys()].forEach(settle);
    },
  };
}
