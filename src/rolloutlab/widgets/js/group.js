// The group view: a prompt, and its completions side by side. Its Python part is trajectories/group_view.py.

import "./kit/theme.css";
import "./group.css";
import { Card } from "./group/card.js";
import { KEYS, onKey } from "./group/keys.js";
import { Ranking } from "./group/ranking.js";
import { folded, longText, turn } from "./group/text.js";
import { frame, h, number, statusLine } from "./kit/dom.js";
import { connect } from "./kit/kernel.js";
import { Sight } from "./kit/sight.js";

const BEST = "best";

class Groups {
  constructor(model, el) {
    this.kernel = connect(model, el);
    this.status = statusLine();
    this.state = model.get("state");
    this.mode = { tokens: false, gap: false, reference: "" };
    this.cards = [];
    this.focused = 0;
    this.sight = new Sight();
    this.root = frame("rl-groups");
    this.root.setAttribute("role", "region");
    this.root.addEventListener("keydown", (event) => onKey(this, event));
    el.append(this.root);
    let waited = false;
    this.kernel.onSilence((silent) => {
      if (silent !== waited) this.status.say(silent ? "waiting for the kernel: it is busy, or gone" : "");
      waited = silent;
    });
    this.kernel.on("changed", () => this.group && this.attempt(() => this.refresh()));
    if (this.state.refused) {
      this.status.complain(this.state.refused);
      this.root.append(this.status.element);
    } else {
      this.show(this.state.shown);
    }
  }

  close() {
    this.sight.close();
    this.kernel.close();
  }

  ask(call, args = {}) {
    return this.kernel.ask(call, { position: this.group.position, ...args });
  }

  /** Run something that may fail; whether it succeeded. An error is shown. */
  async attempt(deed) {
    try {
      await deed();
      return true;
    } catch (error) {
      this.status.complain(error);
      return false;
    }
  }

  /** Show another group: `wanted` is {at} or {position}. */
  async go(wanted) {
    await this.attempt(async () => {
      this.status.say("");
      this.show(await this.kernel.ask("at" in wanted ? "group" : "find", wanted));
      this.focus(0);
    });
  }

  step(by) {
    const at = this.at + by;
    if (at >= 0 && at < this.of) return this.go({ at });
  }

  show({ at, of, name, group }) {
    this.sight.forget();
    Object.assign(this, { at, of, name, group, ranking: null, focused: 0 });
    this.root.setAttribute("aria-label", group ? `group ${group.name}` : name);
    if (!group) {
      this.cards = [];
      this.root.replaceChildren(h("p", {}, `${name} has no groups`));
      return;
    }
    this.mode.reference = this.mode.reference === BEST ? BEST : "";
    this.cards = group.members.map((member, i) => new Card(this, member, i));
    this.root.replaceChildren(
      this.heading(),
      this.prompt(),
      this.tools(),
      (this.rankBar = h("div", { class: "rl-ranking", hidden: true })),
      this.status.element,
      (this.strip = h(
        "ol",
        { class: "rl-strip", "aria-label": "completions" },
        this.cards.map((card) => h("li", {}, card.element)),
      )),
      (this.help = h("dl", { class: "rl-keys", hidden: true, "aria-label": "keys" }, KEYS.map(([keys, does]) => h("div", {}, h("dt", {}, keys), h("dd", {}, does))))),
    );
    this.stand(group);
    this.cards.forEach((card) => this.sight.watch(card));
    this.cards[0]?.element.setAttribute("tabindex", "0");
  }

  heading() {
    this.counts = h("span", { class: "rl-dim" });
    const pick = this.of > 1 && [
      h("button", { onclick: () => this.step(-1), disabled: this.at === 0, "aria-label": "previous group", title: "previous group: p" }, "‹"),
      h("input", {
        type: "number",
        min: 0,
        class: "rl-pick",
        value: this.group.position,
        "aria-label": "group",
        onkeydown: ({ key, target }) => key === "Enter" && target.blur(), // Enter alone changes nothing in JupyterLab
        onchange: ({ target }) => target.value && this.go({ position: Number(target.value) }),
      }),
      h("button", { onclick: () => this.step(1), disabled: this.at + 1 >= this.of, "aria-label": "next group", title: "next group: n" }, "›"),
      h("span", { class: "rl-dim" }, `${(this.at + 1).toLocaleString("en")} of ${this.of.toLocaleString("en")}`),
    ];
    const label = this.of > 1 ? `${this.name}/` : this.group.name;
    return h("header", { class: "rl-heading" }, h("strong", {}, label), pick || null, this.counts);
  }

  prompt() {
    const row = Object.entries(this.group.row);
    const tools = this.group.tools;
    return h(
      "section",
      { class: "rl-prompt", "aria-label": "prompt", tabindex: 0 },
      this.group.prompt.map((message) => turn(this, null, message)),
      row.length > 0 &&
        h("div", { class: "rl-turn" }, h("div", { class: "rl-role" }, "row"), h("div", { class: "rl-dim rl-text" }, row.map(([name, value]) => `${name}: ${value}`).join(" · "))),
      tools.length > 0 &&
        h(
          "div",
          { class: "rl-turn" },
          h("div", { class: "rl-role" }, "tools"),
          h("div", {}, tools.map((tool) => folded(tool.name, () => longText(this, null, tool.definition)))),
        ),
    );
  }

  tools() {
    const members = this.group.members;
    this.compare = h(
      "select",
      { onchange: (event) => this.refer(event.target.value), title: "words added and removed: c" },
      h("option", { value: "" }, "nothing"),
      h("option", { value: BEST }, "the best rewarded"),
      members.map((member) => h("option", { value: member.seat }, `${member.seat}`)),
    );
    this.compare.value = this.mode.reference;
    this.tokenButton = h("button", { onclick: () => this.toggle("tokens"), "aria-pressed": "false", title: "what the policy thought of each token: t" }, "Tokens");
    this.gapButton = h("button", { onclick: () => this.toggle("gap"), "aria-pressed": "false", hidden: true, title: "logprob at the newest checkpoint minus at sampling: g" }, "Gap to the newest checkpoint");
    this.legend = h("span", { class: "rl-dim rl-legend" });
    const bar = h(
      "div",
      { class: "rl-tools", role: "toolbar", "aria-label": "what to show" },
      h("label", {}, "compare with ", this.compare),
      this.tokenButton,
      this.gapButton,
      this.legend,
      h("span", { class: "rl-space" }),
      (this.rankButton = h("button", { onclick: () => this.startRanking(), title: "rank by keys: r" }, "Rank")),
      h("button", { onclick: () => this.undo(), title: "take back the newest change by hand: u" }, "Undo"),
      h("button", { onclick: () => this.toggleHelp(), "aria-label": "keys", title: "keys: ?" }, "?"),
    );
    this.modeShown();
    return bar;
  }

  /** Update rewards and advantages. */
  stand({ standing, whole }) {
    this.standing = new Map(standing.map((each) => [each.seat, each]));
    const largest = Math.max(...standing.map(({ advantage }) => Math.abs(advantage ?? 0)), 1e-9);
    const before = this.referenceSeat();
    this.cards.forEach((card) => card.stand(this.standing.get(card.member.seat), largest));
    const rewards = standing.map(({ reward }) => reward).filter((reward) => reward != null);
    const idle = standing.filter(({ advantage }) => advantage == null).length;
    const mean = rewards.reduce((sum, reward) => sum + reward / rewards.length, 0);
    this.counts.textContent = [
      `${standing.length} completion${standing.length === 1 ? "" : "s"}`,
      whole?.mean_reward != null && whole.groups > 1 && `mean reward ${number(whole.mean_reward, 3)} of all ${whole.scored.toLocaleString("en")} in ${whole.groups.toLocaleString("en")} groups`,
      rewards.length ? `${whole && whole.groups > 1 ? "of this group" : "mean reward"} ${number(mean, 3)}` : "not scored yet",
      rewards.length < standing.length && rewards.length > 0 && `${standing.length - rewards.length} without a reward`,
      rewards.length > 0 && idle > 0 && `${idle} would not train`,
    ].filter(Boolean).join(" · ");
    if (this.shownReference !== undefined && this.referenceSeat() !== this.shownReference) this.redraw();
    this.shownReference = this.referenceSeat();
  }

  async refresh() {
    this.stand(await this.ask("standing"));
  }

  /** The seat that the others are compared with, if any. */
  referenceSeat() {
    if (this.mode.reference !== BEST) return this.mode.reference === "" ? null : Number(this.mode.reference);
    const scored = [...(this.standing?.values() ?? [])].filter(({ reward }) => reward != null);
    return scored.length ? scored.reduce((best, each) => (each.reward > best.reward ? each : best)).seat : null;
  }

  refer(reference) {
    Object.assign(this.mode, { reference, tokens: false, gap: false });
    this.compare.value = reference;
    this.redraw();
    if (reference === BEST && this.referenceSeat() == null) this.status.say("no completion has a reward yet");
  }

  cycleReference() {
    const here = String(this.cards[this.focused].member.seat);
    this.refer({ "": BEST, [BEST]: here }[this.mode.reference] ?? "");
  }

  toggle(what) {
    if (what === "gap" && !(this.mode.tokens && this.state.gap)) return;
    this.mode[what] = !this.mode[what];
    if (!this.mode.tokens) this.mode.gap = false;
    this.mode.reference = "";
    this.compare.value = "";
    this.redraw();
  }

  redraw() {
    this.shownReference = this.referenceSeat();
    this.modeShown();
    this.cards.forEach((card) => card.renew());
  }

  modeShown() {
    const { tokens, gap } = this.mode;
    this.tokenButton.setAttribute("aria-pressed", String(tokens));
    this.gapButton.setAttribute("aria-pressed", String(gap));
    this.gapButton.hidden = !tokens || !this.state.gap;
    const chip = (kind, share, text) => h("span", { class: `rl-token rl-${kind}`, style: `--share: ${share}%` }, text);
    this.legend.replaceChildren(
      ...(!tokens
        ? []
        : gap
          ? [chip("up", 50, "likelier now"), " ", chip("down", 50, "less likely now")]
          : [chip("odd", 10, "90%"), chip("odd", 35, "25%"), chip("odd", 60, "under 1%"), " likely when sampled · ", h("span", { class: "rl-context" }, "dim: does not train")]),
    );
  }

  toggleHelp() {
    this.help.hidden = !this.help.hidden;
    if (!this.help.hidden) this.help.scrollIntoView?.({ block: "nearest" });
  }

  focus(i) {
    if (!this.cards[i]) return;
    this.cards[this.focused]?.element.setAttribute("tabindex", "-1");
    this.focused = i;
    const { element } = this.cards[i];
    element.setAttribute("tabindex", "0");
    element.focus();
  }

  startRanking() {
    this.ranking = new Ranking(this.cards.map((card) => card.member.seat));
    this.root.classList.add("rl-ranks");
    this.rankBar.hidden = false;
    this.rankBar.replaceChildren(
      h("strong", {}, "Ranking"),
      h("span", {}, "digits give places, the same digit ties, Space gives the next place, Backspace takes it away"),
      h("span", { class: "rl-dim" }, this.state.formula),
      h("span", { class: "rl-space" }),
      h("button", { onclick: () => this.restLast(), title: "l" }, "Rest last"),
      h("button", { onclick: () => this.stopRanking(), title: "Escape" }, "Cancel"),
      h("button", { class: "rl-main", onclick: () => this.giveRanks(), title: "Enter" }, "Give rewards"),
    );
    this.ranked();
    this.focus(this.focused);
  }

  /** Show the present places, and the rewards that they would give. */
  ranked() {
    const rewards = this.ranking?.rewards() ?? new Map();
    this.cards.forEach((card) => card.rank(this.ranking, rewards.get(card.member.seat)));
  }

  restLast() {
    this.ranking.restLast();
    this.ranked();
  }

  stopRanking() {
    this.ranking = null;
    this.root.classList.remove("rl-ranks");
    this.rankBar.hidden = true;
    this.ranked();
    this.focus(this.focused);
  }

  async giveRanks() {
    const ranking = this.ranking.list();
    if (!ranking.length) return this.status.say("nothing is ranked yet: a digit gives this completion a place");
    await this.change("rank", { ranking });
    if (!this.status.element.classList.contains("rl-wrong")) this.stopRanking();
  }

  give(seat, reward) {
    return this.change("give", { seat, reward });
  }

  undo() {
    return this.change("undo");
  }

  change(call, args) {
    return this.attempt(async () => {
      const changed = await this.ask(call, args);
      this.stand(changed);
      this.status.say(changed.message);
    });
  }
}

export default {
  render({ model, el }) {
    const groups = new Groups(model, el);
    return () => groups.close();
  },
};
