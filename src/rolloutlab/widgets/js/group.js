// The group view: a prompt, and its completions side by side. Its Python part is trajectories/group_view.py.

import "../kit/theme.css";
import "./kit/controls.css";
import "./group.css";
import { Card } from "./group/card.js";
import { KEYS, onKey } from "./group/keys.js";
import { Ranking } from "./group/ranking.js";
import { folded, longText, turn } from "./group/text.js";
import { showFigures } from "./kit/cells.js";
import { frame, h, statusLine } from "./kit/dom.js";
import { connect } from "./kit/kernel.js";
import { Sight } from "./kit/sight.js";

const BEST = "best";
const SOON = 150;

class Groups {
  constructor(model, el) {
    this.kernel = connect(model, el);
    this.status = statusLine();
    this.state = model.get("state");
    this.mode = { tokens: false, gap: false, markdown: false, reference: "" };
    this.order = "learning";
    this.cards = [];
    this.focused = 0;
    this.sight = new Sight();
    this.root = frame("rl-panel rl-view-groups");
    this.root.setAttribute("role", "region");
    this.above = h("div", { class: "rl-above" });
    this.below = h("div", {});
    this.root.append(this.above, this.below);
    this.above.addEventListener("click", ({ target }) => target.dataset.position && this.go({ position: Number(target.dataset.position) }));
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
      this.showAbove(this.state.above);
      this.show(this.state.shown);
    }
  }

  close() {
    clearTimeout(this.soon);
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
      this.show(await this.kernel.ask("at" in wanted ? "group" : "find", { ...wanted, order: this.order }));
      this.focus(0);
    });
  }

  step(by) {
    const at = this.at + by;
    if (at >= 0 && at < this.of) return this.go({ at });
  }

  /** The figures of the whole collection, made by Python; its groups become buttons. */
  showAbove(above) {
    if (!above) return;
    showFigures(this.above, above, (text) => this.status.say(text));
    this.markGroup();
  }

  /** Show the figures anew, soon: several edits cost one request. */
  renewAbove() {
    if (!this.above.childNodes.length) return;
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.attempt(async () => this.showAbove(await this.kernel.ask("overview"))), SOON);
  }

  markGroup() {
    const bars = [...this.above.querySelectorAll(".rl-groups-bar")];
    const position = String(this.group?.position);
    bars.forEach((bar) => bar.removeAttribute("aria-current"));
    bars.find(({ dataset }) => dataset.position === position)?.setAttribute("aria-current", "true");
  }

  show({ at, of, name, group }) {
    this.sight.forget();
    Object.assign(this, { at, of, name, group, ranking: null, focused: 0 });
    this.root.setAttribute("aria-label", group ? `group ${group.name}` : name);
    if (!group) {
      this.cards = [];
      this.below.replaceChildren(h("p", { class: "rl-foot" }, `${name} has no groups`));
      return;
    }
    this.mode.reference = this.mode.reference === BEST ? BEST : "";
    this.below.replaceChildren(
      this.tools(),
      (this.rankBar = h("div", { class: "rl-toolbar rl-ranking", hidden: true })),
      this.status.element,
      (this.promptShown = this.prompt()),
      (this.cardList = h("ol", { class: "rl-cards", "aria-label": "completions" })),
      (this.help = h("dl", { class: "rl-keys", hidden: true, "aria-label": "keys" }, KEYS.map(([keys, does]) => h("div", {}, h("dt", {}, keys), h("dd", {}, does))))),
    );
    this.cards = [];
    this.stand(group);
    this.markGroup();
  }

  /** Make a card for each completion, and one for all of which it shows the same. */
  deal(parts) {
    const members = new Map(this.group.members.map((member) => [member.seat, member]));
    const had = this.cards[this.focused]?.member.seat;
    const within = this.cardList.contains(document.activeElement);
    this.sight.forget();
    this.parts = JSON.stringify(parts);
    this.cards = parts.map((seats, i) => new Card(this, seats.map((seat) => members.get(seat)), i));
    this.cardList.replaceChildren(...this.cards.map((card) => h("li", {}, card.element)));
    this.cards.forEach((card) => this.sight.watch(card));
    this.focused = Math.max(0, this.cards.findIndex(({ seats }) => seats.includes(had)));
    this.cards[this.focused]?.element.setAttribute("tabindex", "0");
    if (within) this.cards[this.focused]?.element.focus();
  }

  /** Seats, those together that say the same and have the same reward; who gave it is named on the card. */
  alike() {
    const parts = new Map();
    for (const { seat, same } of this.group.members) {
      const { reward, components, why } = this.standing.get(seat) ?? {};
      const key = JSON.stringify([same, reward, components, why]);
      parts.set(key, [...(parts.get(key) ?? []), seat]);
    }
    return [...parts.values()];
  }

  picker() {
    const label = h("b", {}, this.of > 1 ? `${this.name}/` : this.group.name);
    if (this.of < 2) return this.above.childNodes.length ? [label] : [label, h("span", { class: "rl-dim" }, `${this.group.members.length} completion${this.group.members.length === 1 ? "" : "s"}`)];
    this.counts = h("span", { class: "rl-dim" });
    return [
      h("button", { onclick: () => this.step(-1), disabled: this.at === 0, "aria-label": "previous group", title: "previous group: p" }, "‹"),
      h("span", { class: "rl-picked" }, label, h("input", {
        type: "number",
        min: 0,
        class: "rl-pick rl-stays",
        value: this.group.position,
        "aria-label": "group",
        onkeydown: ({ key, target }) => key === "Enter" && target.blur(), // Enter alone changes nothing in JupyterLab
        onchange: ({ target }) => target.value && this.go({ position: Number(target.value) }),
      })),
      h("button", { onclick: () => this.step(1), disabled: this.at + 1 >= this.of, "aria-label": "next group", title: "next group: n" }, "›"),
      this.counts,
      h("select", { "aria-label": "order of the groups", onchange: ({ target }) => this.reorder(target.value) }, [["learning", "most spread"], ["sampled", "as sampled"]].map(([value, text]) => h("option", { value, selected: value === this.order }, text))),
    ];
  }

  reorder(order) {
    this.order = order;
    return this.go({ position: this.group.position });
  }

  prompt() {
    const row = Object.entries(this.group.row);
    const tools = this.group.tools;
    return h(
      "section",
      { class: "rl-prompt", "aria-label": "prompt", tabindex: 0 },
      h("div", {}, this.group.prompt.map((message) => turn(this, null, message)), tools.length > 0 && tools.map((tool) => folded(h("span", {}, "tool ", h("code", {}, tool.name)), () => longText(this, null, tool.definition)))),
      row.length > 0 && h("div", { class: "rl-row" }, row.map(([name, value]) => h("span", { class: "rl-chip", title: `${name}: ${value}` }, h("span", { class: "rl-dim" }, name), h("b", {}, value)))),
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
    this.markdownButton = h("button", { onclick: () => this.toggle("markdown"), "aria-pressed": "false", title: "prompt and answers as Markdown: m" }, "Markdown");
    this.tokenButton = h("button", { onclick: () => this.toggle("tokens"), "aria-pressed": "false", title: "what the policy thought of each token: t" }, "Tokens");
    this.gapButton = h("button", { onclick: () => this.toggle("gap"), "aria-pressed": "false", hidden: true, title: "logprob at the newest checkpoint minus at sampling: g" }, "Gap to the newest checkpoint");
    this.legend = h("span", { class: "rl-dim rl-legend" });
    const bar = h(
      "div",
      { class: "rl-toolbar", role: "toolbar", "aria-label": "what to show" },
      this.picker(),
      h("span", { class: "rl-space" }),
      h("label", {}, "compare with ", this.compare),
      this.markdownButton,
      this.tokenButton,
      this.gapButton,
      this.legend,
      (this.rankButton = h("button", { onclick: () => this.startRanking(), "aria-label": "Rank", title: "rank by keys: r" }, "Rank", h("kbd", {}, "r"))),
      (this.undoButton = h("button", { onclick: () => this.undo(), "aria-label": "Undo" }, "Undo", h("kbd", {}, "u"))),
      h("button", { onclick: () => this.toggleHelp(), "aria-label": "keys", title: "keys: ?" }, "?"),
    );
    this.modeShown();
    return bar;
  }

  /** Update rewards and advantages. */
  stand({ standing, largest, trains, undo }) {
    this.nameUndo(undo);
    this.standing = new Map(standing.map((each) => [each.seat, each]));
    const parts = this.alike();
    if (JSON.stringify(parts) !== this.parts || !this.cards.length) this.deal(parts);
    this.cards.forEach((card) => card.stand(card.seats.map((seat) => this.standing.get(seat)), largest));
    if (this.counts) this.counts.textContent = trains && this.at < trains && this.order === "learning" ? `${(this.at + 1).toLocaleString("en")} of ${trains.toLocaleString("en")} that train` : `${(this.at + 1).toLocaleString("en")} of ${this.of.toLocaleString("en")}`;
    if (this.shownReference !== undefined && this.referenceSeat() !== this.shownReference) this.redraw();
    this.shownReference = this.referenceSeat();
  }

  async refresh() {
    this.stand(await this.ask("standing"));
    this.renewAbove();
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
    const { markdown } = this.mode;
    this.mode[what] = !this.mode[what];
    if (this.mode[what] && what !== "gap") this.mode[what === "markdown" ? "tokens" : "markdown"] = false;
    if (this.mode.markdown !== markdown) this.promptShown.replaceWith((this.promptShown = this.prompt()));
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
    const { tokens, gap, markdown } = this.mode;
    this.markdownButton.setAttribute("aria-pressed", String(markdown));
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
    this.ranking = new Ranking(new Map(this.cards.map((card) => [card.member.seat, card.seats])));
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

  give(seats, reward) {
    return this.change("give", { seats, reward });
  }

  /** Say what an undo would take back; Python refuses to take back another change. */
  nameUndo(undo) {
    this.undoable = undo;
    this.undoButton.title = undo.what ? `take back ${undo.what}: u` : "nothing by hand to take back in this group: u";
  }

  /** One after the other: a second key names what is left by the first. */
  undo() {
    this.undone = Promise.resolve(this.undone).then(() => this.undoNewest());
    return this.undone;
  }

  async undoNewest() {
    const done = await this.change("undo", { seen: this.undoable.change });
    // its words stay: another kernel may have changed a reward, and the button names that now
    if (!done) await this.attempt(() => this.refresh());
    return done;
  }

  change(call, args) {
    return this.attempt(async () => {
      const changed = await this.ask(call, args);
      this.stand(changed);
      this.renewAbove();
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
