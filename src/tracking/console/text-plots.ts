/** Plots made of characters: a bar, a sparkline, a chart. */

const blocks = "▁▂▃▄▅▆▇█";

/** `fraction` of `width` cells filled. */
export function bar(fraction: number, width: number): string {
  const filled = Math.round(Math.min(1, Math.max(0, fraction)) * width);
  return "█".repeat(filled) + "░".repeat(width - filled);
}

/** One row of at most `width` blocks, scaled from the least to the greatest value. Neighbors are averaged if needed. */
export function sparkline(values: readonly number[], width: number): string {
  const columns = squeeze(values.filter(Number.isFinite), width);
  const { low, high } = extent(columns);
  const top = blocks.length - 1;
  return columns.map((value) => blocks[high > low ? Math.round(((value - low) / (high - low)) * top) : 0]).join("");
}

/**
 * A chart in plain ASCII, one `*` per column, at most `width` wide, with the scale on the left and the first and last
 * position below. A value that is not finite leaves its column empty.
 */
export function chart(values: readonly number[], size: { width: number; height: number; first?: number }): string[] {
  const { height, first = 1 } = size;
  const { low, high } = extent(values.filter(Number.isFinite));
  const [top, bottom] = axisLabels(high, low);
  const margin = Math.max(top.length, bottom.length) + 1;
  const room = Math.max(8, size.width - margin - 2);
  // Spreads out few values: ten steps would make a chart only ten characters wide.
  const spread = Math.max(1, Math.min(4, Math.floor(room / Math.max(1, values.length))));
  const columns = squeeze(values, Math.floor(room / spread));
  const rowOf = (value: number) => (high > low ? Math.round(((value - low) / (high - low)) * (height - 1)) : 0);
  const rows = Array.from({ length: height }, (_, index) => {
    const row = height - 1 - index;
    const label = row === 0 ? bottom : row === height - 1 && high > low ? top : "";
    const cells = columns.map((value) => (Number.isFinite(value) && rowOf(value) === row ? "*" : " ").padEnd(spread));
    return `${label.padStart(margin - 1)} |${cells.join("")}`.trimEnd();
  });
  const length = Math.max(1, (columns.length - 1) * spread + 1);
  const last = String(first + values.length - 1);
  const foot = values.length > 1 ? String(first).padEnd(Math.max(0, length - last.length)) + last : last;
  return [...rows, `${" ".repeat(margin)}+${"-".repeat(length)}`, `${" ".repeat(margin + 1)}${foot}`];
}

/** As many decimals as make the two differ, up to six. */
function axisLabels(high: number, low: number): [string, string] {
  const digits = [2, 3, 4, 5, 6].find((count) => high.toFixed(count) !== low.toFixed(count));
  if (high === low || digits !== undefined) return [high.toFixed(digits ?? 2), low.toFixed(digits ?? 2)];
  return [high.toExponential(2), low.toExponential(2)];
}

function extent(values: readonly number[]): { low: number; high: number } {
  if (values.length === 0) return { low: 0, high: 0 };
  // Not Math.min(...values): a long run has more values than a call may have arguments.
  return {
    low: values.reduce((least, value) => Math.min(least, value)),
    high: values.reduce((most, value) => Math.max(most, value)),
  };
}

/** At most `columns` values, neighbors averaged. */
function squeeze(values: readonly number[], columns: number): number[] {
  if (values.length <= columns) return [...values];
  return Array.from({ length: Math.max(0, columns) }, (_, column) => {
    const from = Math.floor((column * values.length) / columns);
    const part = values.slice(from, Math.floor(((column + 1) * values.length) / columns)).filter(Number.isFinite);
    return part.length === 0 ? Number.NaN : part.reduce((sum, value) => sum + value, 0) / part.length;
  });
}
