// Elements from plain values. Text becomes text nodes alone: text of a policy never becomes markup.

/** An element; `on...` properties are listeners, `class`, `aria-...` and all else attributes; null and false are left out. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2).toLowerCase(), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

const TAGS = new Set("a b br code dd del details div dl dt em figcaption figure h3 h4 i img ins li mark ol p pre small span summary table tbody td th thead tr u ul wbr".split(" "));
const ATTRIBUTES = /^(class|style|title|role|tabindex|dir|open|colspan|align|alt|width|height|data-\w+|aria-[a-z]+)$/;
const PICTURE = "data:image/svg+xml,";

/** Elements from the nodes of ../kit/tree.py: texts, and [tag, attributes, children]. What is not of a view's parts is left out. */
export function grow(nodes) {
  return nodes.flatMap((node) => {
    if (typeof node === "string") return [node];
    const [tag, attributes, children] = node;
    if (!TAGS.has(tag)) return grow(children);
    const kept = Object.entries(attributes).filter(([name, value]) => ATTRIBUTES.test(name) || (tag === "img" && name === "src" && value.startsWith(PICTURE)));
    return [h(tag, Object.fromEntries(kept), ...grow(children))];
  });
}

/** The root of a widget, without MathJax: a completion with dollars is not a formula. JupyterLab does not handle keys that are pressed inside it. */
export function frame(name, ...children) {
  const root = h("div", { class: `rl tex2jax_ignore mathjax_ignore ${name}`, "data-lm-suppress-shortcuts": "true" }, ...children);
  root.addEventListener("focusin", ({ target }) => target.setAttribute("data-lm-suppress-shortcuts", "true"));
  return root;
}

/** A readable number: at most four digits, from 1,000 on more, as rewards of a group may differ there only; nothing for null. */
export function number(value, digits = 4) {
  return value == null ? "" : String(Number(Number(value).toPrecision(Math.abs(value) >= 1000 ? 7 : digits)));
}

/** A change or an advantage with its sign; what rounds to 0 has none. */
export function signed(value) {
  const size = Math.abs(value).toFixed(2);
  return Number(size) ? `${value < 0 ? "−" : "+"}${size}` : size;
}

/** The reward of one turn, with its sign; nothing where it has none. */
export function earned(reward) {
  if (reward == null) return null;
  const sign = reward > 0 ? "+" : reward < 0 ? "−" : "";
  const side = reward > 0 ? " rl-gained" : reward < 0 ? " rl-lost" : "";
  return h("span", { class: `rl-earned${side}`, title: "reward of this turn" }, `${sign}${number(Math.abs(reward))}`);
}

/** A polite live region; say(text) shows a message, complain(error) an error with its hint. */
export function statusLine() {
  const element = h("div", { class: "rl-status", role: "status", "aria-live": "polite" });
  return {
    element,
    say(text) {
      element.classList.remove("rl-wrong");
      element.textContent = text;
    },
    /** Remove an error that is over. */
    calm() {
      if (element.classList.contains("rl-wrong")) this.say("");
    },
    complain(error) {
      element.classList.add("rl-wrong");
      element.textContent = error.hint ? `${error.message} → ${error.hint}` : error.message;
    },
  };
}

/** Shown in place of a view after an error: the message, and what to type. */
export function refusal(error) {
  const status = statusLine();
  status.complain(error);
  return frame("rl-refused", status.element);
}
