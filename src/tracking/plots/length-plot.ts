/** A histogram of reply lengths, as SVG. */
import { plotArea, svg, svgLabel, svgRule } from "./svg.ts";

const maxBars = 32;

/**
 * The distribution of reply lengths in tokens.
 *
 * @param lengths tokens of each reply
 * @param limit the longest reply allowed; replies of that length are drawn in red
 */
export function lengthsSvg(step: number, lengths: readonly number[], limit: number): string {
  const { left, right, top, bottom } = plotArea;
  const longest = lengths.reduce((most, length) => Math.max(most, length), 1);
  const tokensPerBar = Math.max(1, Math.ceil(longest / maxBars));
  const bars = Array.from({ length: Math.ceil((longest + 1) / tokensPerBar) }, () => ({ all: 0, atLimit: 0 }));
  for (const length of lengths) {
    const bar = bars[Math.floor(length / tokensPerBar)];
    if (bar === undefined) continue;
    bar.all++;
    if (length >= limit) bar.atLimit++;
  }
  const most = bars.reduce((highest, { all }) => Math.max(highest, all), 1);
  const width = (right - left) / bars.length;
  const draw = (index: number, count: number, color: string) => {
    const height = (count / most) * (bottom - top);
    const position = `x="${(left + index * width).toFixed(1)}" y="${(bottom - height).toFixed(1)}"`;
    const size = `width="${Math.max(1, width - 1).toFixed(1)}" height="${height.toFixed(1)}"`;
    return `<rect ${position} ${size} fill="${color}"/>`;
  };
  const limited = bars.reduce((sum, { atLimit }) => sum + atLimit, 0);
  const cut = limited > 0 ? `, ${limited} at the limit of ${limit}` : "";
  return svg(`step ${step}: tokens of ${lengths.length} replies${cut}`, [
    ...bars.map(({ all }, index) => draw(index, all, "#4878a8")),
    ...bars.flatMap(({ atLimit }, index) => (atLimit > 0 ? [draw(index, atLimit, "#c0392b")] : [])),
    svgRule(bottom, "#333"),
    svgLabel(left, bottom + 16, "0", "middle"),
    svgLabel(right, bottom + 16, String(bars.length * tokensPerBar), "end"),
    svgLabel(left - 6, top + 10, String(most), "end"),
  ]);
}
