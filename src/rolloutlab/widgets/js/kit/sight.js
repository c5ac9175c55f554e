// Which elements are in or near the viewport: the rest of a page need not be drawn.

const NEAR = "600px";

export class Sight {
  constructor() {
    this.watched = new Map();
    this.observer = new IntersectionObserver(
      (entries) => entries.forEach(({ target, isIntersecting }) => this.watched.get(target)?.seen(isIntersecting)),
      { rootMargin: NEAR, scrollMargin: NEAR },
    );
  }

  /** Call `part.seen(true)` when `part.element` comes near, `part.seen(false)` when it leaves. */
  watch(part) {
    this.watched.set(part.element, part);
    this.observer.observe(part.element);
  }

  leave(part) {
    this.watched.delete(part.element);
    this.observer.unobserve(part.element);
  }

  forget() {
    this.observer.disconnect();
    this.watched.clear();
  }

  close() {
    this.forget();
  }
}
