/**
 * Trains a policy with a teacher, and with rewards alone, for three seeds, and draws both curves:
 *
 *   npm run proof -- teacher TEACHER_FOLDER RUNS_FOLDER PICTURE.svg
 *
 * TEACHER_FOLDER is a merged export of a run of examples/larger-number. Runs that are complete are not repeated.
 */
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { mean } from "../../../src/base/values.ts";

const [teacher, folder, picture] = process.argv.slice(2);
if (teacher === undefined || folder === undefined || picture === undefined)
  throw new Error("npm run proof -- teacher TEACHER_FOLDER RUNS_FOLDER PICTURE.svg");

const seeds = [0, 1, 2];
const sides = {
  teacher: {
    steps: 12,
    settings: [
      ...["rllm.trainer.total_batches=12", "rllm.trainer.test_freq=4", "distillation.enabled=true"],
      `+distillation.teacher_models.rewarded.model_path=${teacher}`,
      ...["distillation.distillation_loss.loss_mode=forward_kl_topk", "distillation.distillation_loss.topk=20"],
    ],
  },
  // With 1e-3, the four replies of a task soon are equal, and almost no group has a signal.
  rewards: { steps: 24, settings: ["training.learning_rate=3e-4"] },
};
type Side = keyof typeof sides;
type Line = Record<string, number>;

const runOf = (side: Side, seed: number) => join(folder, `${side}-${seed}`);
const linesOf = (side: Side, seed: number): Line[] => {
  const file = join(runOf(side, seed), "metrics.jsonl");
  return existsSync(file)
    ? readFileSync(file, "utf8")
        .trim()
        .split("\n")
        .map((line) => JSON.parse(line))
    : [];
};
/** `[step, value]` of the lines that have the metric. */
const points = (lines: readonly Line[], metric: string) =>
  lines.flatMap((line) => (metric in line ? [[line.step!, line[metric]!] as const] : []));

for (const seed of seeds) {
  for (const side of Object.keys(sides) as Side[]) {
    const { steps, settings } = sides[side];
    if (linesOf(side, seed).some(({ step }) => step === steps)) continue;
    const run = [`rllm.trainer.seed=${seed}`, `rllm.trainer.run_dir=${runOf(side, seed)}`];
    const command = ["--import", "tsx", "src/apps/cli/main.ts", "train", "scripts/proofs/teacher/train.ts", ...run];
    const { status } = spawnSync(process.execPath, [...command, ...settings], { stdio: "inherit" });
    if (status !== 0) throw new Error(`${runOf(side, seed)} ended with exit code ${status}`);
  }
}

for (const seed of seeds) {
  const kl = points(linesOf("teacher", seed), "distillation/teacher_kl").map(([, value]) => value);
  const [first, last] = [mean(kl.slice(0, 2)), mean(kl.slice(-3))];
  const rewards = (Object.keys(sides) as Side[]).map((side) => {
    const found = points(linesOf(side, seed), "val/reward").map(([step, value]) => `${value.toFixed(2)} (${step})`);
    return `${side} ${found.join(" ")}`;
  });
  console.log(
    `seed ${seed}: KL ${first.toFixed(2)} -> ${last.toFixed(2)} (first 2, last 3 steps); ${rewards.join("; ")}`,
  );
}

const panel = { width: 250, height: 190, left: 34, right: 10, top: 24, bottom: 22 };
const [w, h] = [panel.width - panel.left - panel.right, panel.height - panel.top - panel.bottom];
const colors: Record<Side, string> = { teacher: "#1f5fa8", rewards: "#c0562c" };
const dashes = ["", "4 3", "1 3"];

interface Curve {
  points: readonly (readonly [step: number, value: number])[];
  color: string;
  dash: string;
}

function drawPanel(title: string, index: number, most: number, steps: number, curves: readonly Curve[]): string {
  const text = (x: number, y: number, words: string | number, anchor = "start") =>
    `<text x="${x}" y="${y}" text-anchor="${anchor}" font-family="sans-serif" font-size="10" fill="#444">${words}</text>`;
  const lines = curves.map(({ points, color, dash }) => {
    const places = points.map(
      ([x, y]) => `${((x / steps) * w).toFixed(1)},${(h - (Math.max(0, y) / most) * h).toFixed(1)}`,
    );
    return `<polyline points="${places.join(" ")}" fill="none" stroke="${color}" stroke-width="1.5" stroke-dasharray="${dash}"/>`;
  });
  const labels = [text(0, -8, title), text(-4, 8, most, "end"), text(-4, h, 0, "end"), text(0, h + 14, 0)];
  return `<g transform="translate(${index * panel.width + panel.left},${panel.top})"><rect width="${w}" height="${h}" fill="none" stroke="#ddd"/>${[...labels, text(w, h + 14, `step ${steps}`, "end"), ...lines].join("")}</g>`;
}

const curves = (side: Side, metric: string) =>
  seeds.map((seed) => ({ points: points(linesOf(side, seed), metric), color: colors[side], dash: dashes[seed]! }));
const panels = [
  drawPanel(
    "KL to the teacher, nats per token",
    0,
    4,
    sides.teacher.steps,
    curves("teacher", "distillation/teacher_kl"),
  ),
  drawPanel("validation reward: teacher (blue), rewards (red)", 1, 1, sides.rewards.steps, [
    ...curves("teacher", "val/reward"),
    ...curves("rewards", "val/reward"),
  ]),
];
const width = panels.length * panel.width;
writeFileSync(
  picture,
  `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${panel.height}" width="${width}" height="${panel.height}"><title>KL to the teacher, and validation reward with a teacher and with rewards alone, three seeds each</title><rect width="${width}" height="${panel.height}" fill="#fff"/>${panels.join("\n")}</svg>\n`,
);
