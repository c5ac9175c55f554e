// What every plot on a canvas needs: colours of the page, axes, and ticks.

export const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000];
export const FONT = "10px system-ui, sans-serif";

/** The colours of a page by their names, as a canvas takes them: of light-dark() it knows nothing. */
export function readColours(element, names) {
  const probe = document.createElement("span");
  probe.hidden = true;
  element.append(probe);
  const read = (name) => ((probe.style.color = `var(--rl-${name})`), getComputedStyle(probe).color);
  const colours = Object.fromEntries(names.map((name) => [name, read(name)]));
  probe.remove();
  return colours;
}

/** A little room above and below; a flat line lies in the middle. */
export function padded(_plot, low, high) {
  if (low == null) return [0, 1];
  const room = high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high)) ? 0.08 * (high - low) : Math.abs(low) / 10 || 0.1;
  return [low < 0 ? low - room : Math.max(0, low - room), high + room]; // no axis below 0 for numbers that are never negative
}

/** Ticks in as few digits as tell them apart. write(tick, digits) is the text of one. */
export function labels(write, ticks) {
  const texts = (digits) => ticks.map((tick) => write(tick, digits));
  const enough = [3, 4, 5, 6, 7].find((digits) => new Set(texts(digits)).size === ticks.length);
  return texts(enough ?? 8);
}

/** Call recolour() whenever the theme of the page changes; returns the function that ends it. */
export function onTheme(recolour) {
  const soon = () => requestAnimationFrame(recolour);
  const themed = new MutationObserver(soon);
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  themed.observe(document.body, { attributes: true });
  preferred.addEventListener("change", soon);
  return () => {
    themed.disconnect();
    preferred.removeEventListener("change", soon);
  };
}
