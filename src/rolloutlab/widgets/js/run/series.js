// The numbers of runs over a common axis: steps, tokens or time. Pure functions.

import { number } from "../kit/dom.js";

/** Where the steps of a course lie on an axis; strictly increasing. */
export function places(course, by) {
  if (by === "step") return course.steps;
  let last = -Infinity;
  const values = by === "time" ? course.hours : tokensBefore(course.numbers.tokens ?? course.steps.map(() => 0));
  return values.map((value) => (last = value > last ? value : last + 1e-9 * Math.max(1, Math.abs(last))));
}

/** Tokens that were sampled until each checkpoint was there. */
function tokensBefore(tokens) {
  let sum = 0;
  return tokens.map((sampled) => (sum += sampled ?? 0) - (sampled ?? 0));
}

/** All places of some axes, each once, in order. */
export function joined(axes) {
  return [...new Set(axes.flat())].sort((a, b) => a - b);
}

/** Values of a course as a column over all places: null where it has none. */
export function column(length, positions, values) {
  const made = Array(length).fill(null);
  positions.forEach((position, i) => (made[position] = values[i] ?? null));
  return made;
}

/** Means over 2 * radius + 1 points around each point, of fewer near the ends: the same number on both sides, so that nothing lags. */
export function smoothed(values, radius) {
  const there = values.flatMap((value, i) => (value == null ? [] : [i]));
  const sums = [0];
  there.forEach((i) => sums.push(sums.at(-1) + values[i]));
  const made = values.map(() => null);
  there.forEach((i, k) => {
    const r = Math.min(radius, k, there.length - 1 - k);
    made[i] = (sums[k + r + 1] - sums[k - r]) / (2 * r + 1);
  });
  return made;
}

/** The last place that is not after another one; -1 if all are. */
export function lastUntil(sorted, place) {
  let low = -1;
  for (let high = sorted.length; high - low > 1; ) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= place) low = middle;
    else high = middle;
  }
  return low;
}

export function known(values) {
  return (values ?? []).filter((value) => value != null);
}

/** A value in as many digits as it is read with; a share as percent. */
export function written({ unit }, value, digits = 3) {
  if (value == null) return "–";
  return text(unit, value, digits).replace(/^-/, "−");
}

function text(unit, value, digits) {
  if (unit === "share") return `${number(100 * value, digits - 1)}%`;
  const sign = unit === "$" ? "$" : "";
  const size = Math.abs(value);
  if (size >= 1e6) return `${sign}${number(value / 1e6, digits)}M`;
  if (size >= 1000) return `${sign}${Math.round(value).toLocaleString("en")}`;
  if (!size || size < 0.001) return `${sign}${number(value, digits - 1)}`;
  return `${sign}${value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3)}`;
}

/** The label of a tick of a vertical axis. */
export function heightWords({ unit }, value, digits) {
  const size = Math.abs(value);
  const text = unit === "share" ? `${number(100 * value, digits - 1)}%` : size >= 1e6 ? `${number(value / 1e6, digits)}M` : size >= 1000 ? value.toLocaleString("en") : number(value, digits);
  return (unit === "$" ? `$${text}` : text).replace(/^-/, "−");
}

/** A place on an axis in words. */
export function placeWords(by, place) {
  return by === "step" ? `step ${place}` : by === "tokens" ? `${tokens(place)} tokens` : time(place);
}

/** The label of a tick. */
export function tickWords(by, tick) {
  return by === "step" ? String(tick) : by === "tokens" ? tokens(tick) : time(tick);
}

/** Distances between the ticks of an axis. */
export const STRIDES = {
  time: [1 / 3600, 5 / 3600, 15 / 3600, 1 / 120, 1 / 60, 1 / 30, 1 / 12, 1 / 6, 0.25, 0.5, 1, 2, 3, 6, 12, 24, 48, 120, 240],
};

function tokens(count) {
  return count >= 1e6 ? `${number(count / 1e6, 3)}M` : count >= 1000 ? `${number(count / 1000, 3)}k` : String(Math.round(count));
}

function time(hours) {
  const seconds = Math.round(3600 * hours);
  if (seconds < 60) return seconds ? `${seconds} s` : "0";
  return seconds < 3600 ? `${number(seconds / 60, 2)} min` : `${number(hours, 3)} h`;
}

/** Every number of every run as CSV; of several seeds also the least and the largest. */
export function csv(courses, numbers) {
  const banded = courses.some(({ lows }) => Object.keys(lows).length);
  const names = numbers.flatMap(({ name }) => (banded ? [name, `${name} least`, `${name} largest`] : [name]));
  const rows = courses.flatMap((course) =>
    course.steps.map((step, i) => {
      const of = (part, name) => course[part][name]?.[i] ?? "";
      const values = numbers.flatMap(({ name }) => (banded ? ["numbers", "lows", "highs"] : ["numbers"]).map((part) => of(part, name)));
      return [course.name, step, course.hours[i], ...values];
    }),
  );
  return [["run", "step", "hours", ...names], ...rows].map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
}

function quoted(value) {
  const text = String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
