// A training job: its progress, its curves, what did not train and why, and what to type next. Part of job.js and form.js.

import "../../kit/theme.css";
import "../kit/controls.css";
import "uplot/dist/uPlot.min.css";
import "./job.css";
import { liveCells } from "../kit/cells.js";
import { grow, h, statusLine } from "../kit/dom.js";
import { curveGrid } from "./curves.js";
import { length, take } from "./numbers.js";
import { numbersTable } from "./table.js";

const LOOKS = { succeeded: "rl-is-ok", failed: "rl-is-bad", cancelled: "rl-is-warn", running: "rl-is-now" };
const SIGN_OF_LIFE = 60_000;
const SOON = 400;
const AGAIN = 1000;
const QUIET = 3000;

/**
 * The view of a job whose state is {head, curves, numbers}, kept up to date by what the kernel pushes as `news`.
 *
 * The state is changed in place: another view of the same model, made later, begins where this one is.
 */
export function jobView(kernel, state) {
  const head = headView(kernel, (changed) => show(changed));
  const grid = curveGrid(state);
  const table = numbersTable(state);
  const next = h("div", { class: "rl-next" });
  const element = h("section", { class: "rl-job", "aria-label": `training job ${state.head.id}` });
  element.append(head.element, grid.element, table.element, next);
  let frame = 0;
  let asked = 0;

  const draw = () => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => {
      grid.update();
      table.update();
    });
  };
  const show = (changed) => {
    state.head = changed;
    head.update(changed);
    next.replaceChildren(...nextLines(changed));
    liveCells(next, head.say);
    draw();
  };
  const whole = () => {
    if (performance.now() - asked < AGAIN) return;
    asked = performance.now();
    kernel.ask("watch").then((fresh) => {
      Object.assign(state, fresh);
      show(fresh.head);
    }, head.complain);
  };

  kernel.on("news", (news) => {
    head.heard();
    if (news.begin > length(state.numbers)) whole();
    else {
      take(state.numbers, news);
      show(news.head);
    }
  });
  kernel.onSilence((silent) => head.silence(silent));
  const signs = setInterval(() => state.head.ended || whole(), SIGN_OF_LIFE);
  show(state.head);
  // events that were pushed before this page listened; a little later, when the page can reach a busy kernel
  const soon = setTimeout(whole, SOON);
  return {
    element,
    close() {
      clearTimeout(soon);
      clearInterval(signs);
      cancelAnimationFrame(frame);
      grid.close();
    },
  };
}

function headView(kernel, onChange) {
  const status = h("span", { class: "rl-state rl-chip" });
  const title = h("span", { class: "rl-title" });
  const before = h("span", { class: "rl-chip rl-is-out" });
  const bar = h("div", { class: "rl-part" });
  const track = h("div", { class: "rl-way", role: "progressbar", "aria-label": "gradient steps" }, bar);
  const done = h("span", { class: "rl-done" });
  const facts = h("div", { class: "rl-facts", role: "group", "aria-label": "figures of the whole job" });
  const notes = h("div", { class: "rl-notes", role: "group", "aria-label": "what to know about this job" });
  const line = statusLine();
  const cancel = cancelControl(kernel, onChange, line);
  const element = h(
    "header",
    {},
    h("div", { class: "rl-head" }, title, status, before, done, cancel.element),
    track,
    line.element,
    notes,
    facts,
  );
  let former = "";
  let last = 0;
  let quiet = false;
  return {
    element,
    complain: line.complain,
    say: (text) => line.say(text),
    heard() {
      last = performance.now();
      this.silence(false);
    },
    silence(silent) {
      const unanswered = silent && performance.now() - last > QUIET;
      if (unanswered !== quiet) line.say(unanswered ? "the kernel does not answer: it is busy, or was restarted" : "");
      quiet = unanswered;
    },
    update(head) {
      status.textContent = head.status;
      status.dataset.state = head.status;
      status.className = `rl-state rl-chip ${LOOKS[head.status] ?? ""}`;
      const about = [head.about || (head.made ? "" : `on ${head.model}`), `job ${head.id}`].filter(Boolean).join(" · ");
      title.replaceChildren(h("b", {}, head.made ?? head.model), h("span", { class: "rl-dim" }, ` ${about}`));
      before.textContent = head.before ? `trained last on ${head.before}` : "";
      before.hidden = !head.before;
      const share = head.rows ? (head.done + (head.part ?? 0)) / head.rows : head.ended ? 1 : 0;
      bar.style.width = `${100 * share}%`;
      track.setAttribute("aria-valuenow", Math.round(100 * share));
      track.setAttribute("aria-valuetext", progressWords(head));
      done.textContent = progressWords(head);
      track.hidden = head.ended && share >= 1;
      facts.replaceChildren(...grow(head.band));
      notes.replaceChildren(...trouble(head), ...grow(head.hints));
      liveCells(notes, (text) => line.say(text));
      cancel.update(head);
      if (former && former !== head.status) line.say(`the job is now ${head.status}`);
      former = head.status;
    },
  };
}

function trouble(head) {
  return head.trouble ? [h("div", { class: "rl-hint rl-is-warn" }, h("i", { "aria-hidden": "true" }, "!"), h("span", {}, head.trouble))] : [];
}

function progressWords({ done, rows, left, ended, within }) {
  if (rows == null) return ended ? "" : "waiting for its first gradient step";
  const steps = within ? `step ${(done + 1).toLocaleString()} of ${rows.toLocaleString()}, ${within}` : stepsDone(done, rows);
  return ended || left == null ? steps : `${steps}, ${duration(left)} left`;
}

function stepsDone(done, rows) {
  return `${done.toLocaleString()} of ${rows.toLocaleString()} gradient ${rows === 1 ? "step" : "steps"}`;
}

function duration(seconds) {
  const whole = Math.ceil(seconds);
  if (whole < 60) return `${whole} s`;
  const minutes = Math.round(whole / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A cancel button with a confirmation. */
function cancelControl(kernel, onChange, line) {
  const begin = h("button", { type: "button", onclick: () => ask(true) }, "Cancel");
  const sure = h("button", { type: "button", class: "rl-danger", onclick: () => stop() }, "Cancel the job");
  const no = h("button", { type: "button", onclick: () => ask(false) }, "Go on");
  const question = h(
    "span",
    { class: "rl-question", role: "group", "aria-label": "cancel the job?", onkeydown: escape },
    "It will make no checkpoint.",
    sure,
    no,
  );
  const element = h("span", { class: "rl-cancel" }, begin);
  let wanted = false;

  function ask(open) {
    element.replaceChildren(open ? question : begin);
    (open ? no : begin).focus();
  }
  function escape(event) {
    if (event.key === "Escape") ask(false);
  }
  function stop() {
    wanted = true;
    element.replaceChildren(h("span", { class: "rl-dim" }, "cancelling: it ends within this step"));
    kernel.ask("cancel").then(onChange, (error) => {
      wanted = false;
      element.replaceChildren(begin);
      line.complain(error);
    });
  }
  return {
    element,
    update({ ended }) {
      if (ended) element.replaceChildren();
      else if (!element.firstChild && !wanted) element.append(begin);
    },
  };
}

function nextLines({ next, ended }) {
  if (!ended || !next.length) return [];
  return ["Next", ...next.map((line) => h("code", { class: "rl-cell" }, line))];
}
