// Elements from plain values. Text becomes text nodes and nothing else: what a policy wrote never becomes markup.

/** An element; `on...` properties are listeners, `class`, `aria-...` and all else attributes; null and false are left out. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2).toLowerCase(), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

/** The root of a widget, in which MathJax sets nothing: a completion with dollars is no formula. JupyterLab leaves the keys pressed inside it alone: it asks the very element that has them. */
export function frame(name, ...children) {
  const root = h("div", { class: `rl tex2jax_ignore mathjax_ignore ${name}`, "data-lm-suppress-shortcuts": "true" }, ...children);
  root.addEventListener("focusin", ({ target }) => target.setAttribute("data-lm-suppress-shortcuts", "true"));
  return root;
}

/** A number as a person reads it: at most four digits, nothing for null. */
export function number(value, digits = 4) {
  return value == null ? "" : String(Number(Number(value).toPrecision(digits)));
}

/** A polite announcement line; say(text) puts words into it, complain(error) an error with its hint. */
export function statusLine() {
  const element = h("div", { class: "rl-status", role: "status", "aria-live": "polite" });
  return {
    element,
    say(text) {
      element.classList.remove("rl-wrong");
      element.textContent = text;
    },
    /** Take back a complaint: what it was about is over. */
    calm() {
      if (element.classList.contains("rl-wrong")) this.say("");
    },
    complain(error) {
      element.classList.add("rl-wrong");
      element.textContent = error.hint ? `${error.message} → ${error.hint}` : error.message;
    },
  };
}

/** What is shown in the place of a view that cannot be: why, and what to type. */
export function refusal(error) {
  const status = statusLine();
  status.complain(error);
  return frame("rl-refused", status.element);
}
