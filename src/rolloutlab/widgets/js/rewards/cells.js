// Cells of a trajectory. `draw(row)` makes the content of a cell; `key(row)` changes when the content does.

import { h, number, signed } from "../kit/dom.js";

const plain = (key) => ({ key, draw: (row) => document.createTextNode(key(row)) });

export const figure = (field) => plain((row) => number(row[field]));
export const component = (part) => figure(`component:${part}`);

/** A name without its middle where it is long: `/0/3` identifies the trajectory. */
export const name = {
  key: (row) => row.name,
  draw({ name: whole }) {
    const end = whole.search(/\/\d+\/\d+$/);
    return h("code", { class: "rl-trajectory", title: whole }, h("span", {}, whole.slice(0, end)), h("span", {}, whole.slice(end)));
  },
};

export const plainText = (field) => ({
  key: (row) => row[field],
  draw: (row) => h("span", { class: "rl-clip", dir: "auto", title: row[field] }, row[field]),
});

/** A bar from the middle, to the right for more likely, to the left for less likely; or why there is none. */
export function advantage(largest) {
  const percent = ({ advantage: value }) => Math.round(50 * Math.min(1, Math.abs(value) / Math.max(1e-9, largest())));
  const words = ({ advantage: value }) => signed(value);
  return {
    key: (row) => row.error ?? row.reason ?? `${percent(row)} ${words(row)} ${row.advantage == null}`,
    draw(row) {
      if (row.error) {
        const whole = [row.error, row.place].filter(Boolean).join("\n\n");
        return h("span", { class: "rl-clip rl-why", dir: "auto", title: whole }, `failed: ${row.error.split("\n")[0]}`);
      }
      if (row.advantage == null && !row.reason) return h("span", { class: "rl-dim" }, "…"); // not all is read yet
      if (row.reason) return h("span", { class: "rl-why", title: row.why }, row.why_not);
      const [side, sign] = row.advantage < 0 ? ["right", "rl-less"] : ["left", "rl-more"];
      const bar = h("i", { class: sign, style: `${side}:50%;width:${percent(row)}%` });
      const track = h("span", { class: "rl-track", "aria-hidden": "true" }, bar);
      return h("span", { class: "rl-advantage" }, track, h("span", { class: "rl-figure" }, words(row)));
    },
  };
}

/** The source of the reward; a reward by hand that differs from the function's or judge's is highlighted. */
export const source = {
  key: (row) => `${row.source} ${row.was}`,
  draw({ source: by, was }) {
    if (by == null) return h("span", { class: "rl-dim" }, "no reward");
    if (was == null) return document.createTextNode(by);
    const words = `${by}, was ${number(was)}`;
    return h("span", { class: "rl-clip rl-disagrees", title: words }, words);
  },
};

/** How an episode ended; all but `done` is highlighted. */
export const end = {
  key: (row) => row.episode_end,
  draw({ episode_end: reason }) {
    if (!reason || reason === "done") return document.createTextNode(reason ?? "");
    const words = reason === "length" ? "cut off" : reason.replaceAll("_", " ");
    return h("span", { class: "rl-clip rl-cut", title: words }, words);
  },
};

export const finish = {
  key: (row) => row.finish_reason,
  draw({ finish_reason: reason }) {
    if (reason !== "length") return document.createTextNode(reason ?? "");
    return h("span", { class: "rl-cut", title: "cut off by max_tokens" }, "cut off");
  },
};
