// A ranking while it is typed; trajectories/group_view.py turns places into rewards, which are previewed here.

export class Ranking {
  /** alike: by the seat of each card, the seats of the equal completions that it stands for. */
  constructor(alike) {
    this.alike = alike;
    this.seats = [...alike.keys()];
    this.places = new Map();
    this.typed = null;
  }

  /** A digit for a completion; a second one makes it a number of two digits where there are so many places. */
  digit(seat, digit) {
    const before = this.typed === seat ? this.places.get(seat) : undefined;
    const longer = before === undefined ? NaN : before * 10 + digit;
    const place = longer <= this.seats.length ? longer : digit;
    if (place < 1 || place > this.seats.length) return;
    this.places.set(seat, place);
    this.typed = seat;
  }

  /** The place after the last one; a second time removes it. */
  next(seat) {
    this.typed = null;
    if (!this.places.delete(seat)) this.places.set(seat, Math.max(0, ...this.places.values()) + 1);
  }

  clear(seat) {
    this.typed = null;
    this.places.delete(seat);
  }

  /** All that have no place tie for the last. */
  restLast() {
    const last = Math.max(0, ...this.places.values()) + 1;
    this.seats.filter((seat) => !this.places.has(seat)).forEach((seat) => this.places.set(seat, last));
  }

  moved() {
    this.typed = null;
  }

  /** All seats from the best to the worst, those of one place together. */
  list() {
    const order = [...new Set(this.places.values())].sort((a, b) => a - b);
    return order.map((place) => this.seats.filter((seat) => this.places.get(seat) === place).flatMap((seat) => this.alike.get(seat)));
  }

  rewards() {
    const list = this.list();
    const total = list.flat().length;
    const rewards = new Map();
    let before = 0;
    for (const tied of list) {
      const mean = before + (tied.length - 1) / 2;
      tied.forEach((seat) => rewards.set(seat, total > 1 ? 1 - mean / (total - 1) : 0.5));
      before += tied.length;
    }
    return rewards;
  }
}
