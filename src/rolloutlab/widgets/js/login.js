// A sign-in: its scopes, the link to the sign-in page, and its state.

import "../kit/theme.css";
import "./kit/controls.css";
import "./login.css";
import { connect, KernelError } from "./kit/kernel.js";
import { frame, h, refusal, statusLine } from "./kit/dom.js";
import { tell } from "./kit/server.js";

const OPEN = ["looking", "waiting"];
const WRONG = ["denied", "expired", "failed"];
const BACK = {
  page: "The answer comes back to this notebook by itself.",
  loopback: "The answer comes back by itself if this browser runs on the kernel's machine. If it ends on a page that cannot be reached, copy that page's address and paste it below.",
  paste: "The browser ends on a page that cannot be reached: copy its address, and paste it where the cell asks for it.",
};

function render({ model, el }) {
  const first = model.get("state");
  if (first.refused) return el.append(refusal(first.refused));
  const kernel = connect(model, el);
  const facts = h("dl");
  const standing = statusLine();
  const link = h("span", { class: "rl-link" });
  const left = h("span", { class: "rl-dim" });
  const back = h("p", { class: "rl-dim" });
  const cancel = h("button", { type: "button", onclick: () => send("cancel") }, "Cancel");
  const paste = pasteView((text) => send("paste", { text }));
  const open = h("div", { class: "rl-open" }, h("div", { class: "rl-row" }, link, cancel, left), back, paste.element);
  el.append(frame("rl-login", h("section", { "aria-label": "sign-in" }, facts, standing.element, open)));
  let door = {};
  let reached = false; // whether the Jupyter server forwards the messages of this page
  let asked = null;

  const show = () => {
    const state = model.get("state");
    const waits = OPEN.includes(state.standing);
    facts.replaceChildren(...state.facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", { class: "rl-text" }, value)]));
    standing.element.dataset.standing = state.standing;
    WRONG.includes(state.standing) ? standing.complain({ message: state.words }) : standing.say(state.words);
    open.hidden = !waits;
    back.textContent = BACK[state.way] ?? "";
    paste.element.hidden = state.way === "paste" || state.standing !== "waiting";
    paste.element.open ||= state.way === "loopback";
    if (!waits) {
      door = {};
      link.replaceChildren();
      paste.clear();
    }
  };
  const linked = () => {
    const safe = /^https?:/.test(door.url ?? "");
    if (!safe || link.firstChild?.href === new URL(door.url).href) return;
    link.replaceChildren(h("a", { href: door.url, target: "_blank", rel: "noopener noreferrer", referrerpolicy: "no-referrer" }, "Open the sign-in page"));
  };
  // A kernel that is busy with the waiting cell can be reached through its Jupyter server, some also by a message.
  const send = async (call, args = {}) => {
    try {
      await (reached ? tell(door.ticket, call, args) : kernel.ask(call, args));
      paste.clear();
    } catch (error) {
      paste.complain(error instanceof KernelError ? error : { message: "the kernel could not be reached: interrupt the cell and run it again" });
    }
  };
  const knock = async () => {
    asked = door.ticket;
    try {
      await tell(door.ticket, "here");
      reached = true;
    } catch {
      kernel.ask("nowhere").catch(() => {});
    }
  };

  kernel.on("door", (change) => {
    if (!OPEN.includes(model.get("state").standing)) return;
    door = change;
    left.textContent = change.minutes === 1 ? "1 minute left" : `${change.minutes} minutes left`;
    linked();
    if (asked !== change.ticket) knock();
  });
  kernel.onSilence((silent) => {
    if (silent && !reached) paste.complain({ message: "the kernel does not hear this page while the cell runs", hint: "interrupt the cell, then %login --paste" });
  });
  model.on("change:state", show);
  show();
  return () => {
    model.off("change:state", show);
    kernel.close();
  };
}

/** A field for the address that a browser ended on, folded at first. */
function pasteView(send) {
  const prefix = `rl-${Math.random().toString(36).slice(2)}`;
  const status = statusLine();
  const submit = () => {
    status.say("");
    if (field.value.trim()) send(field.value);
  };
  const field = h("input", {
    id: prefix,
    type: "text",
    autocomplete: "off",
    spellcheck: "false",
    "aria-describedby": `${prefix}-status`,
    onkeydown: ({ key }) => key === "Enter" && submit(), // in JupyterLab, a form would not get the event
  });
  status.element.id = `${prefix}-status`;
  const label = h("label", { for: prefix }, "Address of the page that the browser ended on");
  const row = h("div", { class: "rl-row" }, field, h("button", { type: "button", onclick: submit }, "Use it"));
  return {
    element: h("details", {}, h("summary", {}, "Paste an address instead"), label, row, status.element),
    complain: status.complain,
    clear() {
      field.value = "";
      status.say("");
    },
  };
}

export default { render };
