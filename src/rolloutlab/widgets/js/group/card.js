// One completion: its reward and advantage, and its text while it is visible.

import { h, number, signed } from "../kit/dom.js";
import { branchesAt, leaving } from "./branches.js";
import { markDifferences } from "./differences.js";
import { calls, folded, longText, parts, turn, written } from "./text.js";
import { tokenSpans } from "./tokens.js";

export class Card {
  /** members: completions of which a card shows the same; the first one's text and tokens are shown. */
  constructor(view, members, index) {
    const [member] = members;
    Object.assign(this, { view, members, member, index, near: false, kept: null });
    this.seats = members.map(({ seat }) => seat);
    this.answers = member.turns.filter(({ sampled }) => sampled).length;
    this.reward = h("button", { class: "rl-reward rl-stays", onclick: () => this.edit() });
    this.place = h("span", { class: "rl-place", "aria-live": "polite" });
    this.effect = h("span", { class: "rl-effect" });
    this.foot = h("footer", {});
    this.body = h("div", { class: "rl-body" });
    const many = members.length > 1 && h("b", { class: "rl-times" }, `×${members.length}`);
    this.element = h(
      "article",
      { class: "rl-card", tabindex: -1, "data-seat": member.seat, onfocus: () => this.focused() },
      h("header", {}, h("span", { class: "rl-seat", title: member.name }, many, this.seats.slice(0, 6).map((seat) => `#${seat}`).join(" "), this.seats.length > 6 && " …"), this.place, this.effect, this.reward),
      this.body,
      this.foot,
    );
  }

  focused() {
    const { view } = this;
    if (this.index === view.focused) return;
    view.cards[view.focused]?.element.setAttribute("tabindex", "-1");
    this.element.setAttribute("tabindex", "0");
    view.focused = this.index;
    view.ranking?.moved();
  }

  /** Update its reward and advantage. standings: of its members, alike but for who gave it; largest: the largest advantage of the job. */
  stand(standings, largest) {
    const [standing] = standings;
    if (!standing) return;
    this.standing = standing;
    const { reward, advantage, why, components } = standing;
    const { member } = this;
    this.reward.textContent = reward == null ? "no reward" : number(reward);
    this.reward.classList.toggle("rl-none", reward == null);
    const effect = why ? `would not train: ${why[1]}` : `advantage ${signed(advantage)}`;
    this.reward.setAttribute("aria-label", `${reward == null ? "no reward" : `reward ${number(reward)}`}, edit`);
    this.reward.setAttribute("title", "edit: e");
    this.effect.replaceChildren(...(reward == null ? [] : why ? [h("span", { class: "rl-why", title: why[1] }, why[0])] : bar(advantage, largest)));
    const lengths = this.members.map(({ tokens }) => tokens);
    const [least, most] = [Math.min(...lengths), Math.max(...lengths)].map((n) => n.toLocaleString("en"));
    this.foot.replaceChildren(
      ...Object.entries(components).map(([name, value]) => h("span", {}, `${name} `, h("b", {}, number(value)))),
      h("span", {}, `${least === most ? least : `${least} to ${most}`} token${most === "1" ? "" : "s"}`),
      ...(this.answers > 1 ? [h("span", {}, `${this.answers} answers`)] : []),
      h("span", member.flag ? { class: "rl-odd" } : {}, member.flag ?? member.finish),
      ...givenBy(standings).map(([source, words]) => h("span", source === "hand" ? { class: "rl-odd" } : {}, words)),
      ...(member.split ? [h("span", { class: "rl-note" }, member.split)] : []),
    );
    this.foot.setAttribute("title", member.model);
    const others = this.seats.length > 1 ? ` and ${this.seats.length - 1} equal` : "";
    const labels = [`completion ${member.seat}${others}`, reward == null ? "no reward" : `reward ${number(reward)}`];
    this.element.setAttribute("aria-label", [...labels, effect, member.flag].filter(Boolean).join(", "));
    this.element.classList.toggle("rl-idle", Boolean(why) && reward != null);
  }

  /** Its place while the group is being ranked, with the reward that it would give. */
  rank(ranking, reward) {
    const place = ranking?.places.get(this.member.seat);
    this.place.textContent = !ranking ? "" : place ? `place ${place} → ${number(reward, 3)}` : "no place";
    this.place.classList.toggle("rl-placed", Boolean(place));
  }

  /** Edit its reward: Enter stores it; Escape and a click elsewhere leave it as it was. */
  edit() {
    let open = true;
    const close = (focus = true) => {
      if (!open) return;
      open = false; // before the field goes: that blurs it
      field.replaceWith(this.reward);
      if (focus) this.element.focus();
    };
    const give = async () => {
      if (field.readOnly) return;
      field.readOnly = true; // while Python reads it
      const given = await this.view.give(this.seats, field.value);
      field.readOnly = false;
      field.setAttribute("aria-invalid", String(!given));
      if (given) close();
    };
    const field = h("input", {
      class: "rl-edit",
      inputmode: "decimal",
      value: this.standing.reward ?? "",
      "aria-label": `reward of completion ${this.member.seat}`,
      onblur: () => close(false),
      onkeydown: (event) => {
        event.stopPropagation();
        if (event.key === "Enter") give();
        if (event.key === "Escape") close();
      },
    });
    this.reward.replaceWith(field);
    field.focus();
    field.select();
  }

  /** Called when it comes into view and leaves it: invisible text is not in the page. */
  seen(near) {
    this.near = near;
    if (near) this.fill();
    else if (this.body.childNodes.length) {
      this.at = this.body.scrollTop;
      this.body.style.minHeight = `${this.body.offsetHeight}px`;
      this.kept = document.createDocumentFragment();
      this.kept.append(...this.body.childNodes);
    }
  }

  /** Draw it again after a change. */
  renew() {
    Object.assign(this, { kept: null, drawn: false, gap: null });
    this.body.replaceChildren();
    this.body.style.minHeight = "";
    if (this.near) this.fill();
  }

  fill() {
    if (this.kept) {
      this.body.append(this.kept);
      this.kept = null;
      this.body.scrollTop = this.at;
    } else if (!this.drawn) {
      this.drawn = true;
      const { turns, logs } = this.member;
      this.body.append(
        ...(this.view.mode.tokens ? this.tokens() : this.texts()),
        ...branchesAt(this.view, this.member, null, 0),
        ...(logs.length ? [folded(`logs (${logs.length})`, () => h("div", {}, logs.map((log) => longText(this.view, this.member.seat, log))), { class: "rl-fold", open: ["error", "timeout"].includes(this.member.finish) })] : []),
      );
      if (!turns.length) this.body.append(h("div", { class: "rl-dim" }, "nothing was sampled"));
    }
    this.body.style.minHeight = "";
  }

  texts() {
    const { view, member } = this;
    const reference = view.referenceSeat();
    const other = reference === member.seat ? null : view.group.members.find(({ seat }) => seat === reference);
    const after = leaving(view, member, 0);
    return [
      reference === member.seat && h("div", { class: "rl-note" }, "the others are compared with this one"),
      ...member.turns.flatMap((message, i) => {
        const body = parts(view, member.seat, message, () => {
          const against = other && opposite(member.turns, i, other.turns);
          const element = (against ? longText : written)(view, member.seat, message.content);
          const words = element.matches(".rl-text") ? element : element.firstChild;
          if (against) markDifferences(words, message.content, against);
          return element;
        }).filter(Boolean);
        return [this.turn(message, body), ...after(message)];
      }),
    ].filter(Boolean);
  }

  /** A turn; without its role where there is only one. */
  turn(message, body) {
    const alone = this.member.turns.length === 1 && body;
    return alone ? h("div", { class: "rl-what" }, body) : turn(this.view, this.member.seat, message, body);
  }

  /** Its turns with the sampled tokens, which are fetched. */
  tokens() {
    const { view, member } = this;
    const places = [];
    const after = leaving(view, member, 0);
    const elements = member.turns.flatMap((message) => {
      if (!message.sampled) return [turn(view, member.seat, message), ...after(message)];
      const tokens = h("div", { class: "rl-text rl-tokens", role: "group", "aria-label": "tokens" }, h("span", { class: "rl-dim" }, "…"));
      places.push(tokens);
      return [this.turn(message, [tokens, ...calls(view, member.seat, message)]), ...after(message)];
    });
    if (!places.length) return [...elements, h("div", { class: "rl-note" }, "no token of it has a logprob")];
    const more = h("div");
    view.attempt(() => this.fetchTokens(places, more, 0));
    return [...elements, more];
  }

  async fetchTokens(places, more, start) {
    const { view } = this;
    const { seat } = this.member;
    if (view.mode.gap) this.gap ??= view.ask("gap", { seat }).catch((error) => view.status.complain(error));
    const page = await view.ask("tokens", { seat, start });
    const gap = await this.gap;
    if (start === 0) places.forEach((place) => place.replaceChildren());
    for (const each of page.turns) {
      const place = places[each.turn];
      const before = place?.childElementCount ?? 0;
      place?.append(...tokenSpans(each, gap && gap.turns[each.turn].slice(before)));
    }
    if (gap) view.status.say(`gap to ${gap.model}`);
    const left = page.total - page.end;
    more.replaceChildren(
      ...(left > 0 ? [h("button", { class: "rl-rest", onclick: () => view.attempt(() => this.fetchTokens(places, more, page.end)) }, `show more tokens (${left.toLocaleString("en")} left)`)] : []),
    );
  }
}

/** The text of another completion that turn i is compared with: turns of one role match from the last on. */
function opposite(turns, i, others) {
  const alike = ({ role, content }) => content && role === turns[i].role;
  const after = turns.slice(i + 1).filter(alike).length;
  return others.filter(alike).at(-1 - after)?.content;
}

/** Who gave the rewards of a card, if not a function: `by hand, was 0`, or `2 by hand` of several. */
function givenBy(standings) {
  const sources = [...new Set(standings.map(({ source }) => source))].filter((source) => source && source !== "function");
  return sources.map((source) => {
    const some = standings.filter((each) => each.source === source);
    const formerly = [...new Set(some.map(({ was }) => was).filter((was) => was != null))];
    const was = source === "hand" && formerly.length ? `, was ${formerly.map((each) => number(each)).join(" or ")}` : "";
    return [source, `${some.length < standings.length ? `${some.length} ` : ""}by ${source}${was}`];
  });
}

/** A bar from the middle: to the right for more likely, to the left for less likely. */
function bar(advantage, largest) {
  const width = 50 * Math.min(1, Math.abs(advantage) / Math.max(1e-9, largest));
  const side = advantage > 0 ? "left: 50%" : `left: ${50 - width}%`;
  const words = signed(advantage);
  const colour = { "+": "rl-gained", "−": "rl-lost" }[words[0]] ?? "rl-dim";
  return [
    h("span", { class: "rl-track", "aria-hidden": "true" }, h("i", { class: advantage > 0 ? "rl-more" : "rl-less", style: `${side}; width: ${width}%` })),
    h("b", { class: `rl-advantage ${colour}`, title: "advantage of every token, in a job of this whole collection with default options" }, words),
  ];
}
