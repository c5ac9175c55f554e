// Which cards can be seen, or nearly: only those have their text in the page.

const NEAR = "600px";

export class Sight {
  constructor() {
    this.watched = new Map();
    this.observer = new IntersectionObserver(
      (entries) => entries.forEach(({ target, isIntersecting }) => this.watched.get(target)?.seen(isIntersecting)),
      { rootMargin: NEAR, scrollMargin: NEAR },
    );
  }

  /** Tell `card.seen(true)` when its element comes near, `card.seen(false)` when it goes. */
  watch(card) {
    this.watched.set(card.element, card);
    this.observer.observe(card.element);
  }

  forget() {
    this.observer.disconnect();
    this.watched.clear();
  }

  close() {
    this.forget();
  }
}
