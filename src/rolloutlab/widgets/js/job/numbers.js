// The numbers of the gradient steps: an array per name, one place per step, null where a step does not report it.

/** Replace the numbers of the steps from `begin` on. */
export function take(numbers, { begin, numbers: fresh }) {
  const more = length(fresh);
  for (const name of new Set([...Object.keys(numbers), ...Object.keys(fresh)])) {
    const column = (numbers[name] ??= []);
    column.length = Math.min(column.length, begin);
    while (column.length < begin) column.push(null);
    column.push(...(fresh[name] ?? Array(more).fill(null)));
  }
}

/** The number of steps. */
export function length(numbers) {
  return Math.max(0, ...Object.values(numbers).map((column) => column.length));
}
