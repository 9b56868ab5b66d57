/**
 * Draws metrics of a run over its steps as a small picture:
 *
 *   npx tsx scripts/maintain/docs/plot-run.ts runs/latest docs/guide/curves/solver-judge.svg reward/solver/mean reward/judge/mean
 *
 * Thin: each step. Thick: the mean of the last five steps.
 */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { mean } from "../../../src/base/values.ts";

const [folder, file, ...names] = process.argv.slice(2);
if (folder === undefined || file === undefined || names.length === 0) {
  console.error("tsx scripts/maintain/docs/plot-run.ts RUN_FOLDER PICTURE.svg METRIC...");
  process.exit(2);
}
const lines = readFileSync(join(folder, "metrics.jsonl"), "utf8").trim().split("\n");
const steps = lines.map((line) => JSON.parse(line) as Record<string, number>).filter((line) => !("kind" in line));
const panel = { width: 300, height: 170, left: 34, right: 10, top: 24, bottom: 22 };

function drawPanel(name: string, index: number): string {
  const values = steps.map((step) => step[name]!);
  const smooth = values.map((_, step) => mean(values.slice(Math.max(0, step - 4), step + 1)));
  const [w, h] = [panel.width - panel.left - panel.right, panel.height - panel.top - panel.bottom];
  const top = Math.max(0.1, Math.ceil(Math.max(...values) * 10) / 10);
  const line = (of: readonly number[], style: string) => {
    const points = of.map((value, step) => {
      return `${((step / Math.max(1, of.length - 1)) * w).toFixed(1)},${(h - (value / top) * h).toFixed(1)}`;
    });
    return `<polyline points="${points.join(" ")}" fill="none" ${style}/>`;
  };
  const text = (x: number, y: number, words: string | number, anchor = "start") =>
    `<text x="${x}" y="${y}" text-anchor="${anchor}" font-family="sans-serif" font-size="10" fill="#444">${words}</text>`;
  return [
    `<g transform="translate(${index * panel.width + panel.left},${panel.top})">`,
    `<rect width="${w}" height="${h}" fill="none" stroke="#ddd"/>`,
    ...[text(0, -8, name), text(-4, 8, top, "end"), text(-4, h, 0, "end"), text(0, h + 14, 1)],
    text(w, h + 14, `step ${values.length}`, "end"),
    ...[line(values, 'stroke="#9bbbe0" stroke-width="1"'), line(smooth, 'stroke="#1f5fa8" stroke-width="2"')],
    "</g>",
  ].join("");
}

const [width, height] = [names.length * panel.width, panel.height];
const title = `${names.join(", ")} over ${steps.length} steps`;
writeFileSync(
  file,
  `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"><title>${title}</title>` +
    `<rect width="${width}" height="${height}" fill="#fff"/>${names.map(drawPanel).join("\n")}</svg>\n`,
);
for (const name of names) {
  const values = steps.map((step) => step[name]!);
  console.log(
    `${name}: first five ${mean(values.slice(0, 5)).toFixed(3)}, last five ${mean(values.slice(-5)).toFixed(3)}`,
  );
}
