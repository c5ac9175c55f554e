// Sampled tokens, each with how likely it was when it was sampled, or how that has changed since.

import { h, number } from "../kit/dom.js";

/** Spans for the tokens of one turn; gaps: new minus old logprob of each, where they are shown instead. */
export function tokenSpans(turn, gaps) {
  return turn.text.map((text, i) => {
    const { logprob, rank, instead, outside } = Object.fromEntries(
      ["logprob", "rank", "instead", "outside"].map((name) => [name, turn[name][i]]),
    );
    const gap = gaps?.[i];
    const label = [
      `“${text}”`,
      `logprob ${number(logprob, 3)}`,
      `probability ${percent(logprob)}`,
      rank && (rank === 1 ? "the likeliest" : `rank ${rank}`),
      instead && `instead: ${instead.map(([other, value]) => `“${other}” ${percent(value)}`).join(", ")}`,
      gaps && (gap == null ? "not scored now" : `now ${gap >= 0 ? "+" : ""}${number(gap, 3)}`),
      outside && "no part of the text",
    ].filter(Boolean).join(" · ");
    const [kind, share] = gaps ? [gap >= 0 ? "up" : "down", Math.abs(gap ?? 0) * 60] : ["odd", -logprob * 25];
    const properties = { role: "img", title: label, "aria-label": label, style: `--share: ${Math.min(65, share).toFixed(0)}%` };
    const seen = text === "" ? "∅" : text.replaceAll("\n", "↵\n");
    return h("span", { class: `rl-token rl-${kind}${outside ? " rl-outside" : ""}`, ...properties }, seen);
  });
}

function percent(logprob) {
  const share = 100 * Math.exp(logprob);
  return share >= 99.95 ? "100%" : share < 0.1 ? "under 0.1%" : `${number(share, 3)}%`;
}
