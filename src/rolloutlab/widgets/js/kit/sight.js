// What can be seen, or nearly: the rest of a page need not be drawn.

const NEAR = "600px";

export class Sight {
  constructor() {
    this.watched = new Map();
    this.observer = new IntersectionObserver(
      (entries) => entries.forEach(({ target, isIntersecting }) => this.watched.get(target)?.seen(isIntersecting)),
      { rootMargin: NEAR, scrollMargin: NEAR },
    );
  }

  /** Tell `part.seen(true)` when `part.element` comes near, `part.seen(false)` when it goes. */
  watch(part) {
    this.watched.set(part.element, part);
    this.observer.observe(part.element);
  }

  forget() {
    this.observer.disconnect();
    this.watched.clear();
  }

  close() {
    this.forget();
  }
}
