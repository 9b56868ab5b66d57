/** The distribution of reply lengths as a picture: a small SVG file, which browsers and editors show. */
import { join } from "node:path";
import { makeFolder } from "../make-folder.ts";
import { writeWhole } from "./durable-files.ts";

const size = { width: 640, height: 240, left: 44, bottom: 34, top: 30 };
const mostBars = 32;

/**
 * Writes `{directory}/lengths-step-000012.svg`: how many replies have how many tokens.
 *
 * @param lengths tokens of each reply
 * @param limit the longest reply allowed; replies of that length are drawn in red
 */
export function plotLengths(directory: string, step: number, lengths: readonly number[], limit: number): string {
  makeFolder(directory);
  const file = join(directory, `lengths-step-${String(step).padStart(6, "0")}.svg`);
  writeWhole(file, [lengthsSvg(step, lengths, limit)]);
  return file;
}

export function lengthsSvg(step: number, lengths: readonly number[], limit: number): string {
  const longest = lengths.reduce((most, length) => Math.max(most, length), 1);
  const width = Math.max(1, Math.ceil(longest / mostBars));
  const counts = new Array<number>(Math.ceil((longest + 1) / width)).fill(0);
  const atLimit = new Array<number>(counts.length).fill(0);
  for (const length of lengths) {
    const bar = Math.floor(length / width);
    counts[bar]!++;
    if (length >= limit) atLimit[bar]!++;
  }
  const most = counts.reduce((left, right) => Math.max(left, right), 1);
  const room = { x: size.width - size.left - 10, y: size.height - size.top - size.bottom };
  const barWidth = room.x / counts.length;
  const floor = size.height - size.bottom;
  const bars = counts.map((count, bar) => {
    const x = size.left + bar * barWidth;
    const draw = (share: number, colour: string) => {
      const height = (share / most) * room.y;
      return `<rect x="${x.toFixed(1)}" y="${(floor - height).toFixed(1)}" width="${Math.max(1, barWidth - 1).toFixed(1)}" height="${height.toFixed(1)}" fill="${colour}"/>`;
    };
    return draw(count, "#4878a8") + (atLimit[bar]! > 0 ? draw(atLimit[bar]!, "#c0392b") : "");
  });
  const label = (x: number, y: number, text: string, anchor = "middle") =>
    `<text x="${x}" y="${y}" text-anchor="${anchor}">${text}</text>`;
  const limited = atLimit.reduce((sum, count) => sum + count, 0);
  const title = `step ${step}: tokens of ${lengths.length} replies${limited > 0 ? `, ${limited} at the limit of ${limit}` : ""}`;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${size.width} ${size.height}" font-family="sans-serif" font-size="12" fill="#333">`,
    `<rect width="${size.width}" height="${size.height}" fill="white"/>`,
    label(size.left, 18, title, "start"),
    ...bars,
    `<line x1="${size.left}" y1="${floor}" x2="${size.width - 10}" y2="${floor}" stroke="#333"/>`,
    label(size.left, floor + 16, "0"),
    label(size.width - 10, floor + 16, String(counts.length * width), "end"),
    label(size.left - 6, size.top + 10, String(most), "end"),
    "</svg>\n",
  ].join("\n");
}
