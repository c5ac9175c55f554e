// The training form: options on the left, what would happen on the right, and the submitted job below.

import "../kit/theme.css";
import "./kit/controls.css";
import "./form.css";
import { insertCell, liveCells } from "./kit/cells.js";
import { connect } from "./kit/kernel.js";
import { frame, grow, h, refusal, statusLine } from "./kit/dom.js";
import { jobView } from "./job/view.js";

const PAUSE = 180;
const AS_TYPED = "as typed";

function render({ model, el }) {
  const state = model.get("state");
  if (state.refused) return el.append(refusal(state.refused));
  const kernel = connect(model, el);
  const options = optionsView(state, () => typed());
  const outlook = outlookView({ submit: () => submit(), fill: (texts) => fill(texts) });
  const place = h("div", { class: "rl-submitted" });
  const sides = h("div", { class: "rl-sides" }, options.element, outlook.element);
  const form = h("form", { "aria-label": "training form", onsubmit: (event) => event.preventDefault(), onkeydown: (event) => keys(event) }, outlook.above, sides);
  const element = frame("rl-form rl-panel", form, place);
  let job = null;
  let timer = 0;
  let asking = false;
  let again = false;
  let submitting = false;

  const show = (fresh) => {
    state.outlook = fresh;
    options.tell(fresh);
    outlook.update(fresh);
  };
  const typed = () => {
    state.texts = options.texts();
    lookSoon();
  };
  const lookSoon = () => {
    if (job || submitting) return;
    outlook.wait();
    clearTimeout(timer);
    timer = setTimeout(look, PAUSE);
  };
  // one request at a time, so that no older response comes after a newer one
  const look = async () => {
    again = asking;
    if (asking) return;
    asking = true;
    try {
      const fresh = await kernel.ask("look", { texts: options.texts() });
      asking = false;
      if (!again && !submitting) show(fresh);
    } catch (error) {
      asking = false;
      outlook.complain(error);
    }
    if (again) look();
  };
  const fill = (texts) => {
    if (job) return;
    options.fill(texts);
    typed();
  };
  const submitted = (started) => {
    if (job) return;
    state.job = started;
    clearTimeout(timer);
    options.freeze();
    outlook.done(started.head.id);
    job = jobView(kernel, started);
    place.append(job.element);
  };
  const submit = () => {
    if (job || submitting) return;
    clearTimeout(timer);
    submitting = true;
    outlook.submitting();
    kernel.ask("submit", { texts: options.texts() }).then(submitted, (error) => {
      submitting = false;
      outlook.failed(error);
      look();
    });
  };
  function keys(event) {
    if (event.key !== "Enter" || !event.shiftKey) return;
    event.preventDefault();
    event.stopPropagation();
    if (outlook.isReady()) submit();
  }

  kernel.on("changed", () => lookSoon());
  kernel.on("submitted", ({ job: started }) => submitted(started));
  kernel.onSilence((silent) => outlook.silence(silent));
  show(state.outlook);
  if (state.job) submitted(state.job);
  else look();
  el.append(element);
  return () => {
    clearTimeout(timer);
    job?.close();
    kernel.close();
  };
}

/** All options: those that matter first, those that are set or changed since the last job, and the others, folded. */
function optionsView({ options, algorithms, texts, outlook }, typed) {
  const prefix = `rl-${Math.random().toString(36).slice(2)}`;
  const changed = () => {
    algorithm.update();
    count();
    typed();
  };
  const fields = options.map((option) => field(option, texts[option.name] ?? "", prefix, changed));
  const algorithm = algorithmChoice(algorithms, fields, prefix, changed);
  const isSet = ({ name }) => Boolean(texts[name] || outlook.was[name]);
  const [first, others] = divide(fields, (each) => each.first);
  const [set, rest] = divide(others, isSet);
  const words = h("summary");
  const names = h("p", { class: "rl-dim rl-unopened" }, rest.map(({ name }) => name).slice(0, 4).join(" · "), " …");
  const folded = h("details", {}, words, rest.map((each) => each.element));
  const element = h(
    "fieldset",
    {},
    h("legend", {}, "Options"),
    first.map((each) => each.element),
    algorithm.element,
    set.map((each) => each.element),
    folded,
    names,
  );
  const count = () => {
    const others = rest.filter((each) => each.text()).length;
    if (others) folded.open = true;
    words.textContent = `${rest.length} more, ${others ? `${others} not at their default` : "all at their default"}`;
  };
  algorithm.update();
  count();
  return {
    element,
    texts: () => Object.fromEntries(fields.map(({ name, text }) => [name, text()]).filter(([, text]) => text)),
    fill(filled) {
      fields.forEach((each) => each.fill(filled[each.name] ?? ""));
      algorithm.update();
      count();
    },
    tell(fresh) {
      fields.forEach((each) => each.tell(fresh.problems[each.name], fresh.notes[each.name], fresh.was[each.name]));
      if (rest.some(({ name }) => fresh.problems[name])) folded.open = true;
    },
    freeze() {
      element.disabled = true;
    },
  };
}

function divide(list, test) {
  return [list.filter(test), list.filter((each) => !test(each))];
}

/** One option: its field, what the last job had, its description, a problem with its value, and notes. */
function field(option, text, prefix, typed) {
  const id = `${prefix}-${option.name}`;
  const control = option.values.length
    ? choice(option, text, id, typed)
    : h("input", {
        id,
        type: "text",
        inputmode: "decimal",
        autocomplete: "off",
        spellcheck: "false",
        placeholder: option.default.length < 9 ? option.default : "default",
        value: text,
        oninput: typed,
      });
  const was = h("span", { id: `${id}-was`, class: "rl-was" });
  const does = h("p", { id: `${id}-does`, class: "rl-dim" }, option.does, "; ", limits(option));
  const wrong = h("p", { id: `${id}-wrong`, class: "rl-problem" });
  const notes = h("p", { id: `${id}-notes`, class: "rl-note" });
  control.classList.add("rl-stays");
  control.setAttribute("aria-describedby", `${id}-was ${id}-does ${id}-wrong ${id}-notes`);
  const element = h(
    "div",
    { class: "rl-option" },
    h("div", {}, h("label", { for: id }, breakable(option.name)), was),
    control,
    h("div", { class: "rl-explained" }, does, wrong, notes),
  );
  return {
    name: option.name,
    first: option.first,
    element,
    text: () => control.value.trim(),
    fill(value) {
      if (control.matches("select") && ![...control.options].some((each) => each.value === value)) control.append(h("option", { value }, value));
      control.value = value;
    },
    tell(problem, remarks = [], before = "") {
      element.classList.toggle("rl-differs", Boolean(before));
      was.textContent = before ? `last job: ${before}` : "";
      control.setAttribute("aria-invalid", String(Boolean(problem)));
      wrong.textContent = problem ?? "";
      notes.textContent = remarks.join("; ");
    },
  };
}

/** A choice that fills in the options of an algorithm, and shows which one's they are: none's, or as typed. */
function algorithmChoice(algorithms, fields, prefix, changed) {
  const names = Object.keys(algorithms);
  const known = new Set(names.flatMap((name) => Object.keys(algorithms[name])));
  const theirs = fields.filter(({ name }) => known.has(name));
  const text = (name, option) => algorithms[name]?.[option] ?? "";
  const isOf = (name) => theirs.every((each) => each.text() === text(name, each.name));
  const id = `${prefix}-algorithm`;
  const fill = () => {
    theirs.forEach((each) => each.fill(text(control.value, each.name)));
    changed();
  };
  const control = h(
    "select",
    { id, onchange: fill, "aria-describedby": `${id}-does` },
    h("option", { value: "" }, "default"),
    names.map((name) => h("option", { value: name }, name)),
    h("option", { value: AS_TYPED, hidden: true }, "as typed"),
  );
  const does = h("p", { id: `${id}-does`, class: "rl-dim" }, "fills in the options of a published algorithm");
  const element = h(
    "div",
    { class: "rl-option" },
    h("label", { for: id }, "algorithm"),
    control,
    h("div", { class: "rl-explained" }, does),
  );
  return {
    element,
    update() {
      control.value = ["", ...names].find(isOf) ?? AS_TYPED;
    },
  };
}

function choice(option, text, id, typed) {
  const listed = ["", ...option.values, ...(text && !option.values.includes(text) ? [text] : [])];
  const control = h(
    "select",
    { id, onchange: typed },
    listed.map((value) => h("option", { value, selected: value === text }, value || `default (${option.default})`)),
  );
  return control;
}

function limits(option) {
  const range = option.values.length ? "" : `${option.range}, `;
  return `${range}default ${option.default}`;
}

/** A long name that may be broken after its underscores. */
function breakable(name) {
  return name.split(/(?<=_)/).flatMap((part, i) => (i ? [h("wbr"), part] : [part]));
}

/** What would happen, the cell that does the same, and the buttons. `above`: the heading and what to know first. */
function outlookView({ submit, fill }) {
  const head = h("div");
  const facts = h("div", { role: "group", "aria-label": "what to know first" });
  const above = h("div", { class: "rl-above" }, head, facts);
  const headline = h("p", { class: "rl-headline", role: "status" });
  const figures = h("div", { class: "rl-happens" });
  const cell = h("pre", { tabindex: "0", "aria-label": "the cell that does the same" });
  const line = statusLine();
  const words = h("span");
  const train = h("button", { type: "button", class: "rl-main", title: "Shift+Enter", onclick: () => submit() }, words, h("kbd", { "aria-hidden": "true" }, "⇧⏎"));
  const insert = h("button", { type: "button", onclick: () => insertCell(insert, cell.textContent, line.say) }, "Insert as a cell");
  const copy = h("button", { type: "button", onclick: () => copyText(cell, line.say) }, "Copy as cell");
  const asBefore = h("button", { type: "button", class: "rl-plain", onclick: () => fill(last) }, "As in the last job");
  const defaults = h("button", { type: "button", class: "rl-plain", onclick: () => fill({}) }, "All defaults");
  const element = h(
    "section",
    { class: "rl-outlook", "aria-label": "what would happen" },
    h("h3", {}, "What would happen"),
    headline,
    figures,
    h("h3", {}, "The same as a cell"),
    cell,
    h("div", { class: "rl-doing" }, train, insert, copy, h("span", { class: "rl-space" }), asBefore, defaults),
    line.element,
  );
  let blocked = "";
  let over = false;
  let last = null;
  return {
    element,
    above,
    isReady: () => !train.disabled,
    update(fresh) {
      head.replaceChildren(...grow(fresh.head));
      if (over) return;
      element.removeAttribute("aria-busy");
      facts.replaceChildren(...grow(fresh.changed), ...grow(fresh.hints));
      liveCells(facts, line.say);
      if (headline.textContent !== fresh.headline) headline.textContent = fresh.headline;
      figures.replaceChildren(...grow(fresh.figures));
      cell.textContent = fresh.cell;
      words.textContent = fresh.train;
      blocked = fresh.blocked;
      last = fresh.last;
      train.disabled = Boolean(blocked);
      asBefore.hidden = !last;
      blocked ? line.complain({ message: blocked }) : line.say("");
    },
    wait() {
      element.setAttribute("aria-busy", "true");
    },
    submitting() {
      train.disabled = true;
      line.say("submitting …");
    },
    failed(error) {
      line.complain(error);
      train.disabled = Boolean(blocked);
    },
    complain: line.complain,
    silence(silent) {
      if (!over && silent) line.say("the kernel does not answer: it is busy, or was restarted");
      else if (!over && !blocked) line.say("");
    },
    done(id) {
      over = true;
      [train, asBefore, defaults].forEach((each) => {
        each.disabled = true;
      });
      element.removeAttribute("aria-busy");
      line.say(`submitted as job ${id}; another form submits another`);
    },
  };
}

async function copyText(element, say) {
  try {
    await navigator.clipboard.writeText(element.textContent);
    say("copied");
  } catch {
    getSelection().selectAllChildren(element); // a page in an insecure context has no clipboard
    say("selected: press Ctrl+C");
  }
}

export default { render };
