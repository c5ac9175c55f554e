// The training form: options on the left, the check of what would train on the right, and the submitted job below.

import "./kit/theme.css";
import "./form.css";
import { connect } from "./kit/kernel.js";
import { frame, h, number, refusal, statusLine } from "./kit/dom.js";
import { jobView } from "./job/view.js";

const PAUSE = 180;
const AS_TYPED = "as typed";

function render({ model, el }) {
  const state = model.get("state");
  if (state.refused) return el.append(refusal(state.refused));
  const kernel = connect(model, el);
  const prefix = `rl-${Math.random().toString(36).slice(2)}`;
  const fields = state.options.map((option) => field(option, state.texts[option.name] ?? "", prefix, () => typed()));
  const reset = h("button", { type: "button", onclick: () => defaults() }, "All defaults");
  const algorithm = algorithmChoice(state.algorithms, fields, prefix, () => typed());
  const set = h("fieldset", {}, h("legend", {}, "Options"), algorithm.element, fields.map((each) => each.element), reset);
  const outlook = outlookView(() => submit());
  const place = h("div", { class: "rl-submitted" });
  const title = h("h3");
  const sides = h("div", { class: "rl-sides" }, set, outlook.element);
  const form = h("form", { "aria-label": "training form", onsubmit: (event) => event.preventDefault() }, h("header", {}, title, outlook.model), sides);
  const element = frame("rl-form", form, place);
  let job = null;
  let timer = 0;
  let asking = false;
  let again = false;
  let submitting = false;

  const texts = () => Object.fromEntries(fields.map(({ name, text }) => [name, text()]).filter(([, text]) => text));
  const show = (fresh) => {
    state.outlook = fresh;
    title.replaceChildren("Train on ", ...fresh.names.flatMap((name, i) => [i ? ", " : "", h("code", {}, name)]));
    fields.forEach((each) => each.tell(fresh.problems[each.name], fresh.notes[each.name]));
    outlook.update(fresh);
  };
  const typed = () => {
    state.texts = texts();
    algorithm.update();
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
      const fresh = await kernel.ask("look", { texts: texts() });
      asking = false;
      if (!again && !submitting) show(fresh);
    } catch (error) {
      asking = false;
      outlook.complain(error);
    }
    if (again) look();
  };
  const defaults = () => {
    fields.forEach((each) => each.fill(""));
    typed();
  };
  const submitted = (started) => {
    if (job) return;
    state.job = started;
    clearTimeout(timer);
    set.disabled = true;
    outlook.done(started.head.id);
    job = jobView(kernel, started);
    place.append(job.element);
  };
  const submit = () => {
    clearTimeout(timer);
    submitting = true;
    outlook.submitting();
    kernel.ask("submit", { texts: texts() }).then(submitted, (error) => {
      submitting = false;
      outlook.failed(error);
      look();
    });
  };

  kernel.on("changed", () => lookSoon());
  kernel.on("submitted", ({ job: started }) => submitted(started));
  kernel.onSilence((silent) => outlook.silence(silent));
  algorithm.update();
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

/** One option: its field, its description, a problem with its value, and notes. */
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
  const does = h("p", { id: `${id}-does`, class: "rl-dim" }, option.does, "; ", h("span", { class: "rl-range" }, limits(option)));
  const wrong = h("p", { id: `${id}-wrong`, class: "rl-problem" });
  const notes = h("p", { id: `${id}-notes`, class: "rl-note" });
  control.setAttribute("aria-describedby", `${id}-does ${id}-wrong ${id}-notes`);
  const element = h(
    "div",
    { class: "rl-option" },
    h("label", { for: id }, breakable(option.name)),
    control,
    h("div", { class: "rl-about" }, does, wrong, notes),
  );
  return {
    name: option.name,
    element,
    text: () => control.value.trim(),
    fill(value) {
      control.value = value;
    },
    tell(problem, remarks = []) {
      element.classList.toggle("rl-set", Boolean(control.value.trim()));
      control.setAttribute("aria-invalid", String(Boolean(problem)));
      wrong.textContent = problem ?? "";
      notes.textContent = remarks.join("; ");
    },
  };
}

/** A choice that fills in the options of an algorithm, and shows which one's they are: none's, or as typed. */
function algorithmChoice(algorithms, fields, prefix, typed) {
  const names = Object.keys(algorithms);
  const known = new Set(names.flatMap((name) => Object.keys(algorithms[name])));
  const theirs = fields.filter(({ name }) => known.has(name));
  const text = (name, option) => algorithms[name]?.[option] ?? "";
  const isOf = (name) => theirs.every((each) => each.text() === text(name, each.name));
  const id = `${prefix}-algorithm`;
  const fill = () => {
    theirs.forEach((each) => each.fill(text(control.value, each.name)));
    typed();
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
    h("div", { class: "rl-about" }, does),
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

/** What would train, the cell that does the same, and the button. */
function outlookView(submit) {
  const model = h("p", { class: "rl-dim rl-model" });
  const headline = h("p", { class: "rl-headline", role: "status" });
  const picture = h("div", { class: "rl-spread" });
  const rest = h("ul", { class: "rl-rest" });
  const cell = h("pre", { tabindex: "0", "aria-label": "the cell that does the same" });
  const copy = h("button", { type: "button", onclick: () => copyText(cell, copied) }, "Copy");
  const copied = h("span", { class: "rl-dim", role: "status" });
  const button = h("button", { type: "button", class: "rl-submit", onclick: () => submit() }, "Submit");
  const why = statusLine();
  const element = h(
    "section",
    { class: "rl-outlook", "aria-label": "what would train" },
    h("h4", {}, "What would train"),
    headline,
    picture,
    rest,
    h("h4", {}, "The same as a cell", h("span", { class: "rl-tools" }, copied, copy)),
    cell,
    h("div", { class: "rl-row" }, button, why.element),
  );
  let blocked = "";
  let over = false;
  return {
    element,
    model,
    update(fresh) {
      if (over) return;
      element.removeAttribute("aria-busy");
      model.replaceChildren(...(fresh.model ? ["model ", h("b", {}, fresh.model)] : []));
      if (headline.textContent !== fresh.headline) headline.textContent = fresh.headline;
      picture.replaceChildren(...(fresh.spread ? spreadPicture(fresh.spread) : []));
      rest.replaceChildren(
        ...fresh.rest.map(({ text, fix }) => h("li", {}, text, fix && " → ", fix && h("code", {}, fix))),
      );
      cell.textContent = fresh.cell;
      blocked = fresh.blocked;
      button.disabled = Boolean(blocked);
      blocked ? why.complain({ message: blocked }) : why.say("");
    },
    wait() {
      element.setAttribute("aria-busy", "true");
    },
    submitting() {
      button.disabled = true;
      why.say("submitting …");
    },
    failed(error) {
      why.complain(error);
      button.disabled = Boolean(blocked);
    },
    complain: why.complain,
    silence(silent) {
      if (!over && silent) why.say("the kernel does not answer: it is busy, or was restarted");
      else if (!over && !blocked) why.say("");
    },
    done(id) {
      over = true;
      button.disabled = true;
      element.removeAttribute("aria-busy");
      why.say(`submitted as job ${id}; another form submits another`);
    },
  };
}

/** Histogram of the advantages: bars to the left make completions less likely, bars to the right more likely. */
function spreadPicture({ least, most, above, below, at_0: none, bins }) {
  const highest = Math.max(...bins);
  const words = `advantages from ${number(least, 3)} to ${number(most, 3)}: ${above} above 0, ${below} below${none ? `, ${none} at 0` : ""}`;
  const bars = bins.map((count, i) => {
    const bar = h("span", { class: i < bins.length / 2 ? "rl-below" : "rl-above" });
    bar.style.height = count ? `${Math.max(6, (100 * count) / highest)}%` : "0";
    return bar;
  });
  return [h("div", { class: "rl-bars", role: "img", "aria-label": words }, bars), h("p", { class: "rl-dim" }, words)];
}

async function copyText(element, copied) {
  try {
    await navigator.clipboard.writeText(element.textContent);
    copied.textContent = "copied";
  } catch {
    getSelection().selectAllChildren(element); // a page in an insecure context has no clipboard
    copied.textContent = "selected: press Ctrl+C";
  }
}

export default { render };
